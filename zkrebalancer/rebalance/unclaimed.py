"""Partitions that may wait for static members whose nodes a new leader may not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """The partitions that had no holder when a leader read the group first: any static member may have had them."""

    held: frozenset[TopicPartition]  # the others
    counts: Mapping[str, int]  # of the partitions of each topic at that time
    until_us: int  # by then, every grace is over

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition[1] < self.counts.get(partition[0], 0) and partition not in self.held
