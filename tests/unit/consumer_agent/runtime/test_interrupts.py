"""An interrupt at any point of `poll`, `commit` and `close` loses no record and no callback, and locks nobody out.

Python delivers a signal's exception where a function begins, after a call of C, and where a loop goes back. A profiler
and a tracer raise at each of these points in turn.
"""

from __future__ import annotations

import dis
import gc
import inspect
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Message, TopicPartition

from consumer_agent import Consumer
from consumer_agent.errors import ConsumerStateError
from consumer_agent.membership.events import Abandoned, CloseRequested, CommitRequested, Event, Polled, Revoked
from consumer_agent.runtime.engine import Engine
from consumer_agent.runtime.notices import Tell
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.messages import messages

PARTITION = ("orders", 0)
COUNT = 12
JUMPS_BACK = frozenset(code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name)


class Interrupted(BaseException):
    """Stands for what a signal's handler raises."""


class Interrupt:
    """Raises in this thread at the points with these numbers; counts the points on the way."""

    def __init__(self, *at: int) -> None:
        self.at, self.points = at, 0

    def _point(self) -> None:
        self.points += 1
        if self.points in self.at:
            raise Interrupted

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "c_return" or (event == "call" and frame.f_code.co_filename != __file__):
            self._point()

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:  # as typeshed has it
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_code.co_code[frame.f_lasti] in JUMPS_BACK:
            self._point()
        return self.trace

    def during(self, call: Callable[[], object]) -> object:
        sys.settrace(self.trace)
        sys.setprofile(self.profile)
        try:
            return call()
        finally:
            sys.setprofile(None)
            sys.settrace(None)


class Client:
    """Kafka's client above a log of COUNT records; it hands over where it was assigned, in its own order of calls."""

    def __init__(self) -> None:
        self.next: int | None = None

    def consume(self, count: int, **_: float) -> list[Message]:
        if self.next is None:
            return []
        offsets = range(self.next, min(COUNT, self.next + count))
        self.next = offsets.stop
        return messages(PARTITION, offsets)

    def poll(self, *_: float) -> None: ...

    def close(self) -> None: ...

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.next = partitions[0].offset

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None:
        self.next = None

    def list_topics(self, *_: str, **__: float) -> mock.Mock:
        return mock.Mock(topics={"orders": mock.Mock(partitions={0: mock.Mock(leader=1)})})


