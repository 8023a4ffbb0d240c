"""Commits outside of acks: the application's and the automatic ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from consumer_agent.membership.effects import CommitFinished, EffectQueue, ReadProgress, TellStored
from consumer_agent.membership.events import Position
from consumer_agent.membership.fenced_writes import Outcome, WriteLane
from zkrebalancer.protocol.fields import TopicPartition

KAFKA_REFRESH_MS = 3_600_000  # Kafka deletes offsets that were not written for days


class Commits:
    """One commit at a time; requests that arrive meanwhile are merged into the next one."""

    def __init__(self, effects: EffectQueue, lane: WriteLane, auto_commit_interval_ms: int | None, now_ms: int) -> None:
        """Start with nothing to commit; without an interval, only the application commits."""
        self._effects = effects
        self._lane = lane
        self._interval_ms = auto_commit_interval_ms
        self._next_auto_ms = now_ms + (auto_commit_interval_ms or 0)
        self._next_refresh_ms = now_ms + KAFKA_REFRESH_MS
        self._is_due = False
        self._waiting: list[int] = []  # the application's, for the next commit
        self._under_way: tuple[int, ...] = ()
        self.left_out: str | None = None  # why offsets are not stored that were final while the next commit waited
        self.progress_token: int | None = None  # set while a commit waits for positions, with the lane kept free

    @property
    def tokens(self) -> tuple[int, ...]:
        """All commits that the application has requested."""
        return (*self._under_way, *self._waiting)

    @property
    def is_wanted(self) -> bool:
        """Whether there may be something to commit."""
        return bool(self._waiting) or self._is_due

    def wake_at_ms(self) -> int | None:
        """Return when `handle_tick` has work to do."""
        times = [self._next_auto_ms] if self._interval_ms is not None else []
        return min([*times, self._next_refresh_ms] if self._lane.storage.in_kafka else times, default=None)

    def handle_tick(self, now_ms: int) -> None:
        """Note whether an automatic commit is due, or offsets in Kafka have to be refreshed."""
        if self._interval_ms is not None and now_ms >= self._next_auto_ms:
            self._is_due, self._next_auto_ms = True, now_ms + self._interval_ms
        if self._lane.storage.in_kafka and now_ms >= self._next_refresh_ms:
            self._lane.kafka_book.stale.update(self._lane.kafka_book.stored)
            self._is_due, self._next_refresh_ms = True, now_ms + KAFKA_REFRESH_MS

    def handle_requested(self, token: int) -> None:
        """Note that the application requests a commit."""
        self._waiting.append(token)

    def handle_given_up(self, failure: str | None) -> None:
        """Note that partitions are given up, and why their offsets are not stored: a commit that waits fails."""
        if self._waiting:
            self.left_out = self.left_out or failure

    def begin(self) -> None:
        """Read the positions; the lane is free."""
        self._under_way, self._waiting = tuple(self._waiting), []
        self._is_due = False
        self.progress_token = self._effects.token()
        self._effects.add(ReadProgress(self.progress_token))

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """Write what is finished."""
        if token != self.progress_token:
            return
        self.progress_token = None
        owned = self._lane.record.partitions
        finished = {partition: position.finished for partition, position in positions.items() if partition in owned}
        changed = self._lane.changed(finished)
        if changed:
            self._lane.begin(self, changed, failpoint="commit")
        else:
            self._end(None)

    def handle_outcome(self, _outcome: Outcome) -> None:
        """Note that the offsets are stored, except those that Kafka did not store."""
        self._end(self._lane.failure)

    def _end(self, error: str | None) -> None:
        if self._under_way:
            self._effects.add(CommitFinished(self._under_way, error or self.left_out))
            self._under_way, self.left_out = (), None

    def tell_stored(
        self,
        token: int,
        partitions: frozenset[TopicPartition] | None,
        unread: Collection[TopicPartition] = (),
        hidden: Collection[TopicPartition] = (),
    ) -> None:
        """Answer a request for stored offsets. Not known: those of `unread` in Kafka, of `hidden` in ZooKeeper."""
        owned = self._lane.record.partitions.keys()
        asked = sorted(owned if partitions is None else partitions)
        foreign = [f"{topic}/{number}" for topic, number in asked if (topic, number) not in owned]
        unknown = [f"{tp[0]}/{tp[1]}" for tp in asked if tp in unread and tp not in self._lane.kafka_book.stored]
        error = f"{foreign[0]} is not assigned to this consumer" if foreign else None
        error = error or (f"Kafka does not say what is stored of {unknown[0]}" if unknown else None)
        unseen = [f"{tp[0]}/{tp[1]}" for tp in asked if tp in hidden and tp not in self._lane.book.stored]
        error = error or (f"ZooKeeper does not let it be read what is stored of {unseen[0]}" if unseen else None)
        self._effects.add(TellStored(token, {tp: self._lane.stored(tp) for tp in asked}, error))
