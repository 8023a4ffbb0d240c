"""What an application may commit, and in which order it hears of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from consumer_agent import Batch, Consumer
from consumer_agent.errors import CommitFailedError, ConsumerError, ConsumerStateError, TooManyCommitsError
from consumer_agent.membership.events import CommitRequested, Event, Revoked
from consumer_agent.runtime import shared_state
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import BufferSettings, Finished, RecordBuffer
from consumer_agent.runtime.shared_state import MAX_ANNOUNCED_COMMITS, SharedState
from tests.unit.consumer_agent.runtime.interrupts import PARTITION, RevokingSetting, Setting
from zkrebalancer.protocol.fields import TopicPartition

T0: TopicPartition = ("t", 0)
T1: TopicPartition = ("t", 1)


@pytest.fixture
def shared() -> SharedState:
    """Hold T0, returned up to 20 under generation 4, and T1, returned up to 30."""
    made = SharedState(RecordBuffer(BufferSettings(100, 100, 10_000)), lambda: 0)
    made.admit(T0, 4, 20)
    made.admit(T1, 4, 30)
    return made


def finished(shared: SharedState) -> dict[TopicPartition, int]:
    return {partition: position.finished for partition, position in shared.positions().items()}


def begin(
    shared: SharedState, token: int, what: dict[TopicPartition, Finished] | None = None, *, by_notice: bool = True
) -> None:
    shared.begin_commit(token, what, by_notice=by_notice)


def heard(shared: SharedState) -> list[tuple[int, bool]]:
    """Return the tokens of the commits that the application is told of, and whether they are stored."""
    notices = []
    while (notice := shared.next_notice()) is not None:
        assert notice.tell is Tell.COMMITTED
        notices.append((notice.token, notice.error is None))
    return notices


def test_what_is_said_is_finished_also_backwards(shared: SharedState) -> None:
    begin(shared, 1, {T0: Finished(15, 4)})
    assert finished(shared) == {T0: 15, T1: 30}
    begin(shared, 2, {T0: Finished(12)})
    assert finished(shared) == {T0: 12, T1: 30}
    begin(shared, 3)
    assert finished(shared) == {T0: 20, T1: 30}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({("t", 7): Finished(5)}, CommitFailedError),
        ({T0: Finished(15, 3)}, CommitFailedError),
        ({T0: Finished(21)}, ConsumerStateError),
    ],
    ids=["is lost", "belongs to an earlier start", "was not returned"],
)
def test_all_of_it_or_nothing(
    shared: SharedState, said: dict[TopicPartition, Finished], error: type[Exception]
) -> None:
    before = finished(shared)
    with pytest.raises(error):
        begin(shared, 1, {T1: Finished(25), **said})
    assert finished(shared) == before


def test_a_record_from_before_a_loss_finishes_none_of_those_that_came_back() -> None:
    """In `RecordBuffer.finish_below`, look at the offset only: after a reset, records without work were skipped."""
    setting = Setting()
    former = setting.consumer.poll(0.0)[-1]
    setting.shared.forget([PARTITION])
    setting.shared.admit(PARTITION, 2, 0)
    setting.fetcher.change(lambda: {PARTITION: 0})
    setting.fetcher_round()
    records = setting.consumer.poll(0.0)
    assert (former.offset, records[-1].offset) == (4, 4)
    setting.consumer.finish(former)
    assert setting.consumer.finished() == {PARTITION: 0}
    setting.consumer.finish(records[1])
    assert setting.consumer.finished() == {PARTITION: 2}


def test_ends_are_heard_in_the_order_of_the_commits(shared: SharedState) -> None:
    for token in (1, 2, 3):
        begin(shared, token)
    shared.commit_finished((1,), None)
    shared.commit_finished((2, 3), "lost")
    assert heard(shared) == [(1, True), (2, False), (3, False)]


def test_an_end_is_heard_although_everything_is_lost(shared: SharedState) -> None:
    begin(shared, 1)
    shared.commit_finished((1,), "lost")
    shared.tell(Tell.LOST)
    assert heard(shared) == [(1, False)]


def test_who_waits_for_a_commit_is_not_told_of_another(shared: SharedState) -> None:
    begin(shared, 1)
    begin(shared, 2, by_notice=False)
    shared.commit_finished((1, 2), None)
    assert shared.has_commit(2)
    begin(shared, 3)
    shared.commit_finished((3,), None)
    assert shared.take_commit(2) is None
    assert heard(shared) == [(1, True), (3, True)]


def test_after_the_end_every_commit_has_failed(shared: SharedState) -> None:
    begin(shared, 1)
    begin(shared, 2, by_notice=False)
    shared.become_closed()
    assert shared.has_commit(2)
    assert isinstance(shared.take_commit(2), CommitFailedError)
    assert heard(shared) == [(1, False)]
    with pytest.raises(CommitFailedError):
        begin(shared, 3)


def test_a_commit_after_a_breakdown_tells_its_cause(shared: SharedState) -> None:
    breakdown = ConsumerError("the machine thread has stopped")
    shared.break_down(breakdown)
    shared.become_closed()
    with pytest.raises(CommitFailedError, match="the machine thread has stopped") as raised:
        begin(shared, 1)
    assert raised.value.__cause__ is breakdown


class Unwalked(dict[int, None]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all waiting commits are gone through for one")


def test_the_end_of_a_commit_costs_the_same_however_many_wait(shared: SharedState) -> None:
    for token in range(1, 4):
        begin(shared, token)
    shared._announced = Unwalked(shared._announced)
    begin(shared, 4)
    shared.commit_finished([3], None)
    assert heard(shared) == [(3, True)]


def test_commits_that_nobody_hears_of_are_limited(shared: SharedState) -> None:
    for token in range(MAX_ANNOUNCED_COMMITS):
        begin(shared, token + 1)
    with pytest.raises(TooManyCommitsError, match="are waiting") as raised:
        begin(shared, MAX_ANNOUNCED_COMMITS + 1)
    assert raised.value.retriable
    assert not isinstance(raised.value, CommitFailedError)  # which says that the records are read again


def test_commits_that_are_over_count_until_the_application_is_told(
    shared: SharedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application that commits and never polls would otherwise collect callbacks without a limit."""
    monkeypatch.setattr(shared_state, "MAX_ANNOUNCED_COMMITS", 2)
    for token in (1, 2):
        begin(shared, token)
        shared.commit_finished([token], None)
    with pytest.raises(TooManyCommitsError):
        begin(shared, 3)
    assert heard(shared) == [(1, True), (2, True)]
    begin(shared, 3)


