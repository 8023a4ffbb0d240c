"""The age of the first unread record, with a fake of Kafka's consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException

from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError
from zkrebalancer.operations.lag_age import READ_TIMEOUT_S, first_unread_ms

KAFKA = {"bootstrap.servers": "b:1", "client.id": "ops"}


class Message:
    def __init__(
        self,
        partition: int,
        timestamp_ms: int = 0,
        error: int | None = None,
        kind: int = TIMESTAMP_CREATE_TIME,
        offset: int = 12,
    ) -> None:
        self.offset = lambda: offset
        self._partition, self._timestamp, self._error = partition, (kind, timestamp_ms), error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Reader:
    """A fake consumer: `answers` are the messages of each call of `consume`, which takes a second."""

    def __init__(self, *answers: list[Message], error: KafkaException | None = None) -> None:
        self._answers: Iterator[list[Message]] = iter(answers)
        self._error = error
        self.settings: dict[str, Any] = {}
        self.assigned: list[tuple[str, int, int]] = []
        self.paused: list[list[int]] = []
        self.seconds = 0.0
        self.closed = 0

    def assign(self, partitions: list[Any]) -> None:
        if self._error is not None:
            self.settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
            raise self._error
        self.assigned = [(one.topic, one.partition, one.offset) for one in partitions]

    def consume(self, _count: int, _timeout: float) -> list[Message]:
        self.seconds += 1
        return next(self._answers, [])

    def get_watermark_offsets(self, _partition: object, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, 12

    def pause(self, partitions: list[Any]) -> None:
        self.paused.append([one.partition for one in partitions])

    def poll(self, _timeout: float) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


def read(monkeypatch: pytest.MonkeyPatch, reader: Reader, *partitions: int) -> dict[Any, int | None]:
    def opened(settings: dict[str, Any]) -> Reader:
        reader.settings = settings
        return reader

    monkeypatch.setattr(kafka_offsets, "Consumer", opened)
    monkeypatch.setattr("zkrebalancer.operations.lag_age.time.monotonic", lambda: reader.seconds)
    return first_unread_ms(KAFKA, {("t", number): 10 + number for number in partitions})


def test_the_first_record_of_each_partition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_read`, take the last one; do not pause what was read."""
    reader = Reader([Message(0, 700), Message(0, 800)], [], [Message(1, 900), Message(0, 850)])
    assert read(monkeypatch, reader, 1, 0) == {("t", 0): 700, ("t", 1): 900}
    assert reader.assigned == [("t", 0, 10), ("t", 1, 11)]
    assert reader.paused == [[0], [1]]
    assert (reader.seconds, reader.closed) == (3, 1)


def test_where_nothing_is_left_to_read_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a transaction's marker is there."""
    reader = Reader([Message(0, error=KafkaError._PARTITION_EOF)])
    assert read(monkeypatch, reader, 0) == {("t", 0): None}
    assert reader.settings["enable.partition.eof"] is True


def test_behind_an_open_transaction_all_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_ends_later`, return False: what waits there for days counts as no lag."""
    reader = Reader([Message(0, error=KafkaError._PARTITION_EOF, offset=11)])
    assert read(monkeypatch, reader, 0) == {}
    assert reader.seconds == 1


def test_what_has_no_timestamp_or_an_error_is_unknown_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = [Message(0, 5, kind=TIMESTAMP_NOT_AVAILABLE), Message(1, error=KafkaError.UNKNOWN_TOPIC_OR_PART)]
    reader = Reader([*unknown, Message(2, 7)])
    assert read(monkeypatch, reader, 0, 1, 2) == {("t", 2): 7}
    assert reader.seconds == 1


def test_what_is_not_read_in_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader([Message(1, 7)])
    assert read(monkeypatch, reader, 0, 1) == {("t", 1): 7}
    assert (reader.seconds, reader.closed) == (READ_TIMEOUT_S, 1)


def test_nothing_of_the_group_is_changed_and_the_users_settings_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    read(monkeypatch, reader)
    known = {key: reader.settings[key] for key in ("enable.auto.commit", "enable.auto.offset.store", *KAFKA)}
    assert known == {"enable.auto.commit": False, "enable.auto.offset.store": False, **KAFKA}
    assert reader.settings["auto.offset.reset"] == "earliest"  # the records at the offset may be deleted


def test_a_client_that_cannot_be_used_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(error=KafkaException(KafkaError(KafkaError._STATE, "no state")))
    with pytest.raises(KafkaOffsetsError) as raised:
        read(monkeypatch, reader, 0)
    assert str(raised.value) == "no records from Kafka at b:1: no state (wrong password)"
    assert reader.closed == 1


def test_connections_live_while_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `first_unread_ms`, read outside of a thread."""
    ran = threading.Event()
    gevent.spawn(ran.set)

    class SlowReader(Reader):
        def consume(self, count: int, timeout: float) -> list[Message]:
            assert ran.wait(10)
            return super().consume(count, timeout)

    assert read(monkeypatch, SlowReader([Message(0, 700)]), 0) == {("t", 0): 700}
