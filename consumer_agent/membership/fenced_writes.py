"""The one lane for writes about owned partitions: acks with their final offsets, and commits, one at a time. Pure.

Every write names the exact version of `owners/<consumer>`, so that a late write of an evicted consumer fails. If the
outcome of an ack is unknown, only `owners/<consumer>`, read after a sync, shows it. Offsets are written to Kafka first:
when an ack releases a partition, its final offset is already where the next owner reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from consumer_agent.membership.effects import CommitToKafka, EffectQueue, Failpoint, RecordCommitted, Warn
from consumer_agent.membership.join import NOTHING_OWNED
from consumer_agent.membership.offset_books import KafkaBook, OffsetBook, Storage
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Content,
    Delete,
    Done,
    Get,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
    Sync,
)
from zkrebalancer.protocol.command import Command, applied
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.refusals import refused_text
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit

KAFKA_COMMIT_LIMIT_MS = 5_000  # then a commit fails, and an ack continues without it
KAFKA_REQUEST_LIMIT_MS = 2_000  # and never longer than the lease
KAFKA_RETRY_MS = 200
KAFKA_ANSWER_LIMIT_MS = 2_000  # after the time in which Kafka's client has to give up
MAX_REFUSED_OFFSETS = 10  # in one write; from then on it leaves out whole topics
MAX_REFUSALS = 100  # in one write; then it also leaves out its other offsets


class Outcome(Enum):
    """How a write ended."""

    STORED = auto()
    CANCELLED = auto()  # the command was gone before the ack
    EVICTED = auto()  # owners/<consumer> was gone
    UNCLEAR = auto()  # owners/<consumer> is not what this consumer wrote, or may not be written


class Phase(Enum):
    """The phase of a write."""

    READY = auto()
    CHECKING = auto()  # whether this consumer still owns its record, before anything is sent to Kafka
    IN_KAFKA = auto()  # Kafka is writing
    PAUSING = auto()  # Kafka did not write; retried at `retry_at_ms`
    WRITING = auto()
    UNKNOWN = auto()  # unknown outcome; continues when the session is connected again
    VERIFYING = auto()


@dataclass(frozen=True, slots=True)
class Ack:
    """Delete a command and set the ownership record to `record`, in the last transaction of a write."""

    command: str
    record: OwnersRecord


@dataclass(slots=True)
class Write:
    """Offsets still to be written, and the ack that ends the write, if it has one."""

    offsets: dict[TopicPartition, int]
    ack: Ack | None
    failpoint: str | None
    to_kafka: dict[TopicPartition, int] = field(default_factory=dict)  # still to be written there
    give_up_ms: int = 0  # on Kafka
    retry_at_ms: int = 0
    until_ms: int = 0  # when Kafka's client has to give up
    token: int = 0
    failure: str | None = None  # why offsets are not stored
    refused_count: int = 0  # of offsets, by ZooKeeper
    phase: Phase = Phase.READY
    chunk: dict[TopicPartition, int] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether nothing is left but the present chunk."""
        return len(self.chunk) == len(self.offsets)


class Writer(Protocol):
    """The user of the lane for a write."""

    def handle_outcome(self, outcome: Outcome) -> None:
        """Handle that the write is stored, or its command was cancelled."""