def test_commits_that_are_over_count_no_more(shared: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `SharedState.commit_finished`, keep the token: after so many commits in a lifetime, all are refused."""
    monkeypatch.setattr(shared_state, "MAX_ANNOUNCED_COMMITS", 2)
    for token in range(1, 11, 2):
        begin(shared, token)
        begin(shared, token + 1)
        with pytest.raises(TooManyCommitsError):
            begin(shared, 99)
        shared.commit_finished([token], None)
        shared.commit_finished([token + 1], "no")
        assert heard(shared) == [(token, True), (token + 1, False)]
        shared.commit_finished([token, token + 1], None)
        assert heard(shared) == [], "each is told once"


class WaitingSetting(Setting):
    """A consumer whose commits are under way until the test ends them."""

    def _machine(self, event: Event) -> None:
        if isinstance(event, CommitRequested):
            self.sent.append(event)
        else:
            super()._machine(event)


def test_the_end_of_an_on_revoke_with_the_token_of_a_commit_leaves_its_on_commit_alone() -> None:
    """In `Frontend.called_back`, forget the `on_commit` of any notice's token: the machine counts its own."""
    setting, told = WaitingSetting(), list[CommitFailedError | None]()
    setting.consumer.commit_async(on_commit=told.append)
    (token,) = [event.token for event in setting.sent if isinstance(event, CommitRequested)]
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    setting.shared.tell(Tell.REVOKE, [PARTITION], token)
    setting.consumer.poll(0.0, max_records=0)
    assert [what for what, _count in setting.told] == ["assign", "revoke"]
    setting.shared.commit_finished([token], None)
    setting.consumer.poll(0.0, max_records=0)
    assert told == [None]


def test_a_commit_within_a_batch_gives_up_nothing_of_it() -> None:
    """In `steps.commit`, run all callbacks: a member that committed each record lost the rest of its batch to others.

    They read it as well, and its next commit failed, whenever a rebalance moved the partition.
    """
    setting = Setting()
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    batch = setting.consumer.poll(0.0)
    setting.shared.stop([PARTITION])
    setting.shared.tell(Tell.REVOKE, [PARTITION], 7)
    for record in batch[:-1]:
        setting.consumer.commit(record)
    assert [what for what, _count in setting.told] == ["assign"]
    setting.consumer.commit(batch[-1])
    assert [what for what, _count in setting.told] == ["assign", "revoke"]
    assert Revoked(7) in setting.sent


class LeavingSetting(RevokingSetting):
    """A consumer that commits nothing by itself, and whose callbacks commit all; `on_revoke` runs when it leaves."""

    def __init__(self) -> None:
        super().__init__()
        consumer = self.consumer
        consumer.subscribe(["orders"], on_assign=lambda _: consumer.commit(), on_revoke=lambda _: consumer.commit())
        self.batch = consumer.poll(0.0)
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, enable_auto_commit=False)


