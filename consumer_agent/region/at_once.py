"""Calls that wait for a server, some at once, each in a thread, so that no signal's exception cuts one off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from consumer_agent.runtime.threads import Condition, Thread, new_reentrant_lock

MAX_AT_ONCE = 8
T = TypeVar("T")


class CallsAtOnce(Generic[T]):
    """Some calls; each has to end by itself."""

    def __init__(self, calls: Sequence[Callable[[], T]]) -> None:
        """Prepare; nothing begins before `do`."""
        self._calls = calls
        self._due = deque(range(len(calls)))
        self._running = 0
        self._results: dict[int, T] = {}
        self._error: BaseException | None = None
        self._changed = Condition(new_reentrant_lock())  # for signals' handlers

    def do(self) -> list[T]:
        """Return the results. After an error no call begins, and it is raised when all that have begun are over."""
        try:
            for _ in range(min(MAX_AT_ONCE, len(self._calls))):
                Thread(self._work, "consumer-agent-sink").start()
            self._wait()
        finally:
            self.end()
        try:
            if self._error is not None:
                raise self._error
            return [self._results[number] for number in range(len(self._calls))]
        finally:  # they keep clients open
            self._calls, self._results, self._error = [], {}, None

    def end(self) -> None:
        """Begin no further call, and wait until those that have begun are over; after an interrupt, call it again."""
        with self._changed.lock:
            self._due.clear()
        self._wait()

    def _wait(self) -> None:
        while True:
            with self._changed.lock:
                if not self._due and not self._running:
                    return
                changes = self._changed.changes
            self._changed.wait_for_change(changes, None)

    def _work(self) -> None:
        while (number := self._next()) is not None:
            error: BaseException | None = None
            try:
                self._results[number] = self._calls[number]()
            except BaseException as raised:  # noqa: BLE001  # `do` raises it
                error = raised
            with self._changed.lock:
                self._running -= 1
                if error is not None:
                    self._error = self._error or error
                    self._due.clear()
                self._changed.notify()
            del error  # its traceback refers to this frame

    def _next(self) -> int | None:
        with self._changed.lock:
            if not self._due:
                return None
            self._running += 1
            return self._due.popleft()
