"""Kafka as a sink: results in topics, and progress in Kafka's own offset store, by transactions of Kafka.

Kafka fences a transaction by the generation of a group that it knows; it does not know ours. It also fences by
transactional id: a producer that begins with an id ends all earlier ones of that id, and their open transactions. So
each partition that is read has an id and a producer of its own, and claiming a partition begins its producer. A late
claim by a suspended consumer may end the producer of the rightful owner, but then finds a higher generation and gives
up; the owner claims again. The generation and the rest of a sink's row are the metadata of the stored offset.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from consumer_agent.errors import ConsumerStateError
from consumer_agent.kafka.group_admin import GroupAdmin
from consumer_agent.kafka.tokens import Tokens
from consumer_agent.kafka_config import TOKEN
from consumer_agent.membership.offset_books import MARK_PREFIX
from consumer_agent.records import Record
from consumer_agent.region.at_once import CallsAtOnce
from consumer_agent.region.sink import Advance, Claim, Row, settled
from consumer_agent.runtime.threads import pause
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

PREFIX = "zkrebalancer-region"  # of transactional ids, for Kafka's rights
MAX_PRODUCERS = 200  # each has threads and connections
PARTITION_UA = -1  # librdkafka's name for a partition that it chooses
TIMEOUT_S = 30.0  # of each step of a transaction
RETRY_INTERVAL_S = 0.05
PASSING_ERRORS = frozenset(
    {KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
)
PASSING_FOR_READS = PASSING_ERRORS | {KafkaError._TRANSPORT}  # noqa: SLF001  # also: the client is being made
FULL_QUEUE_WAIT_S = 0.1
T = TypeVar("T")


@dataclass(slots=True)
class Lane:
    """The producer of one partition that is read, and where its progress is."""

    producer: Producer
    row: Row
    is_open: bool = False


class KafkaSink:
    """A `Sink` that writes to topics; `region.transaction(sink)` yields it, and `produce` writes a result.

    Make one for each region: it ends the producers of partitions that its region no longer has.
    Readers of the results need `isolation.level=read_committed`, librdkafka's default. One transaction for each
    partition of a batch: they end one after the other, each whole or not at all.
    """

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        """Prepare; `kafka` are librdkafka's settings, with `bootstrap.servers`.

        Raises:
            ConfigurationError: librdkafka refuses a setting.

        """
        self._settings = dict(kafka)
        self._process = os.getpid()
        if callable(kafka.get(TOKEN)):
            self._settings[TOKEN] = Tokens(kafka[TOKEN])
        try:
            self._admin = GroupAdmin(self._settings)
            CallsAtOnce([self._admin.open]).do()
        except KafkaException as error:
            raise ConfigurationError(f"KafkaSink: {error.args[0].str()}") from None
        self._lanes: dict[TopicPartition, Lane] = {}
        self._groups: dict[str, KafkaConsumer] = {}  # it never joins; it names the group in a transaction
        self._open: dict[TopicPartition, Advance] = {}
        self._is_void = False  # the open transaction will be rolled back, whatever is written
        self._group = ""
        self._is_closed = False
        self._calls: CallsAtOnce[Any] = CallsAtOnce([])  # the last ones; an interrupt may have left some running

    @property
    def connection(self) -> KafkaSink:
        """This sink: `produce` writes results."""
        return self

    def produce(
        self,
        record: Record,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        number: int = PARTITION_UA,
    ) -> None:
        """Write a result of a record of the batch; it is visible when the transaction is committed.

        `number`: of the partition of `topic`; by default, the key decides.

        Raises:
            ConsumerStateError: the record is of no partition in the open transaction, which will be rolled back.
            KafkaException: librdkafka refuses it.

        """
        if self._is_void:
            return
        partition = (record.topic, record.partition)
        if partition not in self._open:
            raise ConsumerStateError(f"{record.topic}/{record.partition} is not in the open transaction")
        producer = self._lanes[partition].producer
        give_up_at_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                producer.produce(topic, value, key, number, headers=list(headers))
            except BufferError:
                if time.monotonic() > give_up_at_s:
                    raise
                producer.poll(FULL_QUEUE_WAIT_S)
            else:
                return

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        """See `Sink.claim`.

        Raises:
            ConsumerStateError: the sink is closed, or of the process before a fork.
            ConfigurationError: there are too many partitions, or another group has the name of this one's progress.
            KafkaException: of Kafka, also if another consumer claims the same partition right now.

        """
        if self._is_closed:
            raise ConsumerStateError("the sink is closed")
        if os.getpid() != self._process:  # its threads are missing here: it would wait for ever
            raise ConsumerStateError("claim: the KafkaSink belongs to the process before the fork; make a new one")
        stored = self._read(group, [claim.partition for claim in claims], awaits_end=False)
        wanted = [claim for claim in claims if settled(claim, stored.get(claim.partition)) is not None]
        if len({*self._lanes, *(claim.partition for claim in wanted)}) > MAX_PRODUCERS:
            raise ConfigurationError(f"KafkaSink: more than {MAX_PRODUCERS} partitions; use more consumers")
        self._at_once([partial(self._consumer_of, group)])  # once, not in each of the next threads
        made = self._at_once([partial(self._new_producer, group, claim) for claim in wanted])
        producers = dict(zip(wanted, made, strict=True))
        stored = self._read(group, [claim.partition for claim in wanted], awaits_end=True)
        lanes = {}
        for claim, producer in producers.items():
            row = settled(claim, stored.get(claim.partition))
            if row is not None:
                lanes[claim.partition] = Lane(producer, row)
        self._at_once([partial(self._store, group, *item) for item in lanes.items()])
        self._read(group, lanes, awaits_end=True)  # from now on, a late claim sees these and ends no producer
        self._lanes |= lanes
        return {partition: lane.row.next_offset for partition, lane in lanes.items()}

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """End the producers of all other partitions, which moved away: each has threads and connections."""
        for partition in self._lanes.keys() - set(partitions):
            if not self._lanes[partition].is_open:
                del self._lanes[partition]

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        """See `Sink.begin`. Whether another consumer has claimed a partition since shows at the commit."""
        refused = {partition for partition, advance in advances.items() if not self._is_as_given(partition, advance)}
        self._group, self._open = group, {} if refused else dict(advances)
        self._is_void = not self._open
        for partition in self._open:
            self._lanes[partition].is_open = True  # first, so that an interrupt leaves none open and unknown
            self._lanes[partition].producer.begin_transaction()
        return refused

    def commit(self) -> None:
        """Commit; raises KafkaException if a partition is not stored, or it is unknown whether it is."""
        done, self._open, self._is_void = self._open, {}, False
        try:
            self._at_once([partial(self._advance, *item) for item in done.items()])
        except BaseException:
            self.rollback()  # those that had not begun
            raise

    def rollback(self) -> None:
        """Abort what is open, within TIMEOUT_S; what Kafka has ended already needs nothing."""
        self._open, self._is_void = {}, False
        self._calls.end()  # a second Ctrl-C may have left a commit running
        opened = [partition for partition, lane in self._lanes.items() if lane.is_open]
        give_up_at_s = time.monotonic() + TIMEOUT_S
        self._at_once([partial(self._abort, partition, give_up_at_s) for partition in opened])

    def _abort(self, partition: TopicPartition, give_up_at_s: float) -> None:
        lane = self._lanes[partition]
        lane.is_open = False
        try:
            lane.producer.abort_transaction(max(0.0, give_up_at_s - time.monotonic()))
        except KafkaException:  # another producer has its id, or Kafka is unavailable: it is claimed anew
            del self._lanes[partition]

    def close(self) -> None:
        """Abort what is open, and close the connections. After an interrupt, call it again."""
        self._is_closed = True
        self.rollback()
        self._lanes.clear()
        while self._groups:
            self._groups.popitem()[1].close()
        self._admin.close()

    def _at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        self._calls.end()
        mine: CallsAtOnce[T] = CallsAtOnce(calls)
        self._calls = mine
        return mine.do()

    # ---- one partition

    def _is_as_given(self, partition: TopicPartition, advance: Advance) -> bool:
        lane = self._lanes.get(partition)
        return lane is not None and (lane.row.generation, lane.row.next_offset) == (advance.generation, advance.before)

    def _new_producer(self, group: str, claim: Claim) -> Producer:
        topic, number = claim.partition  # names have dots, and no slash: no two partitions share an id
        producer = Producer({**self._settings, "transactional.id": f"{PREFIX}.{group}/{topic}/{number}"})
        _repeat(lambda: producer.init_transactions(TIMEOUT_S))
        return producer

    def _store(self, group: str, partition: TopicPartition, lane: Lane) -> None:
        """Store a claim."""
        lane.producer.begin_transaction()
        self._end(group, partition, lane, lane.row)

    def _advance(self, partition: TopicPartition, advance: Advance) -> None:
        lane = self._lanes.pop(partition)  # after an error it is claimed anew
        row = Row(lane.row.identity, lane.row.life, lane.row.generation, advance.after)
        self._end(self._group, partition, lane, row)
        self._lanes[partition] = Lane(lane.producer, row)

    def _end(self, group: str, partition: TopicPartition, lane: Lane, row: Row) -> None:
        stored = KafkaPartition(*partition, row.next_offset, _encoded(row))
        metadata = self._consumer_of(group).consumer_group_metadata()
        try:
            _repeat(lambda: lane.producer.send_offsets_to_transaction([stored], metadata, TIMEOUT_S))
            _repeat(lambda: lane.producer.commit_transaction(TIMEOUT_S))
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                _repeat(lambda: lane.producer.abort_transaction(TIMEOUT_S))
            raise

    # ---- progress

    def _read(self, group: str, partitions: Iterable[TopicPartition], *, awaits_end: bool) -> dict[TopicPartition, Row]:
        """Return what is stored; with `awaits_end`, after the end of transactions that were under way."""
        wanted = [KafkaPartition(*partition) for partition in partitions]
        found: list[KafkaPartition] = []
        self._admin.group = _progress_of(group)

        def ask() -> None:
            # In a thread: confluent-kafka may replace what a signal's handler raises within it by a ValueError.
            asked = [ConsumerGroupTopicPartitions(_progress_of(group), wanted)]
            send = partial(self._admin.ask, "list_consumer_group_offsets", asked, TIMEOUT_S, require_stable=awaits_end)
            (answer,) = self._at_once([send])
            found[:] = answer.result(2 * TIMEOUT_S).topic_partitions
            for one in found:
                if one.error is not None:
                    raise KafkaException(one.error)

        if wanted:
            _repeat(ask, PASSING_FOR_READS)
        if any((one.metadata or "").startswith(MARK_PREFIX) for one in found):
            taken = f"Kafka has offsets of a consumer group {_progress_of(group)}"
            raise ConfigurationError(f"KafkaSink: {taken}, where the progress of {group}'s region would be: rename one")
        return {(one.topic, one.partition): _decoded(one) for one in found if one.offset >= 0}

    def _consumer_of(self, group: str) -> KafkaConsumer:
        if group not in self._groups:
            self._groups[group] = KafkaConsumer({**self._settings, "group.id": _progress_of(group)})
        return self._groups[group]


def _progress_of(group: str) -> str:
    """Return the group in Kafka whose offsets are the progress; the group itself may also store offsets in Kafka."""
    return f"{group}.region"


def _encoded(row: Row) -> str:
    return json.dumps({"identity": row.identity, "life": row.life, "generation": row.generation})


def _decoded(stored: KafkaPartition) -> Row:
    """Return a row; an offset that another program has stored is owned by no consumer, and yields to every claim."""
    try:
        found = json.loads(stored.metadata or "")
        return Row(str(found["identity"]), int(found["life"]), int(found["generation"]), stored.offset)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return Row("", 0, -1, stored.offset)


def _repeat(step: Callable[[], object], passing: Collection[int] = PASSING_ERRORS) -> None:
    """Do a step of a transaction; repeat it while Kafka says that this may help, at most for TIMEOUT_S."""
    give_up_at_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            step()
        except KafkaException as error:
            may_help = error.args[0].retriable() or error.args[0].code() in passing
            if not may_help or time.monotonic() > give_up_at_s:
                raise
            pause(RETRY_INTERVAL_S)
        else:
            return
