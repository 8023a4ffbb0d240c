"""An application that finds no records takes what Kafka's client has ready, by the fetcher's own rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from consumer_agent.batch import Batch
from consumer_agent.buffer import RecordBuffer
from consumer_agent.config import ConsumerConfig
from consumer_agent.fetcher import Fetcher
from consumer_agent.handover import Handover
from tests.unit.consumer_agent.messages import ROOMY, messages

PARTITION, OTHER = ("orders", 0), ("payments", 0)
MANY = 100
DEADLINE_S = 10.0


class Client:
    """Stands for librdkafka: what is `ready`, and something that happens while it is being handed over."""

    def __init__(self) -> None:
        self.ready: list[Message] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.is_closed = False

    def consume(self, count: int, **_: float) -> list[Message]:
        assert not self.is_closed
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.meanwhile()
        return taken

    def poll(self, _timeout_s: float) -> None:
        self.meanwhile()

    def close(self) -> None:
        self.is_closed = True

    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={}), "payments": mock.Mock(partitions={})})


class Setting:
    """A fetcher whose thread does not run, with both partitions assigned; `woken` counts the calls of that thread."""

    def __init__(self) -> None:
        self.client = Client()
        self.handover = Handover(RecordBuffer(ROOMY), lambda: 0)
        self.handover.emit_until(1)
        self.woken = 0
        with mock.patch("consumer_agent.fetcher.KafkaConsumer", return_value=self.client):
            self.fetcher = Fetcher(ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g"), [], self.handover)
        for partition in (PARTITION, OTHER):
            self.handover.admit(partition, 1, 0)
        self.fetcher.assign({PARTITION: 0, OTHER: 0})
        self.fetcher._begin_round()
        self.handover.fetcher_wake.listeners = [self._wake]

    def _wake(self) -> None:
        self.woken += 1

    def take(self, max_records: int = MANY) -> list[tuple[str, int]]:
        with self.handover.lock:
            batch = Batch(self.handover.take(max_records, lambda *_: None, draws=True))
        return [(record.topic, record.offset) for record in batch]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_what_is_ready_is_taken_without_the_fetcher(setting: Setting) -> None:
    setting.client.ready = [*messages(PARTITION, [0, 1, 2]), *messages(OTHER, [0]), *messages(PARTITION, [3])]
    setting.fetcher.draw(MANY)
    assert sorted(setting.take()) == [("orders", n) for n in range(4)] + [("payments", 0)]
    assert setting.woken == 0


def test_no_more_is_drawn_than_is_about_to_be_taken(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, range(5))
    setting.fetcher.draw(2)
    assert len(setting.client.ready) == 3
    assert setting.take() == [("orders", 0), ("orders", 1)]


def test_the_fetcher_waits_for_records_when_none_are_ready(setting: Setting) -> None:
    setting.fetcher.draw(MANY)
    assert setting.take() == []
    assert setting.woken == 1


def test_records_of_a_partition_that_is_stopped_meanwhile_are_dropped(setting: Setting) -> None:
    setting.client.ready = [*messages(PARTITION, [0]), *messages(OTHER, [0])]
    setting.client.meanwhile = lambda: setting.handover.stop([PARTITION])
    setting.fetcher.draw(MANY)
    assert setting.take() == [("payments", 0)]


def test_records_of_a_partition_that_is_to_be_read_elsewhere_are_dropped(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, [0])
    setting.client.meanwhile = lambda: setting.fetcher.assign({PARTITION: 7})
    setting.fetcher.draw(MANY)
    assert setting.take() == []


def test_what_waits_in_the_buffer_is_bounded_also_when_it_is_drawn(setting: Setting) -> None:
    setting.handover.emit_until(0)  # nothing may be returned
    setting.client.ready = messages(PARTITION, range(ROOMY.max_records + 10))
    for _ in range(ROOMY.max_records):
        setting.fetcher.draw(MANY)
    assert setting.handover.buffer.record_count <= ROOMY.limit + MANY


def test_a_call_that_hangs_holds_up_nobody_who_draws(setting: Setting) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        released.wait(DEADLINE_S)

    setting.client.meanwhile = hang
    setting.fetcher._connect = lambda: None  # type: ignore[method-assign]
    setting.fetcher.start()
    assert hangs.wait(DEADLINE_S)
    setting.client.ready = messages(PARTITION, [0])
    setting.fetcher.draw(MANY)
    assert len(setting.client.ready) == 1
    setting.fetcher.stop()
    released.set()
    setting.fetcher.join(DEADLINE_S)
    setting.fetcher.draw(MANY)  # the client is closed: it is not asked
    assert setting.take() == []


def test_an_offset_out_of_range_is_left_to_the_fetcher(setting: Setting) -> None:
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    kafka: Any = Message
    setting.client.ready = [kafka(topic="orders", partition=0, error=error), *messages(OTHER, [0])]
    setting.fetcher.draw(MANY)
    assert setting.take() == [("payments", 0)]
    assert setting.woken == 1
    with mock.patch.object(setting.fetcher, "_reset") as reset:
        setting.fetcher._begin_round()
    reset.assert_called_once()
