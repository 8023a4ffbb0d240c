"""An application that finds no records takes what Kafka's client has ready, by the fetcher's own rules."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.fetcher import (
    ALERT_LOOK_INTERVAL_MS,
    ALERT_MS,
    LOOK_INTERVAL_MS,
    MAX_ROUND_RECORDS,
    Fetcher,
)
from consumer_agent.records import Batch
from consumer_agent.runtime.record_buffer import BufferSettings, Prefetch, RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.admin import Admin
from tests.unit.consumer_agent.messages import ROOMY, messages

PARTITION, OTHER = ("orders", 0), ("payments", 0)
MANY = 100
DEADLINE_S = WITHIN_S


class Client:
    """Stands for librdkafka: what is `ready`, and something that happens while it is being handed over."""

    def __init__(self) -> None:
        self.ready: list[Message] = []
        self.waiting: list[Message] = []
        self.asked_for: list[int] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.is_closed = False
        self.assigned_at: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()

    def consume(self, count: int, **_: float) -> list[Message]:
        assert not self.is_closed
        self.asked_for.append(count)
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.meanwhile()
        return taken

    def poll(self, _timeout_s: float) -> Message | None:
        self.meanwhile()
        return self.waiting.pop() if self.waiting else None

    def close(self) -> None:
        self.is_closed = True

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned_at |= {(one.topic, one.partition): one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.assigned_at.pop((one.topic, one.partition), None)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= self._assigned(partitions)  # outlives the assignment

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= self._assigned(partitions)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions  # with OFFSET_INVALID, as nothing of them was handed over

    def _assigned(self, partitions: list[TopicPartition]) -> set[tuple[str, int]]:
        named = {(one.topic, one.partition) for one in partitions}
        assert named <= self.assigned_at.keys(), "librdkafka may not know these partitions any more"
        return named

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        described = mock.Mock(partitions={0: mock.Mock(leader=1), 1: mock.Mock(leader=1)})
        return mock.Mock(topics={"orders": described, "payments": described})


class Setting:
    """A fetcher whose thread does not run, with both partitions assigned; `woken` counts the calls of that thread."""

    def __init__(self, settings: BufferSettings = ROOMY) -> None:
        self.client = Client()
        self.now_ms = 0
        self.shared = SharedState(RecordBuffer(settings), lambda: self.now_ms)
        self.shared.emit_until(2 * LOOK_INTERVAL_MS)
        self.woken = 0
        with (
            mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=self.client),
            mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=Admin(lambda *_: 0, holds=True)),
        ):
            self.fetcher = Fetcher(ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g"), [], self.shared)
        for partition in (PARTITION, OTHER):
            self.shared.admit(partition, 1, 0)
        self.fetcher.change(lambda: {PARTITION: 0, OTHER: 0})
        self.fetcher._begin_round()
        self.shared.fetcher_wake.listeners = [self._wake]

    def _wake(self) -> None:
        self.woken += 1

    def draw(self, count: int = MANY) -> None:
        self.fetcher.draw(count, are_awaited=True)

    def take(self, max_records: int = MANY) -> list[tuple[str, int]]:
        with self.shared.lock:
            batch = Batch(self.shared.take(max_records, lambda *_: None))
        return [(record.topic, record.offset) for record in batch]


def news(code: int, offset: int = 0) -> Message:
    """What librdkafka says of the first partition, as a message without a record."""
    kafka: Any = Message
    return kafka(topic="orders", partition=0, offset=offset, error=KafkaError(code))  # type: ignore[no-any-return]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_what_is_ready_is_taken_without_the_fetcher(setting: Setting) -> None:
    setting.client.ready = [*messages(PARTITION, [0, 1, 2]), *messages(OTHER, [0]), *messages(PARTITION, [3])]
    setting.draw()
    assert sorted(setting.take()) == [("orders", n) for n in range(4)] + [("payments", 0)]
    assert setting.woken == 0


def test_after_a_full_round_of_the_fetcher_the_next_is_one_call_as_long_as_something_comes(setting: Setting) -> None:
    setting.client.waiting, setting.client.ready = messages(PARTITION, [0]), messages(PARTITION, range(1, 10))
    assert setting.fetcher._fetch(10)
    with mock.patch.object(setting.client, "poll", return_value=None) as polled:
        setting.client.ready = messages(PARTITION, range(10, 15))
        assert setting.fetcher._fetch(10)
        polled.assert_not_called()
        assert not setting.fetcher._fetch(10)
        polled.assert_called_once()
    assert [offset for _topic, offset in setting.take()] == list(range(15))


def test_no_more_is_drawn_than_is_about_to_be_taken(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, range(5))
    setting.draw(2)
    assert len(setting.client.ready) == 3
    assert setting.take() == [("orders", 0), ("orders", 1)]


def test_the_fetcher_waits_for_records_when_none_are_ready(setting: Setting) -> None:
    setting.draw()
    assert setting.take() == []
    assert setting.woken == 1


def test_the_fetcher_waits_for_records_after_news_that_are_none(setting: Setting) -> None:
    """The end of a partition is reached: whatever comes after it has to be waited for."""
    setting.client.ready = [news(KafkaError._PARTITION_EOF)]
    setting.draw()
    assert setting.take() == []
    assert setting.woken == 1


def test_markers_at_the_end_of_a_partition_are_no_lag(setting: Setting) -> None:
    setting.client.ready = [*messages(PARTITION, [0, 1, 2]), news(KafkaError._PARTITION_EOF, 4)]
    setting.draw()
    setting.shared.ends.note({PARTITION: 4}, [PARTITION], 0)
    assert setting.shared.ends.each({PARTITION: 1}, 0) == {PARTITION: 2}
    setting.client.ready = [news(KafkaError._PARTITION_EOF, 9)]  # after an aborted transaction
    setting.draw()
    setting.shared.ends.note({PARTITION: 9}, [PARTITION], 0)
    assert setting.shared.ends.each({PARTITION: 3}, 0) == {PARTITION: 0}


def test_the_fetcher_waits_for_records_until_some_have_come(setting: Setting) -> None:
    setting.draw()
    before = setting.shared.is_awaited
    setting.client.waiting = messages(PARTITION, [0])
    setting.fetcher._fetch(1)
    assert (before, setting.shared.is_awaited) == (True, False)
    setting.shared.is_awaited = True
    setting.client.waiting = messages(PARTITION, [1])
    setting.fetcher._fetch(3)
    assert setting.shared.is_awaited  # fewer than there is room for: it goes on
    assert setting.take() == [("orders", 0), ("orders", 1)]


def test_many_are_drawn_round_by_round_until_the_buffer_or_the_client_has_no_more(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, range(ROOMY.limit + MAX_ROUND_RECORDS + 1))
    setting.draw(10 * MAX_ROUND_RECORDS)
    assert setting.client.asked_for == [MAX_ROUND_RECORDS]
    assert len(setting.take(10 * MAX_ROUND_RECORDS)) == MAX_ROUND_RECORDS
    setting.draw(MAX_ROUND_RECORDS)
    assert setting.client.asked_for == 2 * [MAX_ROUND_RECORDS]
    assert setting.woken == 0


def test_the_garbage_collector_is_back_after_many_were_drawn(setting: Setting) -> None:
    enabled: list[bool] = []
    setting.client.ready = messages(PARTITION, [0])
    setting.client.meanwhile = lambda: enabled.append(gc.isenabled())
    setting.draw(MAX_ROUND_RECORDS + 1)
    setting.draw(MAX_ROUND_RECORDS)
    assert (enabled, gc.isenabled()) == ([False, True], True)


def test_it_is_said_of_which_partitions_records_came(setting: Setting) -> None:
    setting.client.ready = [*messages(OTHER, [0]), news(KafkaError._PARTITION_EOF)]
    assert setting.fetcher.draw(MANY) == {OTHER}


def test_the_fetcher_looks_for_silence_when_that_is_due(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, [0])
    setting.now_ms = LOOK_INTERVAL_MS
    setting.draw()
    assert setting.woken == 1


def test_a_silent_partition_is_found_while_records_of_another_keep_coming() -> None:
    """In `Fetcher._fetch`, look for stalls only after rounds without records: a busy consumer never looks."""
    setting = Setting()
    setting.fetcher.queries._client = Admin(lambda partition, _where: 9 if partition == OTHER else 0)  # type: ignore[assignment]
    stuck = []
    for look in range(1, 4):
        setting.now_ms = look * LOOK_INTERVAL_MS
        setting.client.waiting = messages(PARTITION, [look])
        assert setting.fetcher._fetch(MANY)
        setting.fetcher._begin_round()  # handles the answer
        stuck.append(setting.fetcher.stuck)
    assert stuck == [[], [], [OTHER]]


def test_nothing_is_looked_for_while_the_client_may_have_more() -> None:
    """In `Fetcher._fetch`, look for stalls after full rounds too: records that wait in the client would be silence."""
    setting = Setting()
    setting.now_ms = LOOK_INTERVAL_MS
    setting.client.waiting, setting.client.ready = messages(PARTITION, [0]), messages(PARTITION, range(1, MANY))
    assert setting.fetcher._fetch(2)
    assert setting.fetcher._look_at_ms == LOOK_INTERVAL_MS


def test_after_a_brokers_trouble_it_looks_sooner_for_a_while(setting: Setting) -> None:
    def look_at(now_ms: int) -> int:
        setting.now_ms, setting.woken = now_ms, 0
        setting.client.ready = messages(PARTITION, [0])
        setting.draw()
        setting.fetcher._look_for_stalls()
        return setting.woken

    setting.fetcher._broker_error(KafkaError(KafkaError._TRANSPORT))
    assert [look_at(ALERT_LOOK_INTERVAL_MS - 1), look_at(ALERT_LOOK_INTERVAL_MS)] == [0, 1]
    assert [look_at(2 * ALERT_LOOK_INTERVAL_MS - 1), look_at(2 * ALERT_LOOK_INTERVAL_MS)] == [0, 1]
    setting.shared.emit_until(4 * ALERT_MS)
    assert look_at(ALERT_MS) == 1
    assert [look_at(ALERT_MS + LOOK_INTERVAL_MS - 1), look_at(ALERT_MS + LOOK_INTERVAL_MS)] == [0, 1]


def test_a_fetcher_that_was_replaced_says_nothing_of_partitions(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Complaints`, do not ask `is_over`: a call that hung may return long after another client has begun."""

    def unreadable() -> float:
        with setting.shared.lock:
            return setting.shared.metrics()["unreadable_partitions"]

    failing = [news(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    setting.fetcher.stop()
    setting.fetcher._take_in(failing)
    assert (unreadable(), caplog.records) == (0, [])
    setting.shared.note_fetches(failing=[PARTITION])  # by the other client
    setting.fetcher._take_in(messages(PARTITION, [0]))
    assert unreadable() == 1


def test_a_refusal_is_told_once_until_records_come_again(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    topic, number = PARTITION
    refusal = Message(topic=topic, partition=number, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    unreadable = []
    for ready in ([refusal], [refusal], messages(PARTITION, [0]), [refusal]):
        setting.client.ready = ready
        setting.draw()
        unreadable.append(setting.shared.metrics()["unreadable_partitions"])
    assert unreadable == [1, 1, 0, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_what_an_interrupt_loses_is_fetched_again(setting: Setting) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    setting.client.ready = messages(PARTITION, range(3))
    setting.draw()
    setting.client.ready = messages(PARTITION, [3, 4])
    setting.client.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        setting.draw()
    setting.client.meanwhile = lambda: None
    assert setting.woken == 1
    setting.fetcher._begin_round()
    assert setting.client.assigned_at == {PARTITION: 3, OTHER: 0}


def test_what_an_interrupt_loses_is_fetched_from_where_it_is_wanted_by_now(setting: Setting) -> None:
    """In `RecordBuffer.again`, name all partitions, or where they were: a stop, or a seek, would be undone."""
    buffer = setting.shared.buffer

    def interrupt() -> None:
        setting.fetcher.change(lambda: buffer.seek({PARTITION: 70}, is_finished=False))
        buffer.stop([OTHER])
        setting.fetcher.unassign([OTHER])
        raise KeyboardInterrupt

    setting.client.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        setting.draw()
    setting.fetcher._begin_round()
    assert setting.client.assigned_at == {PARTITION: 70}


SMALL = BufferSettings(limit=2, max_records=8, max_bytes=1_000_000, prefetch=Prefetch.PER_PARTITION)
MOVES = st.lists(
    st.tuples(st.sampled_from(["come", "come", "take", "stop", "start", "seek"]), st.sampled_from([PARTITION, OTHER])),
    max_size=30,
)


@given(MOVES)
def test_exactly_what_is_held_back_is_paused_whatever_is_assigned_meanwhile(
    moves: list[tuple[str, tuple[str, int]]],
) -> None:
    """A pause outlives its assignment: in `Fetcher._change_assignment`, do not end it."""
    setting = Setting(SMALL)
    shared, fetcher, client = setting.shared, setting.fetcher, setting.client
    for move, partition in moves:
        position = shared.buffer.next_offset(partition)
        if move == "come" and position is not None and partition not in client.paused:
            client.ready = messages(partition, range(position, position + 4))
            fetcher.draw(MANY)
            client.ready = []
        elif move == "take":
            setting.take(1)
        elif move == "stop" and position is not None:
            shared.stop([partition])
            fetcher.unassign([partition])
        elif move == "start" and position is None:
            shared.admit(partition, 1, 0)
            fetcher.change(lambda partition=partition: {partition: 0})  # type: ignore[misc]
        elif move == "seek" and position is not None:
            fetcher.change(lambda partition=partition: shared.buffer.seek({partition: 0}, is_finished=False))  # type: ignore[misc]
        fetcher._begin_round()
        assert client.paused == shared.buffer.held_back() & fetcher._assigned
        assert client.assigned_at.keys() == fetcher._assigned == set(shared.buffer.fetched())


def test_records_of_a_partition_that_is_stopped_meanwhile_are_dropped(setting: Setting) -> None:
    setting.client.ready = [*messages(PARTITION, [0]), *messages(OTHER, [0])]
    setting.client.meanwhile = lambda: setting.shared.stop([PARTITION])
    setting.draw()
    assert setting.take() == [("payments", 0)]


def test_records_of_a_partition_that_is_to_be_read_elsewhere_are_dropped(setting: Setting) -> None:
    setting.client.ready = messages(PARTITION, [0])
    setting.client.meanwhile = lambda: setting.fetcher.change(lambda: {PARTITION: 7})
    setting.draw()
    assert setting.take() == []


def test_what_waits_in_the_buffer_is_bounded_also_when_it_is_drawn(setting: Setting) -> None:
    setting.shared.emit_until(0)  # nothing may be returned
    setting.client.ready = messages(PARTITION, range(ROOMY.max_records + 10))
    for _ in range(ROOMY.max_records):
        setting.draw()
    assert setting.shared.buffer.record_count <= ROOMY.limit + MANY


def test_a_call_that_hangs_holds_up_nobody_who_draws(setting: Setting) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        released.wait(DEADLINE_S)

    setting.draw()
    setting.client.meanwhile = hang
    setting.fetcher._connect = lambda: None  # type: ignore[method-assign]
    setting.fetcher.start()
    assert hangs.wait(DEADLINE_S)
    setting.client.ready = messages(PARTITION, [0])
    setting.draw()
    assert len(setting.client.ready) == 1
    setting.fetcher.stop()
    released.set()
    setting.fetcher.join(DEADLINE_S)
    setting.draw()  # the client is closed: it is not asked
    assert setting.take() == []


def test_an_offset_out_of_range_is_left_to_the_fetcher(setting: Setting) -> None:
    setting.client.ready = [news(KafkaError._AUTO_OFFSET_RESET), *messages(OTHER, [0])]
    setting.draw()
    assert setting.take() == [("payments", 0)]
    assert setting.woken == 1
    with mock.patch.object(setting.fetcher, "_ask_for_ends") as asked:
        setting.fetcher._begin_round()
    asked.assert_called_once()


def test_an_answer_wakes_the_fetchers_thread() -> None:
    """It may wait for work by then: a partition whose offset does not exist would wait with it."""
    setting = Setting()
    found: list[object] = []
    setting.fetcher._ask([PARTITION], ["latest"], found.append)
    woken = setting.woken
    setting.fetcher.queries._client.release()  # type: ignore[union-attr]  # it is an `Admin`
    assert setting.woken == woken + 1
    setting.fetcher._begin_round()
    assert found == [{"latest": {PARTITION: 0}}]


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_round_fetches_no_more_than_there_is_room_for(room: int) -> None:
    setting = Setting()
    setting.client.waiting, setting.client.ready = messages(PARTITION, [0]), messages(PARTITION, range(1, MANY))
    assert setting.fetcher._fetch(room)
    assert setting.shared.buffer.record_count == room
