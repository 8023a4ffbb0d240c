"""An interrupt at any point of `poll`, `commit` and `close` loses no record and no callback, and holds no lock."""

from __future__ import annotations

import inspect
import queue
import threading

import pytest

from consumer_agent.errors import ConsumerStateError
from consumer_agent.membership.events import CommitRequested, Event, Polled, Revoked
from consumer_agent.runtime.engine import Engine
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.workers import Workers
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting, interrupted_at_each_point


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


def test_an_assignment_is_told_though_the_caller_of_run_was_interrupted() -> None:
    def attend(setting: Setting) -> None:
        Workers(setting.frontend, lambda _: None, 1, setting.consumer._run_notice)._attend()

    for setting, _, is_interrupted in interrupted_at_each_point(
        attend, lambda one: one.shared.tell(Tell.ASSIGNED, [PARTITION])
    ):
        setting.consumer.poll(0.0, max_records=0)
        assert setting.told == [("assign", 1)] or (is_interrupted and setting.told == [])
        assert setting.shared.in_hand is None
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops one in a deallocation
@pytest.mark.parametrize("again_after", [0, 5, 40])
def test_no_member_is_left_behind_by_an_interrupt_of_unsubscribe(again_after: int) -> None:
    """In `Frontend.unsubscribe`, only forget the engine: a member stayed whose partitions nobody read."""
    engines: list[Engine | None] = []

    def prepare(setting: Setting) -> None:
        setting.consumer.poll(0.0)
        engines.append(setting.frontend._engine)

    for setting, _, _ in interrupted_at_each_point(lambda one: one.consumer.unsubscribe(), prepare, again_after):
        engine = engines.pop()
        assert engine is not None
        if setting.frontend._engine is engine:  # it has not begun, or has to be repeated
            setting.consumer.unsubscribe()
        assert setting.frontend._engine is None
        assert setting.frontend._is_ended or engine.machine_thread.dropped


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
