"""What a batch reads, and how Spark keeps it in its checkpoint. Pure.

The end of a batch says all of it, whatever its start is: `{"orders": {"0": {"from": 50, "to": 100, "generation": 7}}}`.
For a partition may come from another member, with a position that no batch of this query has ever ended at; and a batch
that Spark repeats after a restart has to read the same again, with nobody to ask.
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
    """What a checkpoint has as the offsets of this source was not written by it."""


class Range(NamedTuple):
    """Offsets of one partition: `begin` is the first, `end` follows the last."""

    topic: str
    partition: int
    begin: int
    end: int
    generation: int | None  # under which it is owned; None: by nobody, in a batch query


def encode(ranges: Iterable[Range]) -> Document:
    """Return what Spark keeps as the end of a batch that reads these ranges."""
    return {
        topic: {str(r.partition): {"from": r.begin, "to": r.end, "generation": r.generation or 0} for r in of_topic}
        for topic, of_topic in groupby(sorted(ranges), key=lambda r: r.topic)
    }


def decode(document: Any) -> list[Range]:  # noqa: ANN401  # what stands in a checkpoint
    """Return the ranges of a batch with this end; raises CheckpointError."""
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
    """Return up to where to read of each partition (begin, end of the log), `limit` offsets together at most.

    Every partition gets the same share; what some cannot fill goes to the others. If there are more partitions than
    `limit`, they take turns, `turn` being the number of the batch: none waits for the others to be read to their ends.
    """
    served = list(open_ranges)
    if limit < len(served):
        served = [served[(turn * limit + number) % len(served)] for number in range(limit)]
    begins = [open_ranges[partition][0] for partition in served]
    shares = equal_shares([open_ranges[p][1] - begin for p, begin in zip(served, begins, strict=True)], limit)
    return {partition: begin + share for partition, begin, share in zip(served, begins, shares, strict=True)}


def split(ranges: Sequence[Range], task_count: int) -> list[list[Range]]:
    """Divide ranges into at most so many tasks with about equally many offsets; a range may be cut."""
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
