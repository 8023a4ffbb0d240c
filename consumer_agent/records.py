"""What a poll returns: records that are built on access.

Kafka's client returns an object per message, whose methods cost 10 to 40 ns each. Building a `Record` from it takes as
long as fetching it. So a `Batch` keeps the messages, and `values()` builds no record at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, overload

from confluent_kafka import Message

from consumer_agent.errors import ConsumerError
from consumer_agent.runtime.record_buffer import Run
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

TIMESTAMP_TYPES = (None, "CreateTime", "LogAppendTime")  # in the order of librdkafka's numbers
UNREADABLE = (SystemError, UnicodeDecodeError)  # what confluent-kafka raises for a header whose name is not UTF-8

MAX_REASON = 200  # characters of what a deserializer raised

_log = logs.named(__name__)


class Record(NamedTuple):
    """One record of a topic; `generation`, that of its partition's start, is a fencing token for sinks.

    `key` and `value` are bytes, or what a deserializer has made of them; None if Kafka has null.

    `timestamp_ms` is milliseconds since the epoch. `timestamp_type` says whose clock: `CreateTime` (the producer's) or
    `LogAppendTime` (the broker's). Both are None in records of the oldest format.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    generation: int
    timestamp_type: str | None = None


class DeserializationError(ConsumerError):
    """A record's key or value cannot be deserialized. Without `on_deserialization_error`, every `poll` raises it.

    The partition continues with this record, or where `seek` says. `record` has the key and the value as bytes,
    `partition` is (topic, number); `what` is "key" or "value". `__cause__` is what the deserializer has raised.
    """

    def __init__(self, what: str, record: Record, cause: Exception) -> None:
        """Store the record."""
        reason = f"{type(cause).__name__}: {cause}"
        place = f"{record.topic}/{record.partition} offset {record.offset}"
        super().__init__(f"{place}: the {what} cannot be deserialized: {' '.join(reason.split()):.{MAX_REASON}}")
        self.__cause__ = cause
        self.what = what
        self.record = record
        self.partition: TopicPartition = (record.topic, record.partition)
        self.offset = record.offset


class _Row(tuple[Any, ...]):
    """A tuple that is made in C, from another one."""

    __slots__ = ()


class _Fetched(_Row, Record):
    """A `Record` that is made like a `_Row`: in two thirds of the time that `Record` needs, whose `__new__` is Python.

    Everywhere else it is a `Record`: its name, and what copying and pickling make of it.
    """

    __slots__ = ()
    __new__ = tuple.__new__  # type: ignore[assignment]  # this class has the constructor of its first base, in C

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(self)


_Fetched.__name__ = _Fetched.__qualname__ = Record.__name__


class Batch(Sequence[Record]):
    """Records in offset order per partition. An empty batch is false. `list(batch)` is a copy that can be pickled.

    It is also a mapping from partitions to batches: `keys()`, `items()`, `batch["orders", 0]`. But
    `values()` are the values of the records.
    """

    __slots__ = ("_length", "_loops", "_runs")

    def __init__(self, runs: Sequence[Run] = (), loops: list[None] | None = None) -> None:
        """Wrap the result of `RecordBuffer.take`: a non-empty run for each partition.

        `loops` has something for each loop over it that has not come to its end.
        """
        self._runs = runs
        self._loops: list[None] = [] if loops is None else loops
        self._length = sum(len(run.messages) for run in runs) if runs else 0

    @property
    def runs(self) -> Sequence[Run]:
        """The records as the buffer has returned them."""
        return self._runs

    def __len__(self) -> int:
        """Return how many records there are."""
        return self._length

    def __iter__(self) -> Iterator[Record]:
        """Return the records one by one, run after run."""
        self._loops.append(None)
        return chain.from_iterable(chain(map(_records, self._runs), (self._end_of_loop(),)))

    def _end_of_loop(self) -> Iterator[Record]:
        self._loops.pop()
        yield from ()

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    @overload
    def __getitem__(self, index: TopicPartition) -> Batch: ...
    def __getitem__(self, index: int | slice | TopicPartition) -> Record | list[Record] | Batch:
        """Return a record, a list of some, or the batch of a partition; KeyError if that has no records."""
        if isinstance(index, slice):
            return list(self)[index]
        if isinstance(index, tuple):
            return self.by_partition()[index]
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"there are {self._length} records, and none at {index}")
        for run in self._runs:
            if position < len(run.messages):
                break
            position -= len(run.messages)
        return only_record(run, run.messages[position])

    def __repr__(self) -> str:
        """Show the numbers of records and partitions."""
        return f"<Batch: {self._length} records of {len(self.by_partition())} partitions>"

    def __contains__(self, what: object) -> bool:
        """Whether it has this record, or records of this partition."""
        if isinstance(what, tuple) and len(what) == 2:
            return what in self.by_partition()
        return what in list(self)

    def keys(self) -> list[TopicPartition]:
        """Return the partitions that have records, in the order of the records."""
        return [(run.topic, run.partition) for run in self._runs]

    def items(self) -> list[tuple[TopicPartition, Batch]]:
        """Return the partitions that have records, each with its batch."""
        return list(self.by_partition().items())

    def values(self) -> list[Any]:
        """Return only the values, in the order of the records: the fastest way to read them."""
        values: list[Any] = []
        for run in self._runs:
            values += map(Message.value, run.messages)
        return values

    def by_partition(self) -> dict[TopicPartition, Batch]:
        """Return the records of each partition."""
        return {(run.topic, run.partition): Batch([run], self._loops) for run in self._runs}


def _records(run: Run) -> Iterator[Record]:
    record, types, (topic, partition, generation, messages) = _Fetched, TIMESTAMP_TYPES, run
    for message, headers in zip(messages, readable_headers(messages), strict=False):
        kind, at = message.timestamp()
        at = at if kind else None
        yield record(
            (topic, partition, message.offset(), message.key(), message.value(), headers, at, generation, types[kind])
        )


def only_record(run: Run, message: Message) -> Record:
    """Return the record of one message of a run."""
    return next(_records(run._replace(messages=[message])))


def readable_headers(messages: Sequence[Message]) -> Iterable[tuple[Any, ...]]:
    """Return the headers of each message; none if the name of one is not UTF-8.

    confluent-kafka returns such headers with an error set, for which `map` looks, but not the bytecode of a loop.
    """
    column = map(Message.headers, messages)
    found: list[Any] = []
    while len(found) < len(messages):
        try:
            found.extend(column)
        except UNREADABLE:
            found.append(_without_headers(messages[len(found)]))
    return map(tuple, (headers or () for headers in found)) if any(found) else repeat(())


def _without_headers(message: Message) -> tuple[()]:
    """Replace headers that confluent-kafka cannot read.

    It raises an error for them and keeps them half built: the next call for that message would crash.
    """
    message.set_headers([])
    place = (message.topic(), message.partition(), message.offset())
    _log.warning("%s/%s offset %s: the name of a header is not UTF-8; it is returned without headers", *place)
    return ()
