"""A thread that keeps a run's picture up to date, even while the run itself blocks."""

from __future__ import annotations

import threading
from pathlib import Path

from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.repeating import Repeating
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.rebalances import UNDER_WAY, Rebalance
from zkrebalancer.protocol.fields import TopicPartition

POLL_INTERVAL_S = 0.1


class Watch(Repeating):
    """Applies new events to `picture`; hold `lock` while reading it. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Watch a folder of event files, which must exist."""
        super().__init__(self.look, POLL_INTERVAL_S)
        self.picture = Picture()
        self.lock = threading.Lock()
        self._tail = EventTail(directory)
        self._returned: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Apply new events now."""
        with self.lock:
            for event in self._tail.read():
                self.picture.apply(event)

    def new_rebalances(self) -> list[Rebalance]:
        """Return the rebalances that have ended since the last call."""
        with self.lock:
            ended = [rebalance for rebalance in self.picture.rebalances if rebalance.outcome != UNDER_WAY]
            new = [rebalance for rebalance in ended if (rebalance.group, rebalance.generation) not in self._returned]
            self._returned.update((rebalance.group, rebalance.generation) for rebalance in new)
        return new

    def records_behind(self, group: str) -> int:
        """Return how many produced records were not yet delivered to a group."""
        self.look()
        with self.lock:
            return self.picture.behind(group)

    def produced(self) -> dict[TopicPartition, int]:
        """Return the end of every partition: the offset after its last produced record."""
        self.look()
        with self.lock:
            return dict(self.picture.produced)
