"""The topics of answers about offsets, in which each partition has an error of its own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol.codec import Fields
from zkrebalancer.protocol.fields import TopicPartition

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


def fetched_topics(
    partitions: Iterable[TopicPartition], found: Mapping[TopicPartition, int | ErrorCode]
) -> list[Fields]:
    """Return the topics of an OffsetFetch's answer: offsets that were found, errors, or that there is no offset."""
    topics: dict[str, list[Fields]] = {}
    for topic, number in partitions:
        offset = found.get((topic, number), NO_OFFSET)
        error = offset if isinstance(offset, ErrorCode) else ErrorCode.NONE
        topics.setdefault(topic, []).append(
            {
                "partition_index": number,
                "committed_offset": NO_OFFSET if error else int(offset),
                "metadata": "",
                "error_code": error,
            }
        )
    return [{"name": name, "partitions": numbers} for name, numbers in topics.items()]