class WriteLane:
    """Performs one `Write` at a time for a consumer, and knows whose it is."""

    def __init__(
        self,
        effects: EffectQueue,
        group: str,
        consumer: str,
        lease_ms: int,
        ended: Callable[[Outcome], None],
        storage: Storage = Storage.ZOOKEEPER,
        request_limit: RequestLimit = DEFAULT_LIMIT,
    ) -> None:
        """Begin with the record that the registration wrote; `ended` is called at the end of each write."""
        self._effects = effects
        self.lease_ms = lease_ms
        self._ended = ended
        self._sent_ms = effects.now_ms  # of the last write
        self._consumer = consumer
        self._owners = paths.owners(group, consumer)
        self._channel = paths.channel(group, consumer)
        self.connected = True
        self.version = 0
        self.record = NOTHING_OWNED
        self.storage = storage
        self.request_limit = request_limit
        self.book = OffsetBook(group)
        self.kafka_book = KafkaBook()
        self.write: Write | None = None
        self.writer: Writer | None = None  # of the present write, or the last one
        self.failure: str | None = None  # why offsets of the last write are not stored
        self._told: str | None = None  # the failure that was logged; until offsets are stored
        self._stores = False  # the present write has offsets
        self.refusal: str | None = None  # what ZooKeeper refused for good

    def begin(
        self,
        writer: Writer,
        offsets: Mapping[TopicPartition, int],
        ack: Ack | None = None,
        failpoint: str | None = None,
    ) -> None:
        """Write offsets, then the ack; the lane must be free and there must be something to write."""
        self.writer = writer
        write = self.write = Write({}, ack, failpoint, give_up_ms=self._effects.now_ms + KAFKA_COMMIT_LIMIT_MS)
        if self.storage.in_zookeeper:
            write.offsets = self.book.changed(offsets)
        if self.storage.in_kafka:
            write.to_kafka = self.kafka_book.changed(offsets)
        self._stores = bool(write.offsets or write.to_kafka)
        if failpoint:
            self._effects.add(Failpoint(f"before-{failpoint}"))
        self._go_on(write)

    def acknowledge(
        self, writer: Writer, name: str, done: Command, offsets: Mapping[TopicPartition, int], failpoint: str
    ) -> None:
        """Write offsets, then that a command is done."""
        record = OwnersRecord(done.generation, done.command_id, applied(self.record.partitions, done))
        self.begin(writer, offsets, Ack(name, record), failpoint)

    def changed(self, finished: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets that are not stored everywhere they should be."""
        known = {partition: offset for partition, offset in finished.items() if offset >= 0}
        changed = self.book.changed(known) if self.storage.in_zookeeper else {}
        return changed | (self.kafka_book.changed(known) if self.storage.in_kafka else {})

    def stored(self, partition: TopicPartition) -> int | None:
        """Return the stored offset of a partition, as far as this consumer knows; no other one writes it."""
        known = [self.book.stored.get(partition), self.kafka_book.stored.get(partition)]
        return max((offset for offset in known if offset is not None), default=None)

    def forget_others(self) -> None:
        """Forget the offsets of partitions that are not owned: a consumer that lives for a year has many of them."""
        for book in (self.book, self.kafka_book):
            book.keep(self.record.partitions)

    def learned_late_ms(self) -> int:
        """Return how long the last write has taken beyond a lease: a suspended process gets its reply late."""
        return max(0, self._effects.now_ms - self._sent_ms - self.lease_ms)

    def handle_connected(self) -> None:
        """Continue with a write whose outcome is unknown."""
        self.connected = True
        if self.write is not None and self.write.phase is Phase.UNKNOWN:
            self._resume(self.write)

    @property
    def kafka_until_ms(self) -> int:
        """Until when a commit that was sent to Kafka may arrive there; 0 if none is in flight."""
        write = self.write
        return write.until_ms if write is not None and write.phase is Phase.IN_KAFKA else 0

    def wake_at_ms(self) -> int | None:
        """Return when `handle_tick` has work to do."""
        write = self.write
        if write is None or not self.connected or write.phase not in {Phase.IN_KAFKA, Phase.PAUSING}:
            return None
        return write.retry_at_ms if write.phase is Phase.PAUSING else write.until_ms + KAFKA_ANSWER_LIMIT_MS

    def handle_tick(self, now_ms: int) -> None:
        """Retry a write to Kafka, or give up waiting for its answer."""
        at_ms, write = self.wake_at_ms(), self.write
        if write is None or at_ms is None or now_ms < at_ms:
            return
        if write.phase is Phase.PAUSING:
            self._go_on(write)
        else:
            self.handle_kafka_committed(write.token, dict.fromkeys(write.to_kafka, "no answer"))

    def handle_kafka_committed(
        self, token: int, failed: Mapping[TopicPartition, str], *, is_hopeless: bool = False
    ) -> None:
        """Handle Kafka's answer."""
        write, now_ms = self.write, self._effects.now_ms
        if write is None or write.phase is not Phase.IN_KAFKA or write.token != token:
            return
        stored = {partition: offset for partition, offset in write.to_kafka.items() if partition not in failed}
        self.kafka_book.note_written(stored)
        if stored:
            self._effects.add(RecordCommitted(self._consumer, self.record.generation, stored))
        self.kafka_book.stale.update(failed)  # an unanswered request may have stored it
        if failed and not is_hopeless and now_ms < write.give_up_ms:
            write.to_kafka = {partition: write.to_kafka[partition] for partition in failed}
            write.phase, write.retry_at_ms = Phase.PAUSING, now_ms + KAFKA_RETRY_MS
            return
        if failed:
            (topic, number), reason = min(failed.items())
            write.failure = f"{topic}/{number}: Kafka did not store the offset: {reason}"
        write.to_kafka = {}
        self._go_on(write)

    def handle_reply(self, reply: Reply, handle: Callable[[Write, Reply], None]) -> None:
        """Handle an answer; a write whose outcome is unknown continues on a connected session."""
        write = self.write
        if write is None:
            return
        if not (isinstance(reply, Refused) and reply.outcome_unknown):
            handle(write, reply)
            return
        write.phase = Phase.UNKNOWN
        if self.connected:
            self._resume(write)

    def _go_on(self, write: Write) -> None:
        if write.to_kafka:
            self._check(write)
        elif write.offsets or write.ack is not None:
            self._send(write)
        else:
            self._end(Outcome.STORED)

    def _resume(self, write: Write) -> None:
        if write.ack is not None and write.is_last and not write.to_kafka:
            self._verify(write)
        else:
            self._go_on(write)

    def _check(self, write: Write) -> None:
        """Prove that no other consumer can own these partitions for one lease from now, the time limit for Kafka."""
        write.phase = Phase.CHECKING
        self._sent_ms = self._effects.now_ms
        write.operations = (Check(self._owners, self.version),)
        self._request(Multi(write.operations), self._written)

    def _commit_to_kafka(self, write: Write) -> None:
        write.phase, write.token = Phase.IN_KAFKA, self._effects.token()
        write.until_ms = min(self._sent_ms + self.lease_ms, self._effects.now_ms + KAFKA_REQUEST_LIMIT_MS)
        self._effects.add(CommitToKafka(write.token, self.kafka_book.marked(write.to_kafka), write.until_ms))

    def _verify(self, write: Write) -> None:
        write.phase = Phase.VERIFYING
        self._request(Sync(self._owners), self._synced)
        self._request(Get(self._owners), self._verified)

    def _synced(self, write: Write, reply: Reply) -> None:
        """Do nothing: the read that follows was sent together with the sync."""

    def _request(self, call: Call, handle: Callable[[Write, Reply], None]) -> None:
        self._effects.request(call, self.handle_reply, handle)

    def _send(self, write: Write) -> None:
        write.phase = Phase.WRITING
        self._sent_ms = self._effects.now_ms
        fence: list[Operation] = [Check(self._owners, self.version)]
        ack = fence
        if write.ack is not None:
            content = ownership.encode_owners(write.ack.record)
            ack = [SetContent(self._owners, content, self.version), Delete(f"{self._channel}/{write.ack.command}")]
        write.chunk = self.book.first_chunk(write.offsets, self.request_limit, ack)
        if write.is_last:
            fence = ack
        write.operations = (*fence, *self.book.operations(write.chunk))
        self._request(Multi(write.operations), self._written)

    def _written(self, write: Write, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self._refused(write, reply)
        elif write.phase is Phase.CHECKING:
            self._commit_to_kafka(write)
        elif isinstance(reply, Done) and write.ack is not None and write.is_last:
            version = reply.results[0]
            self._acked(write, write.ack, version if isinstance(version, int) else self.version + 1)
        else:
            self._chunk_stored(write)

    def _refused(self, write: Write, reply: Refused) -> None:
        is_known = reply.index is not None and reply.index < len(write.operations)
        operation = write.operations[reply.index or 0] if is_known else None
        is_gone = reply.refusal is Refusal.NO_NODE
        text = refused_text(Multi(write.operations), reply) if is_known else reply.refusal.value
        is_offset = operation is not None and operation.path.startswith(self.book.root)
        if operation is not None and operation.path == self._owners and reply.refusal is Refusal.BAD_VERSION:
            self._verify(write)
        elif operation is not None and operation.path == self._owners and is_gone:
            self._end(Outcome.EVICTED)
        elif isinstance(operation, Delete) and is_gone:
            self._end(Outcome.CANCELLED)
        elif operation is not None and is_offset and self.book.learn(operation, reply.refusal):
            self._send(write)
        elif operation is not None and is_offset and not is_gone:
            self._go_on_without(operation, write, text)
        else:
            self.refusal = text
            self._end(Outcome.UNCLEAR)

    def _go_on_without(self, operation: Operation, write: Write, text: str) -> None:
        """Leave out the offsets that ZooKeeper refuses to store; the next commit tries them again."""
        write.failure = text
        write.refused_count += 1
        whole_topic, is_over = write.refused_count >= MAX_REFUSED_OFFSETS, write.refused_count >= MAX_REFUSALS
        left = self.book.without(operation, write.offsets, whole_topic=whole_topic)
        write.offsets = {} if is_over else left
        if write.offsets or write.ack is not None:
            self._send(write)
        else:
            self._end(Outcome.STORED)

    def _verified(self, write: Write, reply: Reply) -> None:
        found: OwnersRecord | None = None
        with suppress(NodeContentError):
            found = ownership.decode_owners(reply.content) if isinstance(reply, Content) else None
        if reply == Refused(Refusal.NO_NODE):
            self._end(Outcome.EVICTED)
        elif found is None or not isinstance(reply, Content):
            self._end(Outcome.UNCLEAR)
        elif write.ack is not None and found.command_id == write.ack.record.command_id:
            self._acked(write, write.ack, reply.stat.version)
        elif reply.stat.version != self.version:
            self._end(Outcome.UNCLEAR)
        else:
            self._go_on(write)  # unchanged: if the command is gone by now, the refusal shows that it was cancelled

    def _chunk_stored(self, write: Write) -> None:
        self._note_chunk(write)
        for partition in write.chunk:
            del write.offsets[partition]
        if write.ack is None and not write.offsets:
            self._end(Outcome.STORED)
        else:
            self._send(write)

    def _acked(self, write: Write, ack: Ack, version: int) -> None:
        if write.failpoint:
            self._effects.add(Failpoint(f"after-{write.failpoint}"))
        self._note_chunk(write)
        self.version = version
        self.record = ack.record
        self.forget_others()
        self._end(Outcome.STORED)

    def _note_chunk(self, write: Write) -> None:
        self.book.note_written(write.chunk)
        if write.chunk:
            self._effects.add(RecordCommitted(self._consumer, self.record.generation, dict(write.chunk)))

    def _end(self, outcome: Outcome) -> None:
        failure = None if self.write is None else self.write.failure
        if failure is not None and failure != self._told:
            self._effects.add(Warn(f"{self._consumer}: {failure}"))
        if failure is not None or self._stores:
            self._told = failure
        self.write, self.failure = None, failure
        self._ended(outcome)
