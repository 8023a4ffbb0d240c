"""Which answer of the child is the one to a revoke; `tests/integration/test_sidecar.py` has real children."""

from __future__ import annotations

import json
from collections.abc import Iterable
from unittest import mock

import pytest

from consumer_agent.records import Batch, Record
from consumer_agent.sidecar.child import ChildEndedError
from consumer_agent.sidecar.frames import Ack, Fail, Frame, FrameError, JsonLines, Revoked
from consumer_agent.sidecar.run_counts import RunCounts
from consumer_agent.sidecar.sidecar import Sidecar, SidecarSettings, StoppedInFlightError

A, B = ("orders", 0), ("orders", 1)


def records(partition: int, offsets: Iterable[int], generation: int) -> list[Record]:
    return [Record("orders", partition, offset, b"", b"", (), 0, generation) for offset in offsets]


def after_a_loss(*answers: Frame, losses: int = 1, revoke_timeout_ms: int = 20_000) -> tuple[Sidecar, mock.Mock]:
    """Return a sidecar whose child is slow: A was lost, set back from 190 to 0, and is there again; and the child."""
    consumer = mock.Mock()
    consumer.finished.return_value = consumer.position.return_value = {}
    settings = SidecarSettings(command="true", revoke_timeout_ms=revoke_timeout_ms)
    sidecar = Sidecar(settings, consumer, None, lambda: 0, RunCounts(), lambda: None)
    sidecar._child = child = mock.Mock(codec=JsonLines())
    child.exchange.return_value = []
    sidecar._ledger.take([*records(0, range(190, 200), 1), *records(1, range(5), 1)])
    sidecar._exchange(0.0)
    for _ in range(losses):
        sidecar._lose([A])
    sidecar._assign([A])
    sidecar._ledger.take(records(0, range(10), 2))
    child.exchange.return_value = []
    sidecar._exchange(0.0)
    child.exchange.return_value = answers
    consumer.finish.reset_mock()
    sidecar._exchange(0.0)
    child.exchange.return_value = []
    return sidecar, child


@pytest.mark.parametrize("late", [Ack(A, 199), Fail(A, 3, "bad")])
def test_a_late_answer_about_a_lost_partition_is_not_one_about_its_records_of_today(late: Frame) -> None:
    """In `Ledger.give`, give them at once: records that the child never worked on were finished, and so lost."""
    sidecar, child = after_a_loss(Ack(B, 1), late)
    assert (sidecar._run_counts.failures, sidecar._ledger.open_count) == (0, 10 + 3)
    for answers in ([Revoked(frozenset({A}))], [Ack(A, 4)]):
        child.exchange.return_value = answers
        sidecar._exchange(0.0)
    assert (sidecar._ledger.given_count, sidecar._ledger.open_count) == (5 + 3, 5 + 3)
    finish: mock.Mock = sidecar._consumer.finish  # type: ignore[assignment]
    assert [call.args[0] for call in finish.call_args_list if call.args[0]] == [{B: 2}, {A: 5}]


def test_each_loss_has_its_own_answer() -> None:
    sidecar, child = after_a_loss(Revoked(frozenset({A})), losses=2)
    for answers, given in (([], 5), ([Revoked(frozenset({A}))], 5), ([], 5 + 10)):
        child.exchange.return_value = answers
        sidecar._exchange(0.0)
        assert sidecar._ledger.given_count == given


def test_a_child_that_finishes_all_it_has_before_it_answers_a_loss_goes_on() -> None:
    """Give it what has come back at once, and drop its answers until it has answered the loss: no others come."""
    consumer = mock.Mock()
    consumer.finished.return_value = consumer.position.return_value = {}
    settings = SidecarSettings(command="true", max_in_flight_records=10)
    sidecar = Sidecar(settings, consumer, None, lambda: 0, RunCounts(), lambda: None)
    sidecar._child = child = mock.Mock(codec=JsonLines())
    child.exchange.return_value = []
    sidecar._ledger.take(records(0, [190], 1))
    sidecar._exchange(0.0)
    sidecar._lose([A])
    sidecar._assign([A])
    sidecar._ledger.take(records(0, range(10), 2))
    child.exchange.side_effect = lambda _timeout_s: answers_in_turn(child)
    for _ in range(2):
        sidecar._exchange(0.0)
    assert (sidecar._ledger.open_count, sidecar._ledger.room) == (0, 10)


def answers_in_turn(child: mock.Mock) -> list[Frame]:
    """Return the answers of a child that has finished all that it was sent since it answered last."""
    frames = [json.loads(line) for call in child.send.call_args_list for line in call.args[0].splitlines()]
    child.send.reset_mock()
    given = [frame["record"] for frame in frames if "record" in frame]
    acks = [Ack((record["topic"], record["partition"]), record["offset"]) for record in given]
    return [*acks, *(Revoked(frozenset({A})) for frame in frames if "revoke" in frame)]


