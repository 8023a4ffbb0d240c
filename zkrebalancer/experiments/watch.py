"""A thread that keeps a run's picture up to date, also while the run itself is busy waiting."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.rebalances import UNDER_WAY, Rebalance
from zkrebalancer.protocol.fields import TopicPartition

POLL_INTERVAL_S = 0.1


class Watch:
    """Reads new events into `picture`; hold `lock` while looking at it. A context manager."""

    def __init__(self, directory: Path) -> None:
        """Watch a folder of event files, which must exist."""
        self.picture = Picture()
        self.lock = threading.Lock()
        self._tail = EventTail(directory)
        self._told: set[tuple[str, int]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Read what is new now."""
        with self.lock:
            for event in self._tail.read():
                self.picture.apply(event)

    def new_rebalances(self) -> list[Rebalance]:
        """Return those that have ended since the last call."""
        with self.lock:
            ended = [rebalance for rebalance in self.picture.rebalances if rebalance.outcome != UNDER_WAY]
            new = [rebalance for rebalance in ended if (rebalance.group, rebalance.generation) not in self._told]
            self._told.update((rebalance.group, rebalance.generation) for rebalance in new)
        return new

    def records_behind(self, group: str) -> int:
        """Return how many produced records a group was not given yet."""
        self.look()
        with self.lock:
            return self.picture.behind(group)

    def produced(self) -> dict[TopicPartition, int]:
        """Return the end of every partition: the offset after the last produced record."""
        self.look()
        with self.lock:
            return dict(self.picture.produced)

    def _run(self) -> None:
        while not self._ended.wait(POLL_INTERVAL_S):
            self.look()
