"""PostgreSQL and Kafka's transactions in memory, behind the clients' interfaces, for tests that interrupt a client.

Each call changes the server at once, so an interrupt of the caller comes before it or after it, as with a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest import mock

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from psycopg.pq import TransactionStatus

from consumer_agent.kafka.group_admin import GroupAdmin
from consumer_agent.region import postgres_sink
from tests.unit.consumer_agent.runtime.interrupts import Interrupted

Key = tuple[str, str, int]  # group, topic, partition
Stored = tuple[str, int, int, int]  # identity, life, generation, next offset


def _answer_arrives() -> None:
    """Be a point at which the caller is interrupted: the server has done it, and the caller does not know."""


# ---- PostgreSQL


@dataclass(slots=True)
class Tables:
    """What is committed, or what a transaction sees."""

    progress: dict[Key, Stored] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)

    def copy(self) -> Tables:
        return Tables(dict(self.progress), list(self.results))


class Postgres:
    """A server whose clients take turns."""

    def __init__(self) -> None:
        self.tables = Tables()


class Connection:
    """A connection of psycopg."""

    def __init__(self, server: Postgres) -> None:
        self.server, self.autocommit = server, False
        self.broken = self.closed = False
        self._seen: Tables | None = None  # by the open transaction
        self._is_active = False
        self.info = self

    @property
    def transaction_status(self) -> TransactionStatus:
        if self.closed:
            return TransactionStatus.UNKNOWN
        if self._is_active:
            return TransactionStatus.ACTIVE
        return TransactionStatus.IDLE if self._seen is None else TransactionStatus.INTRANS

    def cursor(self, **_: object) -> Cursor:
        return Cursor(self)

    def run(self, change: Callable[[Tables], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        if self.closed or self._is_active:
            raise psycopg.OperationalError("another command is already in progress, or it is closed")
        self._is_active = True
        seen = (self.server.tables if self._seen is None else self._seen).copy()
        found = change(seen)
        self._seen = seen
        _answer_arrives()
        self._is_active = False
        return found

    def commit(self) -> None:
        self._end(is_kept=True)

    def rollback(self) -> None:
        self._end(is_kept=False)

    def _end(self, *, is_kept: bool) -> None:
        if self._is_active:
            raise psycopg.OperationalError("another command is already in progress")
        self._is_active = True
        if is_kept and self._seen is not None:
            self.server.tables = self._seen
        self._seen = None
        _answer_arrives()
        self._is_active = False

    def close(self) -> None:
        self.closed = True
        self._seen = None  # the server rolls back


class Cursor:
    """A cursor of psycopg, which knows the statements of the sink, and one of the application."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._found

    def execute(self, statement: str, given: Sequence[Any] = ()) -> Self:
        self._found = self._connection.run(lambda tables: _changed(tables, statement, given))
        return self

    def executemany(self, statement: str, given: Sequence[Sequence[Any]]) -> None:
        self._connection.run(lambda tables: [row for one in given for row in _changed(tables, statement, one)])