def test_a_child_that_does_not_answer_a_loss_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """In `Sidecar._require_release`, wait for ever: no acknowledgement of that partition would ever be given."""
    with mock.patch.object(Sidecar, "_start"):  # of the next one
        sidecar, child = after_a_loss(revoke_timeout_ms=0)
    child.kill.assert_called_once_with()
    assert sidecar._child is None
    assert caplog.messages[0].startswith("the child has not released lost partitions within 0 s, 5 records in hand")
    assert (sidecar._lost, sidecar._ledger.open_count) == ({}, 15)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_record_is_not_blamed_for_the_end_of_a_child_that_worked_on_a_lost_one(*, is_killed: bool) -> None:
    """In `Sidecar._child_ended`, leave out `had_others`: the other record becomes a dead letter, or ends the agent."""
    settings = SidecarSettings(command="true", max_failures=1, revoke_timeout_ms=0 if is_killed else 20_000)
    sidecar = Sidecar(settings, mock.Mock(), None, lambda: 0, RunCounts(), lambda: None)
    sidecar._child = child = mock.Mock(codec=JsonLines())
    child.exchange.return_value = []
    sidecar._ledger.take(records(0, [190], 1))
    sidecar._exchange(0.0)
    sidecar._lose([A])
    sidecar._ledger.take(records(1, [7], 1))
    if not is_killed:
        child.exchange.side_effect = ChildEndedError("the child has ended")
    sidecar._exchange(0.0)
    assert (sidecar._run_counts.restarts, sidecar._ledger.open_count) == (1, 1)
    assert sidecar._ledger.give(0) == records(1, [7], 1)


def test_a_late_answer_to_an_earlier_notice_does_not_release_a_partition() -> None:
    """It was lost, and has come back: the child still works on its new records when it answers the loss."""
    sidecar = Sidecar(SidecarSettings(command="true"), mock.Mock(), None, lambda: 0, RunCounts(), lambda: None)
    child = mock.Mock()
    sidecar._child = child
    sidecar._lose([A])
    sidecar._revoking = {A, B}
    sidecar._tell_child(child, [A, B])
    for answered, left in (({A}, {A, B}), ({B}, {A}), ({A}, set())):
        sidecar._handle(Revoked(frozenset(answered)), 0)
        assert sidecar._revoking == left


@pytest.mark.parametrize("has_child", [True, False])
def test_a_late_dead_letter_is_waited_for_and_kills_no_child(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_child: bool
) -> None:
    """In `Sidecar._wait_released`, kill without asking whether the child has answered."""
    settings = SidecarSettings(command="true", revoke_timeout_ms=50)
    sidecar = Sidecar(settings, mock.Mock(), None, lambda: 0, RunCounts(), lambda: None)
    sidecar._run_counts.is_child_running = has_child
    sidecar._child = child = mock.Mock() if has_child else None
    looks: list[float] = []

    def exchange(timeout_s: float) -> None:
        looks.append(timeout_s)
        sidecar._revoking.clear()  # the child answers at once

    monkeypatch.setattr(sidecar, "_exchange", exchange)
    monkeypatch.setattr(sidecar._ledger, "is_burying", lambda _partitions: True)
    monkeypatch.setattr("consumer_agent.sidecar.sidecar.LOOK_INTERVAL_S", 0.01)
    sidecar._revoke([A])
    assert looks
    assert sidecar._child is child
    assert caplog.messages == ["dead letters of revoked partitions are not written in time"]


def test_partitions_that_are_lost_while_they_are_assigned_are_left_out() -> None:
    """The consumer's own thread may lose them at any time, also between two calls."""
    consumer = mock.Mock()
    consumer.finished.return_value = {A: 3, B: 3}
    consumer.position.return_value = {B: 5}
    sidecar = Sidecar(SidecarSettings(command="true"), consumer, None, lambda: 0, RunCounts(), lambda: None)
    sidecar._assign([A, B])
    consumer.seek.assert_called_once_with({B: 3})


def test_the_watchdog_is_fed_while_a_child_takes_its_time_to_answer_a_revoke() -> None:
    """In `Sidecar._wait_released`, leave out `_on_poll`: systemd kills an agent whose child may work for minutes."""
    looks: list[int] = []
    settings = SidecarSettings(command="true")
    sidecar = Sidecar(settings, mock.Mock(), None, lambda: 0, RunCounts(), lambda: looks.append(1))
    sidecar._child = child = mock.Mock()
    child.exchange.side_effect = [[], [], [Revoked(frozenset({A}))]]
    sidecar._revoke([A])
    assert len(looks) == 3


@pytest.mark.parametrize("within_revoke", [False, True])
def test_after_an_error_the_child_is_killed_before_its_partitions_are_given_up(
    monkeypatch: pytest.MonkeyPatch, within_revoke: bool
) -> None:
    """In `Sidecar._fail`, leave it to `run`: until then, the child works on beside the next owners."""
    child, consumer = mock.Mock(), mock.MagicMock()
    monkeypatch.setattr("consumer_agent.sidecar.sidecar.Child", mock.Mock(return_value=child))
    child.exchange.side_effect = FrameError("a stray line")
    signals = int(within_revoke)  # then the error comes while the consumer closes
    sidecar = Sidecar(SidecarSettings(command="true"), consumer, None, lambda: signals, RunCounts(), lambda: None)
    was_killed: list[bool] = []

    def close(*_: object) -> None:
        try:
            sidecar._revoke([A])
        finally:
            was_killed.append(child.kill.called)

    consumer.__enter__.return_value, consumer.poll.return_value = consumer, Batch()
    consumer.close.side_effect, consumer.__exit__.side_effect = close, close
    with pytest.raises(FrameError):
        sidecar.run({})
    assert was_killed == [True, *[True] * within_revoke]


