"""Waiting across threads: a change wakes whoever waits, be it a thread or a greenlet, and time runs out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from unittest import mock

import gevent
import pytest

from consumer_agent.runtime.threads import Condition, Thread, in_own_thread, new_lock
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.runtime.interrupts import Interrupt, Interrupted

DEADLINE_S = WITHIN_S


def in_a_thread(function: Callable[[], None]) -> None:
    function()


def in_a_greenlet(function: Callable[[], None]) -> None:
    gevent.spawn(function).get(timeout=DEADLINE_S)


@pytest.mark.parametrize("timeout_s", [DEADLINE_S, 1e12, None])
@pytest.mark.parametrize("run", [in_a_thread, in_a_greenlet])
def test_a_change_in_another_thread_ends_the_wait(
    run: Callable[[Callable[[], None]], None], timeout_s: float | None
) -> None:
    changed = Condition(new_lock())
    answers: list[str] = []

    def answer() -> None:
        with changed.lock:
            answers.append("done")
            changed.notify()

    def wait() -> None:
        with changed.lock:
            while not answers:
                changed.wait(timeout_s)

    thread = Thread(answer, "answer")
    with changed.lock:
        thread.start()
    run(wait)
    thread.join(DEADLINE_S)
    assert answers == ["done"]


@pytest.mark.parametrize("run", [in_a_thread, in_a_greenlet])
def test_a_wait_ends_with_its_time_and_the_lock_is_taken_again(run: Callable[[Callable[[], None]], None]) -> None:
    lock = new_lock()
    changed = Condition(lock)

    def wait() -> None:
        with changed.lock:
            changed.wait(0.01)
            assert lock.locked()
            changed.notify()  # nobody waits any more

    run(wait)
    assert not lock.locked()


def test_a_greenlet_that_waits_gives_others_their_turn() -> None:
    changed = Condition(new_lock())
    turns: list[int] = []

    def wait() -> None:
        with changed.lock:
            while len(turns) < 3:
                changed.wait(DEADLINE_S)

    def work() -> None:
        for number in range(3):
            gevent.sleep(0)
            turns.append(number)
        with changed.lock:
            changed.notify()

    gevent.joinall([gevent.spawn(wait), gevent.spawn(work)], timeout=DEADLINE_S, raise_error=True)
    assert turns == [0, 1, 2]


def test_a_listener_hears_of_every_change() -> None:
    changed = Condition(new_lock())
    heard: list[int] = []
    changed.listeners.append(lambda: heard.append(1))
    with changed.lock:
        changed.notify()
        changed.notify()
    assert heard == [1, 1]


def test_joining_a_thread_that_goes_on_ends_with_the_time() -> None:
    released = Condition(new_lock())

    def run() -> None:
        with released.lock:
            released.wait(DEADLINE_S)

    thread = Thread(run, "waits")
    thread.start()
    begun = time.monotonic()
    thread.join(0.01)
    assert time.monotonic() - begun >= 0.01
    while True:
        with released.lock:
            released.notify()
        thread.join(0.01)
        if not thread.is_alive:
            break


def test_a_start_that_was_interrupted_can_be_repeated_or_taken_back() -> None:
    """Python's own start, interrupted, raised RuntimeError for a lock that it released twice."""
    interrupted = 0
    for at in range(1, 10_000):
        ended: list[str] = []
        thread = Thread(lambda: ended.append("it"), "it")  # noqa: B023
        interrupt = Interrupt(at)
        try:
            interrupt.during(thread.start)
        except Interrupted:
            interrupted += 1
        else:
            if interrupt.points < at:
                break
        if at % 2:
            thread.start()  # again: it runs once
        thread.join(DEADLINE_S)
        assert ended == ["it"] * thread.has_begun
        assert thread.has_begun or not at % 2
        assert not thread.is_alive
    assert interrupted > 10


def test_a_thread_that_cannot_start_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread(lambda: None, "it")
    refuse = mock.Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(thread._python_thread, "start", refuse)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
    assert not thread.is_alive


def test_a_forked_process_has_none_of_the_threads_of_its_parent() -> None:
    """Keep their idents: the child's threads get them, and a `close` in one of these left the group without callbacks.

    The thread that forks has its ident in the child, too.
    """
    codes: list[int] = []

    def fork() -> None:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child = os.fork()
        if not child:
            os._exit(in_own_thread())
        codes.append(os.waitpid(child, 0)[1])

    thread = Thread(fork, "forks")
    thread.start()
    thread.join(DEADLINE_S)
    assert codes == [0]
