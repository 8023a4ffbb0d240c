"""Runs strategies in threads, each for a limited time; after a late plan, a group has to wait for the next one.

A thread cannot be killed. A late strategy gets an exception, which ends a loop in Python but no call into C. Until the
strategy ends, it keeps its thread; the pool has MAX_LATE more threads for the other groups.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gevent
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from zkrebalancer.assignment.columns import Strategy
from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.rebalance.coordinator import MAX_PLANNING
from zkrebalancer.rebalance.effects import Compute, Computed
from zkrebalancer.rebalance.planning import answer

PLAN_TIMEOUT_S = 60
MAX_LATE = 12  # late strategies that have not ended; with more, groups that were late before have to wait
MIN_QUARANTINE_S = 60.0  # wait after a group's first late plan; doubles with each further one
MAX_QUARANTINE_S = 3_600.0
MAX_LATE_GROUPS = 10_000  # with more, groups whose strategies have ended are forgotten

Answer = Transition | RebalancerError | None  # None: it was too late to start
Question = tuple[str, dict[str, object]]  # strategy and options; if they change, a group need not wait


class TimeIsUpError(BaseException):
    """Raised in the thread of a strategy that has not answered in time."""


@dataclass(slots=True)
class Late:
    """A group whose last plan was late."""

    question: Question
    text: str
    tries: int
    until_s: float
    has_ended: bool = False


class Planner:
    """Performs `Compute`; a `Computed` answers each. Use it on one gevent hub."""

    def __init__(
        self, strategies: Mapping[str, Strategy], take: Callable[[Computed], None], limit_s: float = PLAN_TIMEOUT_S
    ) -> None:
        """Start no thread yet; `limit_s` is for one plan."""
        self._strategies = strategies
        self._take = take
        self.limit_s = limit_s
        self._pool = ThreadPool(MAX_PLANNING + MAX_LATE)
        self._late: dict[str, Late] = {}

    def compute(self, effect: Compute) -> None:
        """Compute a plan; a strategy's bug is reported to its group, which backs off."""
        gevent.spawn(self._compute, effect).link_exception(lambda failed: self._failed(effect, failed.exception))

    def _compute(self, effect: Compute) -> None:
        question = (effect.strategy, dict(effect.problem.options))
        late = self._late.get(effect.group)
        if late is not None and late.question == question and self._must_wait(late):
            self._refuse(effect, late.text)
            return
        task = _Task(effect, self._strategies)
        began = time.monotonic_ns()
        pending: AsyncResult[Answer] | None = None
        try:
            with gevent.Timeout(self.limit_s):
                pending = self._pool.spawn(task.run)
                result = pending.get()
        except gevent.Timeout:
            if task.end() and pending is not None:
                self._note_late(effect, question, pending)
            else:
                self._refuse(effect, "no thread is free for planning: strategies of other groups hang")
            return
        self._late.pop(effect.group, None)
        if isinstance(result, RebalancerError):
            self._refuse(effect, str(result))
        else:
            elapsed_us = (time.monotonic_ns() - began) // 1_000
            self._take(Computed(effect.group, effect.ticket, result, elapsed_us, None))

    def _must_wait(self, late: Late) -> bool:
        late_count = sum(not other.has_ended for other in self._late.values())
        return not late.has_ended or time.monotonic() < late.until_s or late_count >= MAX_LATE

    def _note_late(self, effect: Compute, question: Question, pending: AsyncResult[Answer]) -> None:
        before = self._late.pop(effect.group, None)
        tries = before.tries + 1 if before is not None and before.question == question else 1
        text = f"strategy {effect.strategy} has not answered within {self.limit_s:g} s; retried at growing intervals"
        pause_s = min(MAX_QUARANTINE_S, MIN_QUARANTINE_S * 2 ** min(tries - 1, 10))
        late = Late(question, text, tries, time.monotonic() + pause_s)
        pending.rawlink(lambda _ended: setattr(late, "has_ended", True))
        self._late[effect.group] = late
        if len(self._late) > MAX_LATE_GROUPS:
            self._late = {group: other for group, other in self._late.items() if not other.has_ended}
        self._refuse(effect, text)

    def _refuse(self, effect: Compute, text: str) -> None:
        self._take(Computed(effect.group, effect.ticket, None, 0, text))

    def _failed(self, effect: Compute, error: BaseException | None) -> None:
        self._refuse(effect, f"strategy {effect.strategy} failed: {type(error).__name__}: {error}")


class _Task:
    """One computation in a thread, which can be asked to end."""

    def __init__(self, effect: Compute, strategies: Mapping[str, Strategy]) -> None:
        self._effect, self._strategies = effect, strategies
        self._lock = threading.Lock()
        self._thread: int | None = None  # while it computes
        self._is_over = False

    def run(self) -> Answer:
        """Compute; return a user's mistake instead of raising it, because gevent's pool would print a traceback."""
        with self._lock:
            if self._is_over:
                return None
            self._thread = threading.get_ident()
        try:
            return answer(self._effect, self._strategies)
        except RebalancerError as error:
            return error
        finally:
            with self._lock:
                self._thread = None

    def end(self) -> bool:
        """Raise TimeIsUpError in the thread, at its next step in Python; return whether it still computes."""
        with self._lock:
            self._is_over = True
            if self._thread is not None:
                raised = ctypes.py_object(TimeIsUpError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised)
            return self._thread is not None
