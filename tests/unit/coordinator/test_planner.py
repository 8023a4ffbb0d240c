"""Plans have a time limit: strategies that hang delay neither other groups nor the coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Self, cast

import gevent
import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.assignment.model import Problem
from zkrebalancer.assignment.transition import Transition
from zkrebalancer.coordinator import planner
from zkrebalancer.coordinator.planner import MAX_LATE, MAX_QUARANTINE_S, MIN_QUARANTINE_S, Planner
from zkrebalancer.protocol.errors import UnknownStrategyError
from zkrebalancer.rebalance.coordinator import MAX_PLANNING
from zkrebalancer.rebalance.effects import Compute, Computed

LIMIT_S = 0.05
PLAN = cast("Transition", object())
LATE = "strategy hangs has not answered within 0.05 s; retried at growing intervals"


class Strategies:
    """Takes the place of `answer`: a strategy that hangs does so until the test is over, or the test says so."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.calls: list[str] = []
        self.ended: list[str] = []
        self.hanging: set[int] = set()  # tickets

    def answer(self, task: Compute, _strategies: object) -> Transition:
        self.calls.append(task.group)
        try:
            if task.strategy == "hangs" and not self.may_go_on.is_set():
                self.hanging.add(task.ticket)
                self.may_go_on.wait()
            if task.strategy == "loops":
                self.hanging.add(task.ticket)
                self._loop()
            if task.strategy == "unknown":
                raise UnknownStrategyError("no such strategy")
            if task.strategy == "broken":
                raise ZeroDivisionError("a bug")
            return PLAN
        finally:
            self.hanging.discard(task.ticket)
            self.ended.append(task.group)

    def _loop(self) -> None:
        """Loop in a frame of its own: in Python 3.13, an exception at a loop's jump skips the `finally` around it."""
        while not self.may_go_on.is_set():
            pass

    def is_stuck(self, ticket: int) -> bool:
        """Whether a plan cannot be made: its strategy hangs, or those of others keep every thread."""
        return ticket in self.hanging or len(self.hanging) == MAX_LATE + MAX_PLANNING


def limit_of(strategies: Strategies) -> type[gevent.Timeout]:
    """Return a limit that is over as soon as waiting is useless, however slow the machine is."""

    class Limit(gevent.Timeout):
        def __init__(self, _seconds: float) -> None:
            super().__init__(None)

        def __enter__(self) -> Self:
            waiting = gevent.getcurrent()
            assert isinstance(waiting, gevent.Greenlet)
            (effect,) = waiting.args
            self._watch: gevent.Greenlet[..., None] = gevent.spawn(self._end, waiting, effect.ticket)
            return self

        def __exit__(self, *_: object) -> None:
            self._watch.kill(block=False)

        def _end(self, waiting: gevent.Greenlet[..., object], ticket: int) -> None:
            while not strategies.is_stuck(ticket):
                gevent.sleep(0.001)
            waiting.kill(self, block=False)

    return Limit


class Machine:
    """A planner, and what it has answered."""

    def __init__(self) -> None:
        self.answers: list[Computed] = []
        self.planner = Planner({}, self.answers.append, LIMIT_S)
        self.ticket = 0

    def ask(self, group: str, strategy: str = "works", options: Mapping[str, object] | None = None) -> None:
        self.ticket += 1
        problem = Problem({}, {}, options=options or {})
        self.planner.compute(Compute(group, self.ticket, strategy, problem, None, frozenset(), everything=False))

    def wait_until(self, is_true: Callable[[], object]) -> None:
        with gevent.Timeout(WITHIN_S):
            while not is_true():
                gevent.sleep(0.001)

    def answer_to(self, group: str, strategy: str = "works", options: Mapping[str, object] | None = None) -> Computed:
        before = len(self.answers)
        self.ask(group, strategy, options)
        self.wait_until(lambda: len(self.answers) > before)
        return self.answers[-1]


@pytest.fixture
def strategies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strategies]:
    hanging = Strategies()
    monkeypatch.setattr(planner, "answer", hanging.answer)
    monkeypatch.setattr(planner, "gevent", SimpleNamespace(Timeout=limit_of(hanging), spawn=gevent.spawn))
    yield hanging
    hanging.may_go_on.set()


@pytest.fixture
def machine(strategies: Strategies) -> Machine:
    assert strategies
    return Machine()


def test_a_plan_a_users_mistake_and_a_bug(machine: Machine) -> None:
    assert machine.answer_to("g").transition is PLAN
    assert machine.answer_to("g", "unknown").error == "no such strategy"
    assert machine.answer_to("g", "broken").error == "strategy broken failed: ZeroDivisionError: a bug"


