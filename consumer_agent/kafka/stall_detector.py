"""Finds partitions that stay silent although Kafka has more records. Pure: no thread, no clock, no client.

librdkafka may stop fetching a partition for good after its broker was away (its issue 5153; killing brokers at random
shows it), without an error. One look proves nothing, as records may be on their way: a partition is stuck if at two
looks in a row Kafka had more, and nothing came in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zkrebalancer.protocol.fields import TopicPartition


class StallDetector:
    """How far each assigned partition has come, and which were silent since the last look."""

    def __init__(self) -> None:
        """Begin with nothing assigned."""
        self._next: dict[TopicPartition, int] = {}  # the offset that Kafka's client has to hand over next
        self._heard: set[TopicPartition] = set()  # since the last look
        self._suspects: set[TopicPartition] = set()  # at the last look

    def assigned(self, positions: Mapping[TopicPartition, int]) -> None:
        """These partitions are fetched from these offsets on."""
        for partition, offset in positions.items():
            self.came(partition, offset)

    def unassigned(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are not fetched any more."""
        for partition in partitions:
            self._next.pop(partition, None)

    def came(self, partition: TopicPartition, next_offset: int) -> None:
        """Records came, or word that the end is reached; `next_offset` follows them."""
        self._next[partition] = next_offset
        self._heard.add(partition)

    def look(self) -> frozenset[TopicPartition]:
        """Return the partitions that were silent since the last look; `judge` follows when Kafka has answered."""
        silent = frozenset(self._next.keys() - self._heard)
        self._heard.clear()
        return silent

    def judge(self, ends: Mapping[TopicPartition, int | None]) -> list[TopicPartition]:
        """Return those of the silent that are stuck; `ends`: the offset after Kafka's last record, None: not known."""
        silent = self._next.keys() - self._heard
        behind = {tp for tp, end in ends.items() if end is not None and tp in silent and end > self._next[tp]}
        stuck, self._suspects = sorted(behind & self._suspects), behind
        return stuck
