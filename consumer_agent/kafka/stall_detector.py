"""Finds partitions that stay silent although Kafka has more records. Pure: no thread, no clock, no client.

After its broker was away, librdkafka may silently stop fetching a partition for good (its issue 5153; killing brokers
at random shows it). One check proves nothing, because records may be on their way. A partition is stuck if Kafka has
more records in two consecutive checks, and in between none came and the client got no further (`progress.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zkrebalancer.protocol.fields import TopicPartition


class StallDetector:
    """The next offset of each assigned partition, and the partitions that were not silent since the last check."""

    def __init__(self) -> None:
        """Begin with nothing assigned."""
        self._next: dict[TopicPartition, int] = {}  # the next offset that Kafka's client has to hand over
        self._heard: set[TopicPartition] = set()  # since the last check
        self._suspects: set[TopicPartition] = set()  # in the last check
        self._passed: dict[TopicPartition, int] = {}  # in the last check: how far the client was

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that these partitions are fetched, from these offsets on."""
        for partition, offset in positions.items():
            self.came(partition, offset)

    def unassigned(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions are no longer fetched."""
        for partition in partitions:
            self._next.pop(partition, None)

    def came(self, partition: TopicPartition, next_offset: int) -> None:
        """Note that records came; `next_offset` follows them."""
        self._next[partition] = next_offset
        self._heard.add(partition)

    def failed(self, partition: TopicPartition) -> None:
        """Note that Kafka's client reports an error of a partition: it fetches it, though nothing may ever come."""
        self._heard.add(partition)

    def ended(self, partition: TopicPartition, end: int) -> range:
        """Note that the end is reached; return the offsets before it that have no record, such as markers."""
        without_records = range(self._next.get(partition, end), end)
        self.came(partition, end)
        return without_records

    def look(self) -> frozenset[TopicPartition]:
        """Begin a check: return the partitions that were silent since the last one. Kafka's answer goes to `judge`."""
        silent = frozenset(self._next.keys() - self._heard)
        self._heard.clear()
        return silent

    def judge(
        self,
        ends: Mapping[TopicPartition, int | None],
        passed: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
    ) -> list[TopicPartition]:
        """Return the stuck partitions.

        `ends`: the offset after the last record in Kafka; None: unknown. `passed` tells how far the client is.
        """
        silent = self._next.keys() - self._heard
        behind = {tp for tp, end in ends.items() if end is not None and tp in silent and end > self._next[tp]}
        before, self._passed = self._passed, dict(passed(behind)) if behind else {}
        still = {tp for tp in behind if self._passed.get(tp, -1) <= max(before.get(tp, -1), self._next[tp])}
        stuck, self._suspects = sorted(still & self._suspects), still
        return stuck
