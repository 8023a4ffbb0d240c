"""Partitions whose beginnings or stored offsets were not known in time: they are owned, and read later. Pure.

The stored offsets of some are unknown: Kafka does not report them, or the node in ZooKeeper may not be read. The others
have no stored offset, and their beginnings are unknown.
Nothing is read or committed of such a partition before the answer, and no other partition and no command waits for it.
A partition is dropped once it is no longer owned, so an answer never concerns a later start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from consumer_agent.membership.effects import EffectQueue, PlacePartitions, ReadKafkaOffsets, ResolveOffsets
from consumer_agent.membership.fenced_writes import WriteLane
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.membership.refused_reads import RefusedReads
from consumer_agent.membership.start import KAFKA_READ_LIMIT_MS, stored_offset
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.fields import TopicPartition

RETRY_MS = 2_000  # between an answer and the next question
TRIES = 5  # of a start, which has logged that an offset may not be read: the next pause is longer


@dataclass(slots=True)
class LateAnswers:
    """The owned partitions about which a question is open."""

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

    def is_due(self, now_ms: int) -> bool:
        """Whether Kafka is to be asked; if so, the next question is about all partitions."""
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return False
        self.retry_at_ms, self.asked, self.token = None, set(self.partitions), self.effects.token()
        return True

    def take(self, token: int) -> set[TopicPartition]:
        """Return what the question under way was about, if its answer has come."""
        if not self.token or token != self.token:
            return set()
        asked = self.asked
        self.token, self.asked, self.retry_at_ms = 0, set(), None
        self._retry_later()
        return asked

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Ask no more about these."""
        self.partitions.difference_update(partitions)
        self._retry_later()

    def _retry_later(self) -> None:
        if not self.partitions:
            self.token, self.retry_at_ms = 0, None
        elif not self.token and self.retry_at_ms is None:
            self.retry_at_ms = self.effects.now_ms + RETRY_MS


@dataclass(slots=True)
class LateBeginnings:
    """The owned partitions whose beginnings, or stored offsets, are not known yet."""

    effects: EffectQueue
    lane: WriteLane
    begins_anywhere: bool  # False: a partition without a stored offset waits for a seek of the application
    beginnings: LateAnswers = field(init=False)
    stored: LateAnswers = field(init=False)
    in_zookeeper: dict[TopicPartition, int] = field(default_factory=dict, init=False)  # stored there, of those
    hidden: dict[TopicPartition, int] = field(default_factory=dict, init=False)  # that ZooKeeper hides, by start
    refused: RefusedReads = field(init=False)
    starts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.beginnings, self.stored = LateAnswers(self.effects), LateAnswers(self.effects)
        self.refused = RefusedReads(self.effects, "", tries=TRIES)

    def add(
        self,
        unanswered: Collection[TopicPartition],
        unread: Mapping[TopicPartition, int],
        hidden: Collection[TopicPartition],
    ) -> None:
        """Ask where partitions begin that are owned from now on, and what is stored of others.

        `unread`: in Kafka, with their offsets in ZooKeeper, or NO_OFFSET; `hidden`: in ZooKeeper.
        """
        self.beginnings.add(unanswered)
        self.stored.add(unread)
        self.in_zookeeper.update(unread)
        self.starts += 1
        self.hidden.update(dict.fromkeys(hidden, self.starts))
        self.refused.told = self.refused.told.union(hidden)  # by their start
        if hidden and self.refused.retry_at_ms is None:
            self.refused.retry_at_ms = self.effects.now_ms + RETRY_MS

    def keep(self, owned: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""
        self.beginnings.keep(owned)
        self.stored.keep(owned)
        self._forget_others()
        if self.hidden:
            self.hidden = {tp: start for tp, start in self.hidden.items() if tp in owned}
            self.refused.told = self.refused.told.intersection(self.hidden)
            self._end_hidden()

    def handle_tick(self, now_ms: int) -> None:
        """Repeat the requests that are due."""
        if self.refused.take_due(now_ms):
            self.refused.tell_rest(self.hidden)
            for partition, start in sorted(self.hidden.items()):
                self.effects.request(Get(self._path(partition)), self._hidden_read, partition, start)
        if self.beginnings.retry_at_ms is not None and self.beginnings.is_due(now_ms):
            self.effects.add(ResolveOffsets(self.beginnings.token, frozenset(self.beginnings.asked)))
        if self.stored.retry_at_ms is not None and self.stored.is_due(now_ms):
            self.stored.retry_at_ms = now_ms + KAFKA_READ_LIMIT_MS
            self.effects.add(ReadKafkaOffsets(self.stored.token, frozenset(self.stored.asked)))

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Let the partitions begin that Kafka has answered about."""
        asked = self.beginnings.take(token)
        found = {tp: at for tp in sorted(asked) if (at := offsets.get(tp)) is not None}
        self.beginnings.end(found)
        if found:
            self.effects.add(PlacePartitions(found))

    def handle_read(self, token: int, found: Mapping[TopicPartition, tuple[int, str] | None] | None) -> None:
        """Let the partitions begin whose stored offsets Kafka has said, and ask where those without one begin."""
        asked = self.stored.take(token)
        if found is None:
            return
        known = {tp for tp in asked if found.get(tp, ()) is not None}
        read = {tp: one for tp in known if (one := found.get(tp)) is not None}
        in_kafka = self.lane.kafka_book.note_late(read)
        offsets = {tp: max(in_kafka.get(tp, NO_OFFSET), self.in_zookeeper[tp]) for tp in sorted(known)}
        self.stored.end(known)
        self._forget_others()
        self._place({tp: at for tp, at in offsets.items() if tp not in self.hidden})

    def _hidden_read(self, reply: Reply, partition: TopicPartition, start: int) -> None:
        """Let a partition begin whose stored offset may be read again; a commit made meanwhile is newer."""
        if self.hidden.get(partition) != start:
            return
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self.refused.note(Get(self._path(partition)), reply)
            return
        del self.hidden[partition]
        self._end_hidden()
        offset = stored_offset(self.effects, partition, reply.content) if isinstance(reply, Content) else None
        if partition not in self.lane.book.stored and (offset is not None or not isinstance(reply, Content)):
            self.lane.book.note_read(partition, offset)
        at = NO_OFFSET if offset is None else offset
        if partition in self.stored.partitions:
            self.in_zookeeper[partition] = at
        else:
            self._place({partition: max(at, self.lane.kafka_book.stored.get(partition, NO_OFFSET))})

    def _place(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Let partitions begin here, and find the beginnings of those without a stored offset."""
        without = {tp for tp, at in offsets.items() if at == NO_OFFSET and self.begins_anywhere}
        placed = {tp: at for tp, at in offsets.items() if tp not in without}
        if placed:
            self.effects.add(PlacePartitions(placed))
        self.beginnings.add(without)

    def _end_hidden(self) -> None:
        if not self.hidden:
            self.refused.retry_at_ms, self.refused.tries, self.refused.told = None, TRIES, frozenset()

    def _path(self, partition: TopicPartition) -> str:
        return paths.offsets(self.lane.book.group, *partition)

    def _forget_others(self) -> None:
        for partition in self.in_zookeeper.keys() - self.stored.partitions:
            del self.in_zookeeper[partition]
