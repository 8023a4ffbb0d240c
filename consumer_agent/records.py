"""What a poll returns: records that are built on access, by C functions that process whole columns.

Kafka's client returns an object per message, whose methods cost 10 ns each. Building a `Record` from it takes as long
as fetching it. So a `Batch` keeps the messages, and `values()` builds no record at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple, overload

from confluent_kafka import Message

from consumer_agent.runtime.record_buffer import Run
from zkrebalancer.protocol.fields import TopicPartition

UNREADABLE = (SystemError, UnicodeDecodeError)  # what confluent-kafka raises for a header whose name is not UTF-8

_log = logging.getLogger(__name__)


class Record(NamedTuple):
    """One record of a topic; `generation`, that of its partition's start, is a fencing token for sinks."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    generation: int


class Batch(Sequence[Record]):
    """Records in offset order per partition. An empty batch is false. `list(batch)` is a copy that can be pickled."""

    __slots__ = ("_length", "_runs")

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        """Wrap the result of `RecordBuffer.take`: a non-empty run for each partition."""
        self._runs = runs
        self._length = sum(len(run.messages) for run in runs)

    def __len__(self) -> int:
        """Return how many records there are."""
        return self._length

    def __iter__(self) -> Iterator[Record]:
        """Return the records one by one, run after run."""
        return chain.from_iterable(map(_records, self._runs))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        """Return a record, or a list of some."""
        if isinstance(index, slice):
            return list(self)[index]
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"there are {self._length} records, and none at {index}")
        for run in self._runs:
            if position < len(run.messages):
                break
            position -= len(run.messages)
        return next(_records(run._replace(messages=run.messages[position : position + 1])))

    def __repr__(self) -> str:
        """Show the numbers of records and partitions."""
        return f"<Batch: {self._length} records of {len(self.by_partition())} partitions>"

    def values(self) -> list[bytes | None]:
        """Return only the values, in the order of the records: the fastest way to read them."""
        values: list[bytes | None] = []
        for run in self._runs:
            values += map(Message.value, run.messages)
        return values

    def by_partition(self) -> dict[TopicPartition, Batch]:
        """Return the records of each partition."""
        return {(run.topic, run.partition): Batch([run]) for run in self._runs}


_KIND, _MOMENT = itemgetter(0), itemgetter(1)


def _records(run: Run) -> Iterator[Record]:
    messages = run.messages
    columns = zip(
        repeat(run.topic),
        repeat(run.partition),
        map(Message.offset, messages),
        map(Message.key, messages),
        map(Message.value, messages),
        readable_headers(messages),
        _timestamps(messages),
        repeat(run.generation),
        strict=False,
    )
    return map(tuple.__new__, repeat(Record), columns)  # as Record._make does, without its check of the length


def _timestamps(messages: Sequence[Message]) -> Iterable[int | None]:
    """Return the timestamp of each message, or None."""
    stamps = list(map(Message.timestamp, messages))
    if all(map(_KIND, stamps)):
        return map(_MOMENT, stamps)
    return (at_ms if kind else None for kind, at_ms in stamps)


def readable_headers(messages: Sequence[Message]) -> Iterable[tuple[Any, ...]]:
    """Return the headers of each message; an empty list if the name of one is not UTF-8.

    confluent-kafka raises an error for such headers and keeps them half built: the next call for that message would
    crash. So this replaces them by an empty list.
    """
    column = map(Message.headers, messages)
    found: list[Any] = []
    while len(found) < len(messages):
        try:
            found.extend(column)
        except UNREADABLE:
            message = messages[len(found)]
            message.set_headers([])
            found.append(None)
            place = (message.topic(), message.partition(), message.offset())
            _log.warning("%s/%s offset %s: the name of a header is not UTF-8; it is returned without headers", *place)
    return map(tuple, (headers or () for headers in found)) if any(found) else repeat(())
