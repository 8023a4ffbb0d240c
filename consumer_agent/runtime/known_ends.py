"""The ends of partitions, for the lag in a consumer's metrics. Pure: no thread, no clock, no client.

`metrics` must not wait for Kafka, and a lag that is not read should cost nothing. So each call of `metrics` lets the
machine thread ask for the ends at intervals, for some time.

The last offsets of a partition may have no record: a transaction's marker, or what it has aborted. No position gets
beyond them, so on a quiet topic they would look like unread records. Kafka's client shows where they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zkrebalancer.protocol.fields import TopicPartition

ASK_INTERVAL_MS = 10_000
WANTED_MS = 300_000  # since the last call of `metrics`
MAX_AGE_MS = 3 * ASK_INTERVAL_MS  # of an end; then it is not known: its partition may have many more records by now


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
        """Start without known ends."""
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # and when Kafka answered
        self._gaps: dict[TopicPartition, range] = {}  # the last offsets without a record, at the time of fetching
        self._wanted_until_ms = self._next_ms = 0

    def measure(self, positions: Mapping[TopicPartition, int], now_ms: int) -> Lag:
        """Return the lag of these positions, and keep the ends up to date for some time."""
        known = self.each(positions, now_ms).values()
        return Lag(sum(known), max(known, default=0), len(positions) - len(known))

    def each(self, positions: Mapping[TopicPartition, int], now_ms: int) -> dict[TopicPartition, int]:
        """Return the lag of each position whose end is known, and keep the ends up to date for some time.

        Offsets without a record are left out only if they are just before an end that the fetcher has reached.
        """
        self._wanted_until_ms = now_ms + WANTED_MS
        ends = {tp: end for tp, (end, at_ms) in self._ends.items() if now_ms - at_ms <= MAX_AGE_MS}
        return {tp: self._records_after(tp, at, ends[tp]) for tp, at in positions.items() if tp in ends}

    def _records_after(self, partition: TopicPartition, position: int, end: int) -> int:
        unread = range(position, max(position, end))
        gap = self._gaps.get(partition, range(0))
        return len(unread) - len(range(max(unread.start, gap.start), min(unread.stop, gap.stop)))

    def is_due(self, now_ms: int) -> bool:
        """Whether Kafka has to be asked now; then it is not due again for ASK_INTERVAL_MS."""
        if now_ms >= self._wanted_until_ms or now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + ASK_INTERVAL_MS
        return True

    def note(self, found: Mapping[TopicPartition, int | None], assigned: Iterable[TopicPartition], now_ms: int) -> None:
        """Note Kafka's answer of now; forget partitions that are no longer assigned."""
        self._ends.update((partition, (end, now_ms)) for partition, end in found.items() if end is not None)
        self._ends = {partition: self._ends[partition] for partition in assigned if partition in self._ends}

    def note_gap(self, partition: TopicPartition, gap: range) -> None:
        """Note that the fetcher reached the partition's end, and these offsets before it have no record."""
        before = self._gaps.get(partition, range(0))
        if gap:
            self._gaps[partition] = range(before.start if before.stop == gap.start else gap.start, gap.stop)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was fetched of partitions: when they are assigned again, their topics may be other ones."""
        for partition in partitions:
            self._gaps.pop(partition, None)