def with_child(signals: int = 0) -> tuple[Sidecar, mock.Mock]:
    """Return a sidecar and its child, which has the first records of A."""
    sidecar = Sidecar(SidecarSettings(command="true"), mock.Mock(), None, lambda: signals, RunCounts(), lambda: None)
    sidecar._child = child = mock.Mock(codec=JsonLines())
    child.exchange.return_value = []
    sidecar._ledger.take(records(0, range(3), 1))
    sidecar._exchange(0.0)
    return sidecar, child


def test_an_answer_about_what_a_child_does_not_have_is_none() -> None:
    """In `Sidecar._handle`, count it: a child that ends right after it is started again for ever."""
    sidecar, _child = with_child()
    sidecar._silent_ends = 3
    for answer in (Ack(B, 7), Fail(A, 7, "bad"), Revoked(frozenset({A}))):
        sidecar._handle(answer, 0)
        assert sidecar._silent_ends == 3
    sidecar._handle(Ack(A, 0), 0)
    assert sidecar._silent_ends == 0


def test_a_child_answers_only_what_it_was_asked_itself() -> None:
    """In `Sidecar._child_ended`, go on to count what the former one owed: the next one is killed at each revoke."""
    sidecar, child = with_child()
    sidecar._tell_child(child, [A])
    sidecar._child_ended("the child has ended")
    sidecar._child = child
    sidecar._revoking = {A}
    sidecar._tell_child(child, [A])
    sidecar._handle(Revoked(frozenset({A})), 0)
    assert not sidecar._revoking


def test_an_agent_that_stops_waits_for_its_child_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Sidecar._is_over`, take milliseconds for seconds, or wait in spite of a second signal."""
    now_s, signals = 100.0, 0
    monkeypatch.setattr("consumer_agent.sidecar.sidecar.time.monotonic", lambda: now_s)
    settings = SidecarSettings(command="true", drain_timeout_ms=5_000)
    sidecar = Sidecar(settings, mock.Mock(), None, lambda: signals, RunCounts(), lambda: None)
    found = []
    for now_s, signals in ((109.0, 0), (109.0, 1), (114.0, 1), (114.1, 1)):  # noqa: B007  # the clock looks at it
        found.append(sidecar._is_over(200.0))
    signals, now_s = 2, 109.0
    assert [*found, sidecar._is_over(200.0)] == [False, False, False, True, True]


def test_an_agent_that_stops_starts_no_child() -> None:
    """In `Sidecar._exchange`, start it: nobody gives it a record, and the agent waits for its end."""
    sidecar, _child = with_child(signals=1)
    sidecar._child = None
    with mock.patch.object(sidecar, "_start") as start:
        sidecar._exchange(0.0)
    start.assert_not_called()


@pytest.mark.parametrize(("error", "are_finished"), [(FrameError("nonsense"), True), (ZeroDivisionError(), False)])
def test_what_was_answered_before_an_error_is_finished_unless_a_record_may_be_missing(
    error: Exception, are_finished: bool
) -> None:
    """In `Sidecar._exchange`, finish it after any error: one between `take` and `give` loses records."""
    sidecar, child = with_child()
    consumer: mock.Mock = sidecar._consumer  # type: ignore[assignment]
    consumer.finish.reset_mock()

    def answers(_timeout_s: float) -> Iterable[Frame]:
        yield Ack(A, 1)
        raise error

    child.exchange.side_effect = answers
    with pytest.raises(type(error)):
        sidecar._exchange(0.0)
    assert consumer.finish.call_args_list == [mock.call({A: 2})] * are_finished


def test_records_that_a_child_has_not_acknowledged_when_the_agent_stops_are_counted() -> None:
    """In `Sidecar.run`, leave them out: the agent ends as if all were done."""
    signals = 0
    consumer = mock.MagicMock()
    consumer.__enter__.return_value = consumer
    sidecar = Sidecar(SidecarSettings(command="true"), consumer, None, lambda: signals, RunCounts(), lambda: None)

    given = mock.MagicMock()
    given.__iter__.return_value = iter(records(0, range(3), 1))
    given.by_partition.return_value = {}

    def poll(*_: object, **__: object) -> mock.MagicMock:
        nonlocal signals
        signals = 1
        return given

    consumer.poll.side_effect = poll
    child = mock.Mock(codec=JsonLines())
    child.exchange.return_value = [Ack(A, 0)]
    with (
        mock.patch("consumer_agent.sidecar.sidecar.Child", mock.Mock(return_value=child)),
        pytest.raises(StoppedInFlightError, match="had acknowledged 2 records"),
    ):
        sidecar.run({})
