"""The machine thread: what it does of the machine's effects while the application's thread is at work, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast
from unittest import mock

import pytest

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import NoOffsetError
from consumer_agent.kafka.elsewhere import LookAtKafka
from consumer_agent.kafka.offset_store import KafkaOffsetStore
from consumer_agent.kafka.watchdog import WatchedFetcher
from consumer_agent.membership.effects import (
    CommitToKafka,
    PlacePartitions,
    RecordFetcher,
    ResumeFetching,
    StartFetching,
    TellOrigins,
)
from consumer_agent.membership.events import Abandoned, Event, GaveUp, KafkaCommitted, NotOpened, Origin, Tick
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.runtime import machine_thread
from consumer_agent.runtime.machine_thread import DROPPED_TIMEOUT_MS, MachineThread
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Finished, RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.messages import ROOMY
from zkrebalancer.protocol.calls import Done, Lost, Refusal, Refused, Replied
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

P0, P1 = ("t", 0), ("t", 1)


class Fetcher:
    """Notes what is to be fetched; before it takes the lock, the application may seek."""

    def __init__(self, seek: Callable[[], object]) -> None:
        self.seek = seek
        self.changes: dict[TopicPartition, int | None] = {}

    def change(self, decide: Callable[[], Mapping[TopicPartition, int | None]]) -> None:
        self.seek()
        self.changes |= decide()


class Setting:
    """A machine thread that does not run: the test performs effects."""

    def __init__(self, seek: dict[TopicPartition, int], begins: str = "none") -> None:
        self.shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
        self.fetcher = Fetcher(lambda: self.shared.buffer.seek(seek, is_finished=True))
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g", auto_offset_reset=begins)
        fetcher = cast("WatchedFetcher", self.fetcher)
        self.machine_thread = MachineThread(config, mock.MagicMock(), self.shared, fetcher, Telemetry(None, "g"))

    def perform(self, effect: StartFetching | ResumeFetching | PlacePartitions) -> None:
        self.machine_thread._performers[type(effect)](effect)

    def failure(self) -> object:
        with self.shared.lock:
            return self.shared.take_failure()


@pytest.mark.parametrize("offset", [5, 20])
def test_who_seeks_in_on_assign_gets_the_records_from_there_on(offset: int) -> None:
    """Also backwards, and while the machine thread is about to begin to fetch: the partition has been announced."""
    setting = Setting({P0: offset})
    setting.perform(StartFetching({P0: 17}, 1))
    assert setting.fetcher.changes == {P0: offset}
    setting.shared.stop([P0])
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0})))
    assert setting.fetcher.changes == {P0: offset}


def test_a_partition_without_a_place_is_told_of_and_not_fetched_unless_on_assign_has_sought() -> None:
    setting = Setting({P1: 3})
    setting.perform(StartFetching({P0: NO_OFFSET, P1: NO_OFFSET}, 1))
    assert setting.fetcher.changes == {P1: 3}
    assert isinstance(setting.failure(), NoOffsetError)
    setting.shared.stop([P0, P1])
    assert setting.failure() is None
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0, P1})))
    assert setting.fetcher.changes == {P1: 3}
    assert str(setting.failure()).startswith("t/0: no offset of group g is stored")


def test_a_partition_whose_beginning_is_not_known_yet_raises_nothing_and_begins_once_it_is() -> None:
    """In `MachineThread._fail_without_position`, do not look at the setting: the application is told to seek."""
    setting = Setting({P1: 3}, "earliest")
    setting.perform(StartFetching({P0: NO_OFFSET, P1: NO_OFFSET}, 1))
    setting.shared.stop([P0])
    setting.perform(ResumeFetching(frozenset({P0})))  # its stop was cancelled
    assert (setting.fetcher.changes, setting.failure()) == ({P1: 3}, None)
    with setting.shared.lock:
        assert setting.shared.metrics()["unpositioned_partitions"] == 1
    setting.fetcher.changes.clear()
    setting.perform(PlacePartitions({P0: 17, P1: 9, ("t", 2): 1}))  # P1: sought; t/2: given up meanwhile
    assert setting.fetcher.changes == {P0: 17}
    assert {tp: tuple(mark) for tp, mark in setting.shared.positions().items()} == {P0: (17, 17), P1: (3, 3)}
    with setting.shared.lock:
        assert setting.shared.metrics()["unpositioned_partitions"] == 0


def test_a_partition_of_which_kafka_has_not_said_what_is_stored_raises_nothing_until_that_is_nothing() -> None:
    """In `MachineThread._fail_without_position`, raise: an application that seeks to the beginning reads all again."""
    setting = Setting({})
    setting.perform(StartFetching({P0: NO_OFFSET, P1: NO_OFFSET}, 1, unread=frozenset({P0, P1})))
    setting.shared.stop([P0, P1])
    setting.perform(ResumeFetching(frozenset({P0, P1})))  # its stop was cancelled
    assert (setting.fetcher.changes, setting.failure()) == ({}, None)
    setting.perform(PlacePartitions({P0: 17}))
    assert (setting.fetcher.changes, setting.failure()) == ({P0: 17}, None)
    setting.perform(PlacePartitions({P1: NO_OFFSET}))
    assert str(setting.failure()).startswith("t/1: no offset of group g is stored")
    setting.shared.stop([P1])
    setting.perform(PlacePartitions({P1: NO_OFFSET}))
    assert setting.failure() is None  # it is being given up
    setting.perform(StartFetching({P1: NO_OFFSET}, 2))
    assert str(setting.failure()).startswith("t/1: no offset of group g is stored")


def test_not_even_the_beginning_of_a_partition_is_finished_if_no_copy_of_its_state_is_stored() -> None:
    """In `MachineThread._start_fetching`, leave that out: a leave stores where it began, and names no copy."""
    setting = Setting({})
    setting.perform(StartFetching({P0: 17, P1: 5}, 1, copyless=frozenset({P1})))
    assert setting.fetcher.changes == {P0: 17, P1: 5}
    assert {tp: tuple(mark) for tp, mark in setting.shared.positions().items()} == {P0: (17, 17), P1: (5, NO_OFFSET)}
    setting.shared.finish_below({P1: Finished(5)})  # now there is one
    assert setting.shared.positions()[P1].finished == 5


def test_what_zookeeper_refuses_is_counted_unless_another_client_was_faster() -> None:
    """In `MachineThread._step`, count every refusal, or none."""
    setting = Setting({})
    for refusal in Refusal:
        setting.machine_thread._step(Replied(1, Refused(refusal)))
    setting.machine_thread._step(Replied(2, Done()))
    wanted = {Refusal.NO_AUTH, Refusal.QUOTA_EXCEEDED, Refusal.MARSHALLING, Refusal.UNIMPLEMENTED}
    wanted |= {Refusal.NOT_ALLOWED, Refusal.TOO_LARGE}
    with setting.shared.lock:
        assert setting.shared.metrics()["zookeeper_refusals_total"] == len(wanted)


def test_with_the_thread_its_clients_for_offsets_in_kafka_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._run`, close only the store: a look's client and thread stay until its request ends."""
    setting = Setting({})
    thread, look = setting.machine_thread, mock.Mock(spec=LookAtKafka)
    monkeypatch.setattr(thread, "_fetcher", mock.Mock())
    monkeypatch.setattr(thread, "_look", look)
    monkeypatch.setattr(thread, "_running", False)
    thread.start()
    thread.join(WITHIN_S)
    assert look.mock_calls[-1] == mock.call.close()


