"""Follows a running campaign by its events: the leader, read offsets, and how long partitions had no owner."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zkrebalancer.experiments.picture import Picture, client_of
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.fields import TopicPartition

GroupPartition = tuple[str, TopicPartition]


@dataclass(slots=True)
class OwnerGaps:
    """Measures how long partitions had no owner that could serve them. Pure.

    A partition is free from its owner's stop, or from the moment its owner was killed or suspended, until the next
    start. Times are microseconds of the monotonic clock.
    """

    owners: dict[GroupPartition, str] = field(default_factory=dict)
    free_since_us: dict[GroupPartition, int] = field(default_factory=dict)
    abandoned_by: dict[GroupPartition, str] = field(default_factory=dict)  # free while its owner is suspended
    longest_us: int = 0

    def begin(self) -> None:
        """Start a new measurement; partitions already free count from when they became free."""
        self.longest_us = 0

    def apply(self, event: Event) -> None:
        """Handle an event; irrelevant kinds are ignored."""
        kind = event["kind"]
        if kind in {"fetcher_started", "fetcher_stopped"}:
            for number in event["partitions"]:
                partition = (event["group"], (event["topic"], number))
                if kind == "fetcher_started":
                    self._start(partition, event["member"], event["mono_us"])
                elif self.owners.get(partition) == event["member"]:
                    self._free(partition, event["mono_us"])
        elif kind == "ownership_ended":
            ended = [p for p, owner in self.abandoned_by.items() if owner == event["member"]]
            for partition in ended:
                del self.abandoned_by[partition]
            self._free_all([p for p, owner in self.owners.items() if owner == event["member"]], event["mono_us"])
        elif kind == "topic_deleted":
            for partitions in (self.owners, self.free_since_us, self.abandoned_by):
                for partition in [partition for partition in partitions if partition[1][0] == event["topic"]]:
                    del partitions[partition]

    def abandoned(self, client_id: str, at_us: int) -> None:
        """Note that a process was killed or suspended: its partitions are free."""
        partitions = {p: owner for p, owner in self.owners.items() if client_of(owner) == client_id}
        self._free_all(partitions, at_us)
        self.abandoned_by |= partitions

    def returned(self, client_id: str, at_us: int) -> None:
        """Note that a process was resumed: the partitions that it still owns are no longer free."""
        for partition, owner in list(self.abandoned_by.items()):
            if client_of(owner) == client_id:
                self._start(partition, owner, at_us)

    def _start(self, partition: GroupPartition, member: str, at_us: int) -> None:
        self.abandoned_by.pop(partition, None)
        free_since_us = self.free_since_us.pop(partition, None)
        if free_since_us is not None:
            self.longest_us = max(self.longest_us, at_us - free_since_us)
        self.owners[partition] = member

    def _free_all(self, partitions: Iterable[GroupPartition], at_us: int) -> None:
        for partition in partitions:
            self._free(partition, at_us)

    def _free(self, partition: GroupPartition, at_us: int) -> None:
        del self.owners[partition]
        self.free_since_us[partition] = at_us


class Watcher:
    """Follows the events of a run."""

    def __init__(self, events: Path) -> None:
        """Follow a folder of event files."""
        self.picture = Picture()
        self.gaps = OwnerGaps()
        self._tail = EventTail(events)

    def look(self) -> None:
        """Handle the events since the last look."""
        for event in self._tail.read():
            self.picture.apply(event)
            self.gaps.apply(event)

    def abandoned(self, name: str) -> None:
        """Note that a process is about to be killed or suspended."""
        self.look()
        self.gaps.abandoned(name, time.monotonic_ns() // 1_000)

    def returned(self, name: str) -> None:
        """Note that a suspended process is about to resume."""
        self.look()
        self.gaps.returned(name, time.monotonic_ns() // 1_000)

    def leader(self, group: str) -> str | None:
        """Return the last elected leader of a group's shard, None if it has resigned."""
        self.look()
        leader = self.picture.leader_of(group)
        return None if leader is None else f"coordinator-{leader}"

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the end offset of each written partition of these topics."""
        self.look()
        return {partition: end for partition, end in self.picture.produced.items() if partition[0] in topics}

    def has_read(self, group: str, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether a group has read everything below these offsets."""
        self.look()
        delivered = self.picture.group(group).delivered
        return all(delivered.get(partition, 0) >= end for partition, end in ends.items())