class Setting:
    """A consumer with one partition, whose threads the test replaces: it does their work between calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.sent: list[Event] = []
        self.due: list[Tell] = []  # callbacks that were taken
        self.iterator: Iterator[object] = iter(())
        self.client = Client()
        with (
            mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=self.client),
            mock.patch.object(Engine, "start"),
        ):
            self.consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g", max_poll_records=5)
            self.consumer.subscribe(["orders"], on_assign=self._note("assign"), on_revoke=self._note("revoke"))
            self.consumer.poll(0.0)
        self.frontend = self.consumer._frontend
        self.shared = self.frontend.shared
        machine_thread = self.frontend.machine_thread
        assert machine_thread is not None
        machine_thread.send = self._machine  # type: ignore[method-assign]
        machine_thread.join = mock.Mock()  # type: ignore[method-assign]
        self.shared.emit_until(2**60)
        self.shared.admit(PARTITION, 1, 0)
        assert self.frontend._fetcher is not None
        self.fetcher = self.frontend._fetcher.current
        self.fetcher.change(lambda: {PARTITION: 0})
        self.fetcher_round()

    def _note(self, what: str) -> Callable[[list[tuple[str, int]]], None]:
        return lambda partitions: self.told.append((what, len(partitions)))

    def _machine(self, event: Event) -> None:
        self.sent.append(event)
        if isinstance(event, CommitRequested):
            self.shared.commit_finished([event.token], None)
        elif isinstance(event, Abandoned | CloseRequested):
            self.shared.become_closed()

    def fetcher_round(self) -> None:
        """Do what the fetcher's thread does when it is woken; it must not be locked out."""
        assert self.fetcher._in_client.acquire(blocking=False)
        self.fetcher._begin_round()
        self.fetcher._in_client.release()

    def read_all(self) -> list[int]:
        """Return the offsets of all records that come now."""
        offsets: list[int] = []
        for _ in range(COUNT // 2 + 2):  # a poll takes 5 of them
            offsets += [record.offset for record in self.consumer.poll(0.0)]
            self.in_own_thread(self.fetcher_round)
        return offsets

    @staticmethod
    def in_own_thread(call: Callable[[], object]) -> None:
        """Call what another thread does: what the application's thread has left locked locks that out."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except AssertionError as failure:
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WITHIN_S)
        assert not thread.is_alive()
        assert failures == []

    def check_counts(self) -> None:
        """What the buffer counts is what it holds."""
        buffer = self.shared.buffer
        held = list(buffer._partitions.values())
        in_chunks = sum(len(chunk.messages) - chunk.taken for one in held for chunk in one.chunks)
        assert buffer.retained_count == in_chunks == sum(one.count for one in held)
        assert buffer.record_count == sum(one.count for one in held if one.wanted)
        assert set(buffer._ready) == {tp for tp, one in buffer._partitions.items() if one.count and one.wanted}


def interrupted_at_each_point(
    call: Callable[[Setting], object], prepare: Callable[[Setting], object] = lambda _: None, again_after: int = 0
) -> Iterator[tuple[Setting, object, bool]]:
    """Make a setting for each point of a call, and interrupt it there; at last it is not interrupted.

    With `again_after`, it is interrupted again so many points later, while it cleans up.
    """
    for at in range(1, 100_000):
        setting = Setting()
        prepare(setting)
        interrupt = Interrupt(at, *[at + again_after] * bool(again_after))
        result, is_interrupted = None, False
        gc.collect(0)
        try:
            result = interrupt.during(lambda: call(setting))  # noqa: B023
        except Interrupted:
            is_interrupted = True
        assert not setting.shared.changed.is_held
        assert gc.isenabled()
        if not again_after:
            setting.check_counts()
        yield setting, result, is_interrupted
        if interrupt.points < at:
            assert not is_interrupted
            assert at > 20
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("max_records", [5, 3, -1])
def test_no_record_is_lost_or_doubled_by_an_interrupt_of_a_poll(max_records: int) -> None:
    for setting, result, _ in interrupted_at_each_point(lambda one: one.consumer.poll(0.0, max_records=max_records)):
        first = [] if result is None else [record.offset for record in result]  # type: ignore[attr-defined]
        setting.in_own_thread(setting.fetcher_round)
        assert first + setting.read_all() == list(range(COUNT))
        assert setting.consumer.finished() == {PARTITION: COUNT}


@pytest.mark.parametrize("again_after", [1, 4, 9, 16, 30])
def test_no_record_is_lost_by_an_interrupt_of_the_cleaning_up_after_another(again_after: int) -> None:
    """In `Frontend.enter`, do not undo what has ended: polls were refused for ever, and taken records were skipped."""
    polls = interrupted_at_each_point(lambda one: one.consumer.poll(0.0), again_after=again_after)
    for setting, result, _ in polls:
        first = [] if result is None else [record.offset for record in result]  # type: ignore[attr-defined]
        setting.in_own_thread(setting.fetcher_round)
        assert first + setting.read_all() == list(range(COUNT))
        setting.check_counts()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as below
@pytest.mark.parametrize("again_after", [1, 7, 20])
def test_callbacks_are_called_though_the_cleaning_up_was_interrupted(again_after: int) -> None:
    def prepare(setting: Setting) -> None:
        setting.shared.tell(Tell.ASSIGNED, [PARTITION])
        setting.consumer.poll(0.0, max_records=2)
        setting.shared.stop([PARTITION])
        setting.shared.tell(Tell.REVOKE, [PARTITION], 7)

    polls = interrupted_at_each_point(lambda one: one.consumer.poll(0.0), prepare, again_after)
    for setting, _, is_interrupted in polls:
        setting.consumer.poll(0.0)
        assert Revoked(7) in setting.sent
        assert setting.told == [("assign", 1), ("revoke", 1)] or (is_interrupted and len(setting.told) == 1)
        assert not setting.shared.is_known(PARTITION)
        assert setting.shared.metrics()["revoke_partitions_total"] == 1
        setting.shared.forget([PARTITION])


def _first_of(setting: Setting, method: str) -> object:
    setting.iterator = getattr(setting.consumer, method)()  # kept: its end is not what is interrupted
    for found in setting.iterator:
        return found
    return None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops one in a deallocation
@pytest.mark.parametrize("method", ["__iter__", "records"])
def test_no_record_is_lost_by_an_interrupt_of_an_iterator(method: str) -> None:
    for setting, result, _ in interrupted_at_each_point(lambda one: _first_of(one, method)):
        first = [] if result is None else [result.offset] if method == "records" else [one.offset for one in result]  # type: ignore[attr-defined]
        setting.in_own_thread(setting.fetcher_round)
        assert first + setting.read_all() == list(range(COUNT))


def test_an_assignment_is_told_though_the_poll_was_interrupted() -> None:
    for setting, _, is_interrupted in interrupted_at_each_point(
        lambda one: one.consumer.poll(0.0, max_records=0), lambda one: one.shared.tell(Tell.ASSIGNED, [PARTITION])
    ):
        setting.consumer.poll(0.0, max_records=0)
        assert setting.told == [("assign", 1)] or (is_interrupted and setting.told == [])
        assert setting.shared.unannounced == set()
        assert setting.shared.is_known(PARTITION)
        assert setting.shared.metrics()["assign_partitions_total"] == 1


def test_a_stop_is_answered_though_the_poll_was_interrupted() -> None:
    def prepare(setting: Setting) -> None:
        setting.shared.tell(Tell.ASSIGNED, [PARTITION])
        setting.consumer.poll(0.0, max_records=2)
        setting.shared.stop([PARTITION])
        setting.shared.tell(Tell.REVOKE, [PARTITION], 7)

    for setting, _, is_interrupted in interrupted_at_each_point(lambda one: one.consumer.poll(0.0), prepare):
        setting.consumer.poll(0.0)
        assert Revoked(7) in setting.sent
        assert setting.told == [("assign", 1), ("revoke", 1)] or (is_interrupted and len(setting.told) == 1)
        assert not setting.shared.is_known(PARTITION)
        assert setting.shared.metrics()["revoke_partitions_total"] == 1
        setting.shared.forget([PARTITION])


def test_a_consumer_joins_though_the_poll_was_interrupted() -> None:
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.consumer.poll(0.0, max_records=0), lambda one: one.shared.become_out()
    ):
        setting.consumer.poll(0.0, max_records=0)
        names = {event.consumer for event in setting.sent if isinstance(event, Polled)}
        assert names == {setting.frontend._telemetry.member}


def _polled(setting: Setting) -> None:
    setting.consumer.poll(0.0)


def test_a_commit_after_one_that_was_interrupted() -> None:
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.consumer.commit(), lambda one: one.consumer.poll(0.0)
    ):
        setting.consumer.commit()
        assert setting.consumer.finished() == {PARTITION: 5}
        assert setting.read_all() == list(range(5, COUNT))


def test_a_commit_that_does_not_wait_and_was_interrupted_is_forgotten() -> None:
    """In `Frontend.begin_commit`, note the callback after the commit: `close` raised KeyError."""

    def begin(setting: Setting) -> None:
        setting.consumer.commit_async(on_commit=lambda error: setting.told.append(("commit", int(error is not None))))

    for setting, _, is_interrupted in interrupted_at_each_point(begin, lambda one: one.consumer.poll(0.0)):
        assert not setting.shared._announced
        setting.consumer.close()
        assert not setting.frontend._commit_callbacks
        assert setting.told == [("commit", 0)] or (is_interrupted and setting.told == [])


def _some_read(setting: Setting) -> None:
    """Let the application know of its partition; some records are in the buffer, some are still in the client."""
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    assert len(setting.consumer.poll(0.0, max_records=2)) == 2
    assert setting.shared.buffer.record_count == 3


@pytest.mark.parametrize("where", [0, 7])
def test_a_seek_that_was_interrupted_is_done_or_not(where: int) -> None:
    """In `Frontend.change`, do not begin again: records between the new position and the client's were skipped."""
    for setting, _, is_interrupted in interrupted_at_each_point(
        lambda one: one.consumer.seek({PARTITION: where}), _some_read
    ):
        position = setting.consumer.position()[PARTITION]
        assert position == where or (is_interrupted and position == 2)
        setting.in_own_thread(setting.fetcher_round)
        assert setting.read_all() == list(range(position, COUNT))


@pytest.mark.parametrize("method", ["pause", "resume"])
def test_a_partition_is_served_again_though_pausing_or_resuming_it_was_interrupted(method: str) -> None:
    """In `Frontend.change`, do not begin again: a partition counted as resumed, and nobody had told the client."""

    def prepare(setting: Setting) -> None:
        _some_read(setting)
        if method == "resume":
            setting.consumer.pause([PARTITION])
            setting.fetcher_round()

    for setting, _, _ in interrupted_at_each_point(lambda one: getattr(one.consumer, method)([PARTITION]), prepare):
        setting.consumer.resume([PARTITION])
        setting.in_own_thread(setting.fetcher_round)
        assert setting.read_all() == list(range(2, COUNT))


def test_closing_again_ends_what_was_interrupted() -> None:
    """And an interrupted poll before it: what that had taken does not count as returned."""
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.consumer.close(), lambda one: one.consumer.poll(0.0)
    ):
        setting.consumer.close()
        assert setting.shared.is_closed
        assert setting.frontend._is_ended
        assert setting.consumer.finished() == {PARTITION: 5}