def test_groups_whose_strategies_hang_keep_no_other_group_from_being_planned(machine: Machine) -> None:
    for number in range(MAX_LATE):
        machine.ask(f"hanging-{number}", "hangs")
    machine.wait_until(lambda: len(machine.answers) == MAX_LATE)
    assert {answer.error for answer in machine.answers} == {LATE}
    for number in range(MAX_PLANNING):
        assert machine.answer_to(f"healthy-{number}").transition is PLAN


def test_when_no_thread_is_free_a_group_is_told_within_the_same_limit(machine: Machine, strategies: Strategies) -> None:
    for number in range(MAX_LATE + MAX_PLANNING):
        assert machine.answer_to(f"hanging-{number}", "hangs").error == LATE
    assert machine.answer_to("healthy").error == "no thread is free for planning: strategies of other groups hang"
    assert "healthy" not in strategies.calls
    strategies.may_go_on.set()
    machine.wait_until(lambda: len(strategies.ended) == MAX_LATE + MAX_PLANNING)
    assert machine.answer_to("other").transition is PLAN


def test_a_group_whose_strategy_hangs_is_asked_less_and_less_often(
    machine: Machine, strategies: Strategies, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for tries in range(1, 12):
        strategies.may_go_on.clear()
        assert machine.answer_to("g", "hangs").error == LATE
        assert len(strategies.calls) == tries
        pause_s = min(MAX_QUARANTINE_S, MIN_QUARANTINE_S * 2 ** (tries - 1))
        now_s += pause_s
        assert machine.answer_to("g", "hangs").error == LATE, "its thread has not ended"
        strategies.may_go_on.set()
        machine.wait_until(lambda: machine.planner._late["g"].has_ended)
        now_s -= 1
        assert machine.answer_to("g", "hangs").error == LATE, "its quarantine is not over"
        assert len(strategies.calls) == tries
        now_s += 1
    assert machine.answer_to("g", "hangs").transition is PLAN, "it does not hang any more"
    assert machine.planner._late == {}


def test_an_operator_who_changes_strategy_or_options_is_heard_at_once(machine: Machine, strategies: Strategies) -> None:
    assert machine.answer_to("g", "hangs").error == LATE
    assert machine.answer_to("g", "works").transition is PLAN
    assert machine.answer_to("g", "hangs").error == LATE
    assert machine.answer_to("g", "hangs", {"rounds": 2}).error == LATE
    assert machine.planner._late["g"].tries == 1, "pauses begin anew"
    strategies.may_go_on.set()
    assert machine.answer_to("g", "hangs", {"rounds": 1}).transition is PLAN


def test_a_strategy_that_loops_in_python_is_ended(machine: Machine, strategies: Strategies) -> None:
    assert machine.answer_to("g", "loops").error == LATE.replace("hangs", "loops")
    machine.wait_until(lambda: strategies.ended == ["g"])
    assert not strategies.may_go_on.is_set()


def late_groups(machine: Machine, count: int) -> None:
    for number in range(count):
        machine.ask(f"late-{number}", "hangs")
    machine.wait_until(lambda: len(machine.answers) == count)


def test_strategies_that_were_late_and_have_ended_are_in_nobodys_way(
    machine: Machine, strategies: Strategies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Planner._must_wait`, count all late groups: none of them would ever be planned again."""
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    late_groups(machine, MAX_LATE)
    strategies.may_go_on.set()
    machine.wait_until(lambda: all(late.has_ended for late in machine.planner._late.values()))
    now_s += MIN_QUARANTINE_S
    assert machine.answer_to("late-0", "hangs").transition is PLAN


def test_of_too_many_late_groups_those_are_forgotten_that_keep_no_thread(
    machine: Machine, strategies: Strategies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Planner._note_late`, forget those that hang: they would be given thread after thread."""
    monkeypatch.setattr(planner, "MAX_LATE_GROUPS", 3)
    assert machine.answer_to("ended", "loops").error == LATE.replace("hangs", "loops")
    machine.wait_until(lambda: machine.planner._late["ended"].has_ended)
    machine.answers.clear()
    late_groups(machine, 3)
    assert sorted(machine.planner._late) == ["late-0", "late-1", "late-2"]
    assert strategies.calls.count("late-0") == 1


def test_the_limit_is_a_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Planner._compute`, wait without a limit."""
    monkeypatch.setattr(planner, "gevent", gevent)
    assert machine.answer_to("g", "hangs").error is not None
