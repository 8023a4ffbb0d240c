"""A start-fetcher, from the command to its ack. Pure.

Reads the stored offsets, asks Kafka where the others begin, and acknowledges. Nothing is emitted before the ack.
If both stores have an offset, the higher one wins: each was finished once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from consumer_agent.membership.duties import NO_DUTIES, Duties
from consumer_agent.membership.effects import (
    EffectQueue,
    ReadKafkaOffsets,
    RecordFetcher,
    ResolveOffsets,
    StartFetching,
    TellAssigned,
    TellOrigins,
    Warn,
)
from consumer_agent.membership.events import Origin
from consumer_agent.membership.fenced_writes import Outcome, WriteLane
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.membership.refused_reads import RefusedReads, partitions_text
from consumer_agent.membership.stages import Stage
from zkrebalancer.protocol import cluster_nodes, offset_lives, paths
from zkrebalancer.protocol.calls import Content, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition

MAX_OFFSET_READS = 1_000  # in flight at once
MIN_RESOLVE_RETRY_MS = 50  # short, because a topic is in ZooKeeper a moment before the brokers know it
MAX_RESOLVE_RETRY_MS = 2_000
RESOLVE_LIMIT_MS = 2_000  # then partitions that Kafka says nothing about are owned, and wait alone
UNREAD_LIMIT_MS = 2_000  # the same, of those whose stored offsets it does not say, or ZooKeeper does not show
KAFKA_READ_LIMIT_MS = 8_000  # for any answer, which arrives within 5 s unless Kafka's client hangs
UNREAD = "Kafka does not say what is stored; asking again"
UNPLACED = "Kafka does not say where it begins; asking again"


@dataclass(slots=True)
class Start:
    """One start-fetcher being handled."""

    effects: EffectQueue
    lane: WriteLane
    group: str
    consumer: str
    name: str
    command: StartFetcher
    begins_anywhere: bool = True  # False: a partition without a stored offset is not fetched
    duties: Duties = NO_DUTIES
    stage: Stage = Stage.READING
    partitions: frozenset[TopicPartition] = frozenset()  # those that are not owned already
    unread: list[TopicPartition] = field(default_factory=list)
    reading: set[TopicPartition] = field(default_factory=set)
    hidden: set[TopicPartition] = field(default_factory=set)  # whose offsets in ZooKeeper may not be read
    hidden_since_ms: int | None = None  # when the first one was refused
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    unmarked: set[str] = field(default_factory=set)  # topics whose mark is being read, for offsets in Kafka or a region
    undated: set[str] = field(default_factory=set)  # topics whose lives are being read, for a region
    lives: dict[TopicPartition, int] = field(default_factory=dict)
    odd_marks: dict[str, str] = field(default_factory=dict)  # of these topics, marks that no coordinator has written
    awaits_kafka: bool = False
    kafka_token: int = 0
    kafka_found: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    unread_in_kafka: frozenset[TopicPartition] = frozenset()  # what it has not said yet
    unread_since_ms: int | None = None  # when it first said less than all
    late: dict[TopicPartition, int] = field(default_factory=dict)  # what it has not said in time; offsets in ZooKeeper
    copyless: frozenset[TopicPartition] = frozenset()  # nothing is stored of these, so there is no copy
    token: int = 0
    retry_at_ms: int | None = None
    retry_delay_ms: int = MIN_RESOLVE_RETRY_MS
    asked_since_ms: int | None = None  # when Kafka was first asked where partitions begin
    unanswered: frozenset[TopicPartition] = frozenset()  # those that it has not answered about in time
    told_stage: Stage | None = None  # whose wait was told
    refused: RefusedReads = field(init=False)

    def __post_init__(self) -> None:
        self.refused = RefusedReads(self.effects, self.consumer)

    @property
    def wake_at_ms(self) -> int | None:
        """When `handle_tick` has something to do."""
        return min((at for at in (self.retry_at_ms, self.refused.retry_at_ms) if at is not None), default=None)

    def begin(self) -> None:
        """Read the stored offsets of new partitions."""
        self.partitions = frozenset(self.command.partitions) - frozenset(self.lane.record.partitions)
        if self.lane.storage.in_zookeeper:
            self.unread = sorted(self.partitions, reverse=True)
        if self.lane.storage.in_kafka or self.duties.tells_origins:
            self.unmarked = {topic for topic, _number in self.partitions}
            self.undated = set(self.unmarked) if self.duties.tells_origins else set()
            self._read_marks()
        if self.lane.storage.in_kafka and self.partitions:
            self.unread_in_kafka = self.partitions
            self._read_kafka()
        self._read()

    def handle_connected(self) -> None:
        """Repeat the reads that the broken connection interrupted; the lane finds out the outcome of the ack."""
        if self.stage is Stage.READING:
            self._read_marks()
            self._read()

    def _mark_read(self, reply: Reply, path: str) -> None:
        """Note the incarnation of the group's offsets: by their mark, or by the record that only coordinators write.

        The record decides if no coordinator has written the mark.
        """
        topic = path.rpartition("/")[2]
        if self.stage is not Stage.READING or topic not in self.unmarked or path != self._mark_path(topic):
            return
        if _is_unexpected(reply):
            self.refused.note(Get(path), reply)
        elif isinstance(reply, Refused) and reply.outcome_unknown:
            if self.lane.connected:
                self._read_mark(topic)
        elif topic in self.odd_marks:
            self._note_mark(topic, _mark(reply) or self.odd_marks[topic])
        elif cluster_nodes.names_creation(_mark(reply)):
            self._note_mark(topic, _mark(reply))
        else:
            self.odd_marks[topic] = _mark(reply)
            self._read_mark(topic)

    def _note_mark(self, topic: str, mark: str) -> None:
        self.unmarked.discard(topic)
        self.lane.kafka_book.marks[topic] = mark
        self._read()

    def _lives_read(self, reply: Reply, topic: str) -> None:
        """Note how often an operator has set the offsets of a topic."""
        if self.stage is not Stage.READING or topic not in self.undated:
            return
        if _is_unexpected(reply):
            self.refused.note(Get(paths.lives(self.group, topic)), reply)
        elif isinstance(reply, Refused) and reply.outcome_unknown:
            if self.lane.connected:
                self._read_lives(topic)
        else:
            self.undated.discard(topic)
            if isinstance(reply, Content):
                self._note_lives(topic, reply.content)
            self._read()

    def _note_lives(self, topic: str, content: bytes) -> None:
        try:
            self.lives |= {(topic, number): life for number, life in offset_lives.decode(content).items()}
        except NodeContentError as error:
            self.effects.add(Warn(f"{topic}: {error}; it is ignored, and its sink continues at its own offsets"))

    def handle_kafka_offsets(
        self, token: int, found: Mapping[TopicPartition, tuple[int, str] | None] | None, now_ms: int
    ) -> None:
        """Note the offsets in Kafka; without an answer, request them again. What some lack is told after a while."""
        if token != self.kafka_token or self.stage is not Stage.READING or not self.awaits_kafka:
            return
        if found is None and self.unread_in_kafka == self.partitions:
            self._wait(now_ms, UNREAD)
            return
        self._note_found(dict.fromkeys(self.unread_in_kafka) if found is None else found)
        if self.unread_in_kafka and self.unread_since_ms is None:
            self.unread_since_ms = now_ms
        waited_ms = now_ms - (now_ms if self.unread_since_ms is None else self.unread_since_ms)
        if self.unread_in_kafka:
            text = partitions_text(self.unread_in_kafka, UNREAD)
            if self.duties.in_region or waited_ms < UNREAD_LIMIT_MS:
                self._wait(now_ms, text)
                return
            self.effects.add(Warn(text))
        self.awaits_kafka, self.retry_at_ms = False, None
        self._read()

    def _note_found(self, found: Mapping[TopicPartition, tuple[int, str] | None]) -> None:
        self.kafka_found |= {tp: one for tp, one in found.items() if one is not None}
        self.unread_in_kafka = frozenset(tp for tp, one in found.items() if one is None)

    def _offset_read(self, reply: Reply, partition: TopicPartition) -> None:
        """Note a stored offset, or repeat an interrupted read."""
        if self.stage is not Stage.READING or partition not in self.reading:
            return
        self.reading.discard(partition)
        if isinstance(reply, Refused) and reply.outcome_unknown:
            self.unread.append(partition)
            if not self.lane.connected:
                return
        elif isinstance(reply, Content):
            self._note_offset(partition, reply.content)
        elif _is_unexpected(reply):
            if not self.refused.tries:  # `note` names it
                self.refused.told = frozenset({partition})
            self.hidden.add(partition)
            self.hidden_since_ms = self.effects.now_ms if self.hidden_since_ms is None else self.hidden_since_ms
            self.refused.note(Get(paths.offsets(self.group, *partition)), reply)
        else:
            self.lane.book.note_read(partition, None)
        self._read()

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        """Note where partitions without a stored offset begin."""
        if self.stage is not Stage.RESOLVING or token != self.token:
            return
        self.offsets.update({partition: offset for partition, offset in offsets.items() if offset is not None})
        missing = self.partitions - self.offsets.keys()
        waited_ms = now_ms - (now_ms if self.asked_since_ms is None else self.asked_since_ms)
        if missing and (self.duties.in_region or waited_ms < RESOLVE_LIMIT_MS):
            self.stage = Stage.PAUSING
            self._wait(now_ms, partitions_text(missing, UNPLACED))
            return
        if missing:
            self.effects.add(*(() if self.told_stage is Stage.PAUSING else (Warn(partitions_text(missing, UNPLACED)),)))
            self.offsets.update(dict.fromkeys(missing, NO_OFFSET))
        self.unanswered, self.stage = missing, Stage.READY

    def handle_tick(self, now_ms: int) -> None:
        """Ask ZooKeeper or Kafka again when that is due."""
        if self.refused.take_due(now_ms) and self.stage is Stage.READING:
            if not (self.reading or self.unread):
                self.refused.tell_rest(self.hidden)
            self.unread = [*sorted(self.hidden, reverse=True), *self.unread]  # after the others
            self.hidden.clear()
            self._read_marks()
            self._read()
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return
        self.retry_at_ms = None
        if self.stage is Stage.PAUSING:
            self._resolve()
        elif self.stage is Stage.READING and self.awaits_kafka:
            self._read_kafka()

    def begin_ack(self) -> None:
        """Write the ack, once the lane is free."""
        self.stage = Stage.WRITING
        self.lane.acknowledge(self, self.name, self.command, {}, "ack")

    def handle_outcome(self, outcome: Outcome) -> None:
        """Start to emit if the ack is written; drop the command if it was cancelled."""
        if outcome is Outcome.CANCELLED:
            self.handle_cancelled()
            return
        self.stage = Stage.OVER
        if self.partitions and self.duties.tells_origins:
            marks, lives = self.lane.kafka_book.marks, self.lives
            self.effects.add(
                TellOrigins({tp: Origin(marks.get(tp[0], ""), lives.get(tp, 0)) for tp in self.partitions})
            )
        if self.partitions:
            late = frozenset(self.hidden.union(self.late))
            self.effects.add(
                RecordFetcher(
                    "fetcher_started",
                    self.consumer,
                    self.command.generation,
                    self.command.cause.id,
                    dict(self.offsets),
                    late_ms=self.lane.learned_late_ms(),
                    command_id=self.command.command_id,
                ),
                TellAssigned(self.partitions),
                StartFetching(dict(self.offsets), self.command.generation, self._threads(), late, self.copyless),
            )

    def _threads(self) -> dict[TopicPartition, int]:
        return {partition: thread for partition, thread in self.command.partitions.items() if thread}

    def handle_cancelled(self) -> None:
        """Drop the start, and what it has read."""
        self.stage = Stage.OVER
        self.lane.forget_others()

    def _read(self) -> None:
        while self.unread and len(self.reading) < MAX_OFFSET_READS:
            partition = self.unread.pop()
            self.reading.add(partition)
            self.effects.request(Get(paths.offsets(self.group, *partition)), self._offset_read, partition)
        if not (self.reading or self.unread or self._awaits_topics or self.awaits_kafka or self._awaits_hidden):
            in_kafka = self.lane.kafka_book.note_read(self.partitions, self.kafka_found)
            for partition, offset in in_kafka.items():
                self.offsets[partition] = max(offset, self.offsets.get(partition, offset))
            self.late = {tp: self.offsets.get(tp, NO_OFFSET) for tp in self.unread_in_kafka}
            self.offsets.update(dict.fromkeys((*self.late, *self.hidden), NO_OFFSET))
            self.refused.tell_rest(self.hidden)
            for partition in self.hidden:
                self.lane.book.note_unreadable(partition)
            self._resolve()

    @property
    def _awaits_topics(self) -> bool:
        return bool(self.unmarked or self.undated)

    @property
    def _awaits_hidden(self) -> bool:
        """Whether to wait for the right to read some offsets; after a while, only their partitions wait for it."""
        since_ms = self.hidden_since_ms
        if not self.hidden or since_ms is None:
            return False
        return self.duties.in_region or self.effects.now_ms - since_ms < UNREAD_LIMIT_MS

    def _read_marks(self) -> None:
        for topic in sorted(self.unmarked):
            self._read_mark(topic)
        for topic in sorted(self.undated):
            self._read_lives(topic)

    def _read_lives(self, topic: str) -> None:
        self.effects.request(Get(paths.lives(self.group, topic)), self._lives_read, topic)

    def _read_mark(self, topic: str) -> None:
        path = self._mark_path(topic)
        self.effects.request(Get(path), self._mark_read, path)

    def _mark_path(self, topic: str) -> str:
        of = paths.incarnations if topic in self.odd_marks else paths.offsets
        return of(self.group, topic)

    def _read_kafka(self) -> None:
        self.awaits_kafka, self.kafka_token = True, self.effects.token()
        self.retry_at_ms = self.effects.now_ms + KAFKA_READ_LIMIT_MS
        self.effects.add(ReadKafkaOffsets(self.kafka_token, self.unread_in_kafka))

    def _wait(self, now_ms: int, warning: str) -> None:
        if self.retry_delay_ms == MAX_RESOLVE_RETRY_MS and self.stage is not self.told_stage:
            self.told_stage = self.stage
            self.effects.add(Warn(warning))
        self.retry_at_ms = now_ms + self.retry_delay_ms
        self.retry_delay_ms = min(2 * self.retry_delay_ms, MAX_RESOLVE_RETRY_MS)

    def _note_offset(self, partition: TopicPartition, content: bytes) -> None:
        offset = stored_offset(self.effects, partition, content)
        if offset is None:
            self.lane.book.note_unreadable(partition)
        else:
            self.offsets[partition] = offset
            self.lane.book.note_read(partition, offset)

    def _resolve(self) -> None:
        unknown = self.partitions - self.offsets.keys()
        if self.duties.keeps_copies:
            self.copyless |= unknown
        if not self.begins_anywhere:
            self.offsets.update(dict.fromkeys(unknown, NO_OFFSET))
            unknown = frozenset()
        if unknown:
            self.stage, self.token = Stage.RESOLVING, self.effects.token()
            self.asked_since_ms = self.effects.now_ms if self.asked_since_ms is None else self.asked_since_ms
            self.effects.add(ResolveOffsets(self.token, unknown))
        else:
            self.stage = Stage.READY


def stored_offset(effects: EffectQueue, partition: TopicPartition, content: bytes) -> int | None:
    """Return the offset in a node; None, with a warning, if another program has written something else."""
    try:
        return cluster_nodes.decode_counter("offset", content)
    except NodeContentError as error:
        effects.add(Warn(f"{partition[0]}/{partition[1]}: {error}; it is ignored"))
        return None


def _is_unexpected(reply: Reply) -> TypeGuard[Refused]:
    """Whether a read was refused although its node may exist, for another reason than the connection."""
    return isinstance(reply, Refused) and not reply.outcome_unknown and reply.refusal is not Refusal.NO_NODE


def _mark(reply: Reply) -> str:
    """Return the mark of the topic that the group's offsets belong to, "" if it is unknown."""
    try:
        return cluster_nodes.decode_mark(reply.content) if isinstance(reply, Content) else ""
    except NodeContentError:
        return ""  # the coordinator logs it, and writes another one with the next first start