def test_callbacks_stay_due_though_run_was_interrupted_before_them() -> None:
    """`run` takes them outside of the calls that are undone: in `SharedState.next_notice`, do not put back."""

    def prepare(setting: Setting) -> None:
        for token in (1, 2):
            setting.shared.begin_commit(token, {}, by_notice=True)
        setting.shared.tell(Tell.ASSIGNED, [PARTITION])
        setting.shared.commit_finished([1, 2], None)

    def take(setting: Setting) -> None:
        with setting.shared.lock:
            for _ in range(3):
                notice = setting.shared.next_notice()
                setting.due += [] if notice is None else [notice.tell]
                setting.shared.in_hand = None  # its callback is over

    for setting, _, _ in interrupted_at_each_point(take, prepare):
        take(setting)
        assert setting.due == [Tell.ASSIGNED, Tell.COMMITTED, Tell.COMMITTED]


def test_a_call_beside_one_that_waits_is_refused() -> None:
    """In `Usage`, allow it: the end of the commit returned again what another thread had polled meanwhile."""
    setting = Setting()
    setting.consumer.poll(0.0, max_records=2)
    machine_thread, sent = setting.frontend.machine_thread, queue.SimpleQueue[Event]()
    assert machine_thread is not None
    machine_thread.send = sent.put  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=setting.consumer.commit)
    thread.start()
    event = sent.get(timeout=WITHIN_S)
    assert isinstance(event, CommitRequested)
    while inspect.getgeneratorstate(setting.frontend.outer) != inspect.GEN_SUSPENDED:  # type: ignore[arg-type]
        ...  # it begins to wait
    for call in (setting.consumer.poll, setting.consumer.commit, setting.consumer.committed):
        with pytest.raises(ConsumerStateError, match="another call is under way"):
            call()
    setting.shared.commit_finished([event.token], None)
    thread.join(WITHIN_S)
    assert setting.read_all() == list(range(2, COUNT))
