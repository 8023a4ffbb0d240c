"""Logs that end before the group's offset. Pure.

For a short time, this is no loss: a new leader may report an end that it has yet to catch up with, and the coordinator
needs a moment to set the offsets of a topic that was deleted and created again. So a log is reported after a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkrebalancer.protocol.fields import TopicPartition

PATIENCE_S = 10.0


class ShortLog(NamedTuple):
    """A log that ends before the position."""

    topic: str
    partition: int
    position: int
    end: int


class ShortLogs:
    """Remembers since when logs have been too short."""

    def __init__(self) -> None:
        """Begin without any."""
        self._since: dict[TopicPartition, float] = {}
        self._reported: set[TopicPartition] = set()

    def overdue(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        now_s: float,
        patience_s: float = PATIENCE_S,
    ) -> list[ShortLog]:
        """Return the logs that have been too short for `patience_s`, each once until it has grown.

        A log whose end is unknown stays what it was.
        """
        found: list[ShortLog] = []
        self._drop(self._since.keys() - positions.keys())
        for partition, position in sorted(positions.items()):
            end = ends.get(partition)
            if end is None:
                continue
            if position <= end:
                self._drop({partition})
            elif now_s - self._since.setdefault(partition, now_s) >= patience_s and partition not in self._reported:
                self._reported.add(partition)
                found.append(ShortLog(*partition, position, end))
        return found

    def _drop(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self._since.pop(partition, None)
        self._reported -= partitions