def test_a_commit_to_kafka_has_until_the_lease_ends_and_none_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._commit_to_kafka`, send it up to 10 s later: the next owner may have begun."""
    timeouts_s: list[float] = []
    sent: list[Event] = []
    setting = Setting({})
    store = mock.Mock(spec=KafkaOffsetStore)
    store.commit.side_effect = lambda _offsets, timeout_s, _answer: timeouts_s.append(timeout_s)
    monkeypatch.setattr(setting.machine_thread, "_store", store)
    monkeypatch.setattr(setting.machine_thread, "send", sent.append)
    for token, until_ms in enumerate((250, 1, 0, -9_999)):  # it is 0 now
        setting.machine_thread._commit_to_kafka(CommitToKafka(token, {P0: (5, "")}, until_ms))
    assert timeouts_s == [0.25, 0.001]
    assert sent == [KafkaCommitted(token, {P0: "too late"}, is_hopeless=False) for token in (2, 3)]


def test_a_dropped_consumer_leaves_and_is_abandoned_if_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._leave_by_itself`, never abandon it: its thread and its session would stay for good."""
    setting = Setting({})
    step = cast("mock.Mock", setting.machine_thread._machine.step)
    setting.machine_thread.dropped = "was dropped without close()"
    for at_ms in (0, DROPPED_TIMEOUT_MS - 1, DROPPED_TIMEOUT_MS):
        monkeypatch.setattr(machine_thread, "now_ms", lambda at_ms=at_ms: 1_000 + at_ms)
        setting.machine_thread._leave_by_itself()
    gave_up = GaveUp("the consumer was dropped without close()")
    assert step.call_args_list == [mock.call(gave_up, 1_000), mock.call(Abandoned(), 1_000 + DROPPED_TIMEOUT_MS)]


def test_what_a_round_leaves_over_is_handled_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._round`, wait as if nothing was left: the next event would be late by a look's interval."""
    thread, flag = Setting({}).machine_thread, mock.Mock()
    monkeypatch.setattr(machine_thread, "EVENTS_PER_ROUND", 2)
    monkeypatch.setattr(thread, "_flag", flag, raising=False)
    monkeypatch.setattr(thread, "_fetcher", mock.Mock())
    cast("mock.Mock", thread._machine).wake_at_ms = None
    thread._events.extend(Replied(number, Done()) for number in range(3))
    waits = []
    for _ in range(3):
        thread._round()
        waits.append((len(thread._events), flag.wait.call_count))
    assert waits == [(1, 0), (0, 0), (0, 1)]