def close_in_the_end(setting: Setting, *, is_interrupted: bool = True) -> None:
    with suppress(InterruptedError):
        try:
            if is_interrupted:
                raise InterruptedError
        finally:
            setting.consumer.close()


def leave_in_the_middle(setting: Setting) -> None:
    with suppress(InterruptedError), setting.consumer:
        raise InterruptedError


def close_after_a_break(setting: Setting) -> None:
    next(iter(setting.consumer))
    setting.consumer.close()


def close_after_run(setting: Setting) -> None:
    def fail(_batch: Batch) -> None:
        raise InterruptedError

    with suppress(InterruptedError):
        setting.consumer.run(fail)
    setting.consumer.close()


def commit_in_a_signals_handler(setting: Setting) -> None:
    former = signal.signal(signal.SIGUSR2, lambda *_: setting.consumer.commit())
    try:
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, former)


@pytest.mark.parametrize(
    ("call", "finished"),
    [
        (lambda one: one.consumer.poll(0.0), 5),
        (lambda one: one.consumer.commit(one.batch[0]), 1),
        (lambda one: one.consumer.poll(0.0, max_records=0), 0),
        (lambda one: close_in_the_end(one, is_interrupted=False), 5),
        (close_in_the_end, 0),
        (leave_in_the_middle, 0),
        (close_after_a_break, 5),
        (commit_in_a_signals_handler, 0),
        (close_after_run, 0),
    ],
)
def test_a_commit_that_interrupts_the_application_finishes_nothing_that_it_works_on(
    call: Callable[[LeavingSetting], object], finished: int
) -> None:
    """In `Frontend.begin_commit`, finish all that was returned: after an exception of the work, its batch was lost."""
    setting = LeavingSetting()
    call(setting)
    assert CommitRequested in {type(event) for event in setting.sent}
    assert setting.shared.positions()[PARTITION].finished == finished


class HandFinishedSetting(Setting):
    """A consumer that finishes by `finish` only."""

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, enable_auto_finish=False)


def test_what_is_finished_by_hand_is_so_by_no_commit() -> None:
    """In `Frontend.begin_commit`, finish all that was returned, although threads of the application work on it."""
    setting = HandFinishedSetting()
    batch = setting.consumer.poll(0.0)
    setting.consumer.finish(batch[2])
    setting.consumer.commit()
    assert setting.consumer.finished() == {PARTITION: 3}
    setting.consumer.commit(batch[3])
    assert setting.consumer.finished() == {PARTITION: 4}
