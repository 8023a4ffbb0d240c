"""Where partitions begin for which Kafka gave no answer in time: they are owned already, and asked about aside. Pure.

Nothing is read or committed of such a partition before the answer, and no other partition and no command waits for it.
A partition is dropped once it is no longer owned, so an answer never concerns a later start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from consumer_agent.membership.effects import EffectQueue, PlacePartitions, ResolveOffsets
from zkrebalancer.protocol.fields import TopicPartition

RETRY_MS = 2_000  # between an answer and the next question


@dataclass(slots=True)
class LateBeginnings:
    """The owned partitions whose beginnings are not known yet."""

    effects: EffectQueue
    partitions: set[TopicPartition] = field(default_factory=set, init=False)
    asked: set[TopicPartition] = field(default_factory=set, init=False)  # of them, in the question under way
    token: int = field(default=0, init=False)  # 0: no question is under way
    retry_at_ms: int | None = field(default=None, init=False)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Ask about partitions that are owned from now on."""
        if partitions:
            self.partitions.update(partitions)
            self._retry_later()

    def keep(self, owned: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""
        if self.partitions:
            self.partitions.intersection_update(owned)
            self.asked.intersection_update(owned)
            self._retry_later()

    def handle_tick(self, now_ms: int) -> None:
        """Ask Kafka again when that is due."""
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return
        self.retry_at_ms, self.asked, self.token = None, set(self.partitions), self.effects.token()
        self.effects.add(ResolveOffsets(self.token, frozenset(self.asked)))

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Let the partitions begin that Kafka has answered about."""
        if not self.token or token != self.token:
            return
        found = {tp: at for tp in sorted(self.asked) if (at := offsets.get(tp)) is not None}
        self.token, self.asked = 0, set()
        self.partitions.difference_update(found)
        if found:
            self.effects.add(PlacePartitions(found))
        self._retry_later()

    def _retry_later(self) -> None:
        if not self.partitions:
            self.retry_at_ms = None
        elif not self.token and self.retry_at_ms is None:
            self.retry_at_ms = self.effects.now_ms + RETRY_MS
