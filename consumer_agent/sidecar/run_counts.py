"""Counts of what an agent has done; its thread writes them, others may read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumer_agent.records import Batch
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(slots=True)
class RunCounts:
    """An agent's counts, and the state of its child."""

    records: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    has_child: bool = False
    is_child_running: bool = False
    in_flight: int = 0
    restarts: int = 0
    failures: int = 0
    dead_letters: int = 0

    def add(self, batch: Batch) -> None:
        """Count the records of a poll."""
        self.records += len(batch)
        self.partitions.update(batch.by_partition())
