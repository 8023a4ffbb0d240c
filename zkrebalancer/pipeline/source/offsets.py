"""The ranges that a batch reads, and how Spark stores them in its checkpoint. Pure.

The end offset of a batch holds its ranges completely:

    {"orders": {"0": {"from": 50, "to": 100, "generation": 7, "identity": "…", "life": 0}}}

The end offset of the batch before does not suffice as a start: a partition may come from another member, at a position
where no batch of this query ended. And a batch repeated after a restart must read the same records without asking the
group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from consumer_agent.spark import equal_shares
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

Document = dict[str, dict[str, dict[str, Any]]]


class CheckpointError(RebalancerError):
    """The checkpoint's offsets were not written by this source."""


class Range(NamedTuple):
    """Offsets [begin, end) of one partition."""

    topic: str
    partition: int
    begin: int
    end: int
    generation: int | None  # under which it is owned; None in a batch query
    identity: str = ""  # the topic's incarnation, "" if it is unknown
    life: int = 0  # how often an operator has set the group's offsets


def encode(ranges: Iterable[Range]) -> Document:
    """Return the end offset of a batch that reads these ranges."""
    return {
        topic: {str(r.partition): _encoded(r) for r in of_topic}
        for topic, of_topic in groupby(sorted(ranges), key=lambda r: r.topic)
    }


def _encoded(one: Range) -> dict[str, Any]:
    origin = {"identity": one.identity, "life": one.life}
    known = {name: value for name, value in origin.items() if value}
    return {"from": one.begin, "to": one.end, "generation": one.generation or 0, **known}


def parse(line: str) -> list[Range]:
    """Return the ranges of the batch with this end offset as JSON; raises CheckpointError."""
    try:
        return decode(json.loads(line))
    except ValueError:
        raise CheckpointError(f"the checkpoint has offsets of another source: {line:.200}") from None


def decode(document: Any) -> list[Range]:  # noqa: ANN401  # unchecked JSON
    """Return the ranges of the batch with this end offset; raises CheckpointError."""
    try:
        return [
            _decoded(topic, int(partition), held)
            for topic, partitions in document.items()
            for partition, held in partitions.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        text = f"the checkpoint has offsets of another source: {document!r:.200}"
        raise CheckpointError(text) from None


def _decoded(topic: str, partition: int, held: Mapping[str, Any]) -> Range:
    origin = str(held.get("identity", "")), int(held.get("life", 0))  # an earlier version did not write them
    return Range(topic, partition, int(held["from"]), int(held["to"]), int(held["generation"]), *origin)


def unread(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    targets: Mapping[TopicPartition, int] | None,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the begin and the end of what is left to read of each partition with a position.

    `ends`: of the logs, as far as Kafka reports them. `targets`: ends that must not be passed, None for none. A
    partition whose log end is unknown waits, but with targets it is read to its target: the query ends when nothing is
    left.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    for partition, begin in sorted(positions.items()):
        target = None if targets is None else targets.get(partition, 0)
        known = [end for end in (ends.get(partition), target) if end is not None]
        if known and begin < min(known):
            found[partition] = begin, min(known)
    return found


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