def test_each_round_and_each_step_shows_that_the_thread_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._round` or `_step`, note nothing: an agent at rest, or one at much work, would be killed."""
    setting = Setting({})
    thread, moved = setting.machine_thread, list[int | None]()
    monkeypatch.setattr(thread, "_flag", mock.Mock(), raising=False)
    monkeypatch.setattr(thread, "_fetcher", mock.Mock())
    cast("mock.Mock", thread._machine).wake_at_ms = None
    for at_ms, work in ((50_000, thread._round), (60_000, lambda: thread._step(Tick()))):
        monkeypatch.setattr(machine_thread, "now_ms", lambda at_ms=at_ms: at_ms)
        work()
        moved.append(setting.shared.presence.looped_ms)
    assert moved == [50_000, 60_000]


def test_a_session_that_was_replaced_tells_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `MachineThread._open_session`, take all events: the end of the former session would end the present one."""
    thread, clients = Setting({}).machine_thread, mock.Mock(side_effect=[mock.Mock(), mock.Mock()])
    monkeypatch.setattr(thread, "_flag", mock.Mock(), raising=False)
    monkeypatch.setattr(machine_thread, "ZkClient", clients)
    thread._open_session()
    thread._open_session()
    for opened in clients.call_args_list:
        take = opened.args[2]
        take(Lost())
    assert list(thread._events) == [Lost()]


@pytest.mark.parametrize("where", ["made", "started"])
@pytest.mark.parametrize("error", [ConfigurationError("p: cannot be read"), OSError(24, "no descriptors")])
def test_a_session_that_cannot_be_opened_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    """In `MachineThread._open_session`, let it raise: replacing a password could end a consumer."""
    thread, client = Setting({}).machine_thread, mock.Mock()
    new_client = mock.Mock(side_effect=error) if where == "made" else mock.Mock(return_value=client)
    client.start.side_effect = error
    monkeypatch.setattr(machine_thread, "ZkClient", new_client)
    thread._open_session()
    (event,) = thread._events
    assert isinstance(event, NotOpened)
    assert str(event.error) == f"no ZooKeeper session can be opened: {error}"
    assert event.error.__cause__ is error
    assert thread._client is None


def test_where_partitions_begin_is_forgotten_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics come and go for a year; a region asks about those that it has, or believes to have."""
    monkeypatch.setattr(machine_thread, "MIN_ORIGINS", 10)
    setting = Setting({})
    setting.machine_thread._many_origins = 10
    for number in range(100):
        partition = ("t", number)
        setting.machine_thread._tell_origins(TellOrigins({partition: Origin("id", 0)}))
        setting.shared.admit(partition, 1, 0)
        if number == 3:
            setting.shared.tell(Tell.ASSIGNED, [partition])
            with setting.shared.lock:
                setting.shared.next_notice()  # the application knows of it until it polls again
        if number < 90:
            setting.shared.forget([partition])
    origins = setting.shared.origins
    assert len(origins) < 40
    assert origins.keys() >= {("t", 3), *(("t", number) for number in range(90, 100))}


@pytest.mark.parametrize(("kind", "late_ms"), [("fetcher_started", 2_307), ("fetcher_stopped", 7)])
def test_a_start_is_dated_before_a_process_was_suspended_within_its_step(
    monkeypatch: pytest.MonkeyPatch, kind: str, late_ms: int
) -> None:
    """In `RecordFetcher.as_of_step`, date it when it is written: by then, others may own the partition.

    Or date a stop so, too: the application got records after that.
    """
    now = iter([10_000, 12_300])
    monkeypatch.setattr(machine_thread, "now_ms", lambda: next(now))
    setting = Setting({})
    started = RecordFetcher(kind, "c", 3, None, {P0: 5}, late_ms=7)
    machine = mock.Mock()
    machine.step.return_value = [started]
    telemetry = mock.Mock(spec=Telemetry)
    monkeypatch.setattr(setting.machine_thread, "_machine", machine)
    monkeypatch.setattr(setting.machine_thread, "_telemetry", telemetry)
    setting.machine_thread._step(Tick())
    machine.step.assert_called_once_with(Tick(), 10_000)
    telemetry.fetcher.assert_called_once_with(replace(started, late_ms=late_ms))
