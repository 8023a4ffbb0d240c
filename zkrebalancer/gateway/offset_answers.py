"""The topics of answers about offsets, in which each partition has an error of its own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zkrebalancer.kafka_protocol.codec import Fields

BATCHED_FETCH_FROM = 8  # the version of OffsetFetch that asks for several groups
NO_OFFSET = -1


def answered_topics(topics: Iterable[Mapping[str, Any]], error_of: Callable[[str, int], int]) -> list[Fields]:
    """Return the topics of a commit's or a deletion's answer."""
    return [
        {
            "name": topic["name"],
            "partitions": [
                {"partition_index": index, "error_code": error_of(topic["name"], index)}
                for index in (one["partition_index"] for one in topic["partitions"])
            ],
        }
        for topic in topics
    ]


def refused_topics(topics: Iterable[Mapping[str, Any]], error: int) -> list[Fields]:
    """Return the topics of a commit's or a deletion's answer that refuses every partition."""
    return answered_topics(topics, lambda _topic, _index: error)


def topics_without_offsets(topics: Iterable[Mapping[str, Any]], error: int) -> list[Fields]:
    """Return the topics of an OffsetFetch's answer that refuses every partition."""
    nothing = {"committed_offset": NO_OFFSET, "metadata": "", "error_code": error}
    return [
        {
            "name": topic["name"],
            "partitions": [{"partition_index": index, **nothing} for index in topic["partition_indexes"]],
        }
        for topic in topics
    ]
