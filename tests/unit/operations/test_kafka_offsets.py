"""Reading offsets, with a fake Kafka consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import gevent
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import END, FIRST, NO_OFFSET, KafkaOffsetsError, log_ends, offsets_at

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
KAFKA = {"bootstrap.servers": "b:1"}
ENDS = {FIRST: 3, END: 90}
WAIT_S = 10.0


class Answer:
    """A fake `TopicPartition`, because the real one's `error` cannot be set from Python."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self.topic, self.partition, self.offset, self.error = "t", partition, offset, error


class Brokers:
    """A fake Kafka consumer with the methods that `kafka_offsets` uses."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.closed = 0

    def offsets_for_times(self, asked: list[TopicPartition], **_timeout: float) -> list[Answer]:
        (time_ms,) = {partition.offset for partition in asked}
        if time_ms in ENDS:
            return [Answer(partition.partition, ENDS[time_ms]) for partition in asked]
        assert time_ms == int(MOMENT.timestamp() * 1_000)
        return list(self.answers)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Brokers]:
    def prepare(*answers: Answer) -> Brokers:
        brokers = Brokers(*answers)
        monkeypatch.setattr(kafka_offsets, "_consumer", lambda _settings: brokers)
        return brokers

    return prepare


def test_a_time_after_the_last_record_gives_the_end(answering: Callable[..., Brokers]) -> None:
    brokers = answering(Answer(0, 17), Answer(1, NO_OFFSET))
    assert offsets_at(KAFKA, [("t", 0), ("t", 1)], MOMENT) == {("t", 0): 17, ("t", 1): 90}
    assert brokers.closed == 2


def test_an_invalid_offset_is_an_error(answering: Callable[..., Brokers]) -> None:
    answering(Answer(0, 17), Answer(1, OFFSET_INVALID))
    with pytest.raises(KafkaOffsetsError, match="no offset of t/1 from Kafka at b:1: no answer"):
        offsets_at(KAFKA, [("t", 0), ("t", 1)], MOMENT)


def test_a_partition_that_kafka_does_not_know_is_an_error(answering: Callable[..., Brokers]) -> None:
    """Kafka's answer for it is a negative number, which must not be stored as an offset."""
    brokers = answering(Answer(0, 17), Answer(1, -1001, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    with pytest.raises(KafkaOffsetsError, match="no offset of t/1 from Kafka at b:1"):
        offsets_at(KAFKA, [("t", 0), ("t", 1)], MOMENT)
    assert brokers.closed == 1


def test_both_ends_of_all_partitions_need_two_requests(answering: Callable[..., Brokers]) -> None:
    brokers = answering()
    assert log_ends(KAFKA, [("t", 0), ("t", 1)]) == {("t", 0): (3, 90), ("t", 1): (3, 90)}
    assert brokers.closed == 2


class SlowBrokers(Brokers):
    """They answer once a greenlet has run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = threading.Event()
        gevent.spawn(self.ran.set)

    def offsets_for_times(self, asked: list[TopicPartition], **_timeout: float) -> list[Answer]:
        assert self.ran.wait(WAIT_S)
        return super().offsets_for_times(asked)


def test_connections_live_while_brokers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `in_thread`, ask at once: after some questions in a row, the ZooKeeper session of a command is over."""
    brokers = SlowBrokers()
    monkeypatch.setattr(kafka_offsets, "_consumer", lambda _settings: brokers)
    assert log_ends(KAFKA, [("t", 0)]) == {("t", 0): (3, 90)}
