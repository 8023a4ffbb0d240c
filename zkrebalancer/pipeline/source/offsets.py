"""The ranges that a batch reads, and how Spark stores them in its checkpoint. Pure.

The end offset of a batch holds its ranges completely:

    {"orders": {"0": {"from": 50, "to": 100, "generation": 7}}}

The end offset of the batch before does not suffice as a start: a partition may come from another member, at a position
where no batch of this query ended. And a batch repeated after a restart must read the same records without asking the
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from consumer_agent.spark import equal_shares
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

Document = dict[str, dict[str, dict[str, int]]]


class CheckpointError(RebalancerError):
    """The checkpoint's offsets were not written by this source."""


class Range(NamedTuple):
    """Offsets [begin, end) of one partition."""

    topic: str
    partition: int
    begin: int
    end: int
    generation: int | None  # under which it is owned; None in a batch query


def encode(ranges: Iterable[Range]) -> Document:
    """Return the end offset of a batch that reads these ranges."""
    return {
        topic: {str(r.partition): {"from": r.begin, "to": r.end, "generation": r.generation or 0} for r in of_topic}
        for topic, of_topic in groupby(sorted(ranges), key=lambda r: r.topic)
    }


def decode(document: Any) -> list[Range]:  # noqa: ANN401  # unchecked JSON
    """Return the ranges of the batch with this end offset; raises CheckpointError."""
    try:
        return [
            Range(topic, int(partition), int(held["from"]), int(held["to"]), int(held["generation"]))
            for topic, partitions in document.items()
            for partition, held in partitions.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        text = f"the checkpoint has offsets of another source: {document!r:.200}"
        raise CheckpointError(text) from None


def limited(
    open_ranges: Mapping[TopicPartition, tuple[int, int]], limit: int, turn: int = 0
) -> dict[TopicPartition, int]:
    """Return the offset to stop at for each partition (begin, end of its log), at most `limit` offsets in total.

    Every partition gets the same share; what a partition cannot use goes to the others. If there are more partitions
    than `limit`, they take turns by the batch number `turn`, so that none waits until the others are read completely.
    """
    served = list(open_ranges)
    if limit < len(served):
        served = [served[(turn * limit + number) % len(served)] for number in range(limit)]
    begins = [open_ranges[partition][0] for partition in served]
    shares = equal_shares([open_ranges[p][1] - begin for p, begin in zip(served, begins, strict=True)], limit)
    return {partition: begin + share for partition, begin, share in zip(served, begins, shares, strict=True)}


def split(ranges: Sequence[Range], task_count: int) -> list[list[Range]]:
    """Divide ranges into at most `task_count` tasks with about equal numbers of offsets; ranges may be cut."""
    tasks: list[list[Range]] = []
    left = sum(r.end - r.begin for r in ranges)
    room = 0
    for whole in ranges:
        begin = whole.begin
        while begin < whole.end:
            if not room:
                room = -(-left // max(1, task_count - len(tasks)))
                tasks.append([])
            end = min(whole.end, begin + room)
            tasks[-1].append(whole._replace(begin=begin, end=end))
            room -= end - begin
            left -= end - begin
            begin = end
    return tasks
