"""The ends of partitions, for the lag in a consumer's metrics. Pure: no thread, no clock, no client.

`metrics` must not wait for Kafka, and a lag that is not read should cost nothing. So each call of `metrics` lets the
machine thread ask for the ends at intervals, for some time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zkrebalancer.protocol.fields import TopicPartition

ASK_INTERVAL_MS = 10_000
WANTED_MS = 300_000  # since the last call of `metrics`


class Lag(NamedTuple):
    """Metrics: records from the positions to the ends, in sum and of the partition that is farthest behind.

    `unmeasured_partitions` are left out, as their end is not known.
    """

    lag_records: int
    lag_records_max: int
    unmeasured_partitions: int


class KnownEnds:
    """The offsets after the last records, as far as Kafka has answered."""

    def __init__(self) -> None:
        """Begin knowing nothing."""
        self._ends: dict[TopicPartition, int] = {}
        self._wanted_until_ms = self._next_ms = 0

    def measure(self, positions: Mapping[TopicPartition, int], now_ms: int) -> Lag:
        """Return the lag of these positions, and keep the ends up to date for some time."""
        known = self.each(positions, now_ms).values()
        return Lag(sum(known), max(known, default=0), len(positions) - len(known))

    def each(self, positions: Mapping[TopicPartition, int], now_ms: int) -> dict[TopicPartition, int]:
        """Return the lag of each position whose end is known, and keep the ends up to date for some time."""
        self._wanted_until_ms = now_ms + WANTED_MS
        return {tp: max(0, self._ends[tp] - position) for tp, position in positions.items() if tp in self._ends}

    def is_due(self, now_ms: int) -> bool:
        """Whether Kafka has to be asked now; then it is not due again for ASK_INTERVAL_MS."""
        if now_ms >= self._wanted_until_ms or now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + ASK_INTERVAL_MS
        return True

    def note(self, found: Mapping[TopicPartition, int | None], assigned: Iterable[TopicPartition]) -> None:
        """Note Kafka's answer; forget partitions that are no longer assigned."""
        self._ends.update((partition, end) for partition, end in found.items() if end is not None)
        self._ends = {partition: self._ends[partition] for partition in assigned if partition in self._ends}