def _changed(tables: Tables, statement: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
    progress = tables.progress
    if statement == postgres_sink.EXISTS:
        return [(True,)]
    if statement == postgres_sink.RESERVE:
        group, topics, numbers = given
        for place in zip(topics, numbers, strict=True):
            progress.setdefault((group, *place), ("", -1, -1, 0))
    elif statement == postgres_sink.READ:
        topics, numbers, group = given
        return [(*place, *progress[group, *place]) for place in zip(topics, numbers, strict=True)]
    elif statement == postgres_sink.STORE:
        for topic, number, *row in zip(*given[:-1], strict=True):
            progress[given[-1], topic, number] = (row[0], row[1], row[2], row[3])
    elif statement == postgres_sink.ADVANCE:
        return _advanced(progress, given)
    elif statement == "INSERT":
        tables.results += given
    else:
        assert statement == postgres_sink.LIMIT, statement
    return []


def _advanced(progress: dict[Key, Stored], given: Sequence[Any]) -> list[tuple[Any, ...]]:
    topics, numbers, generations, befores, afters, group, _ = given
    done = []
    for topic, number, generation, before, after in zip(topics, numbers, generations, befores, afters, strict=True):
        row = progress[group, topic, number]
        if row[2:] == (generation, before):
            progress[group, topic, number] = (*row[:3], after)
            done.append((topic, number))
    return done


# ---- Kafka


def _require_no_signal(instead: Exception) -> None:
    """Be a point where confluent-kafka's C code runs a signal's handler: it raises this instead of its exception."""
    try:
        _answer_arrives()
    except Interrupted:
        raise instead from None


def _new_consumer(_settings: Mapping[str, Any]) -> Any:
    _require_no_signal(TypeError("expected configuration property name as type unicode string"))
    return mock.Mock()


class Kafka:
    """A broker with transactions; `patched` puts its clients in the place of confluent-kafka's."""

    def __init__(self) -> None:
        self.results: list[int] = []  # that readers of committed records see
        self.progress: dict[tuple[str, int], tuple[int, str]] = {}
        self.current: dict[str, Producer] = {}  # transactional id -> the producer that is not fenced out

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open."""
        return any(producer.is_open for producer in self.current.values())

    def patched(self) -> Any:
        """Return a context manager, of the sink's module only. Its beginning and end may not be interrupted."""
        return mock.patch.multiple(
            "consumer_agent.region.kafka_sink",
            Producer=lambda settings: Producer(self, settings["transactional.id"]),
            GroupAdmin=partial(Admin, self),
            KafkaConsumer=_new_consumer,
        )

    def list_consumer_group_offsets(self, asked: Sequence[Any], **_: object) -> Mapping[str, Future[Any]]:
        _require_no_signal(ValueError("Group name is mandatory for list consumer offset operation"))
        group, wanted = asked[0].group_id, asked[0].topic_partitions
        found = []
        for one in wanted:
            offset, metadata = self.progress.get((one.topic, one.partition), (-1001, ""))
            found.append(
                SimpleNamespace(topic=one.topic, partition=one.partition, offset=offset, metadata=metadata, error=None)
            )
        answer = Future[Any]()
        answer.set_result(SimpleNamespace(topic_partitions=found))
        return {group: answer}


class Admin(GroupAdmin):
    """The sink's own, with this Kafka as its client."""

    def __init__(self, kafka: Kafka, *given: Any) -> None:
        super().__init__(*given)
        self._new_client = partial(cast, "AdminClient", kafka)


class Producer:
    """A producer with a transactional id."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.is_open = False
        self.written: list[int] = []
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}

    def _require(self, *, is_open: bool) -> None:
        if self.kafka.current.get(self.name) is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))
        if self.is_open is not is_open:
            raise KafkaException(KafkaError(KafkaError._STATE))

    def init_transactions(self, _timeout_s: float) -> None:
        former = self.kafka.current.get(self.name)
        if former is not None:
            former.is_open = False
        self.kafka.current[self.name] = self

    def begin_transaction(self) -> None:
        self._require(is_open=False)
        self.is_open, self.written, self.offsets = True, [], {}
        _answer_arrives()

    def produce(self, _topic: str, value: bytes, *_: object, **__: object) -> None:
        self._require(is_open=True)
        self.written.append(int(value))

    def send_offsets_to_transaction(self, stored: Sequence[TopicPartition], *_: object) -> None:
        self._require(is_open=True)
        self.offsets.update({(one.topic, one.partition): (one.offset, one.metadata or "") for one in stored})

    def commit_transaction(self, _timeout_s: float) -> None:
        self._require(is_open=True)
        self.kafka.results += self.written
        self.kafka.progress |= self.offsets
        self.is_open = False

    def abort_transaction(self, _timeout_s: float) -> None:
        self._require(is_open=True)
        self.is_open = False
