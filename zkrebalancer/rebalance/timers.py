"""Timers of the core, each with a name and an owner."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable
from typing import Any, TypeVar

from zkrebalancer.rebalance.awaited import Handler

Entry = TypeVar("Entry", bound=Hashable)
MAX_ENDED_TIMERS = 50  # to clear away at once


class Timers:
    """When which handler is called."""

    def __init__(self) -> None:
        """Start without timers."""
        self.due: dict[tuple[str, Hashable], tuple[int, Handler, tuple[Any, ...]]] = {}
        self._timers_of: defaultdict[str, set[Hashable]] = defaultdict(set)  # by owner
        self._heap: list[tuple[int, int, tuple[str, Hashable]]] = []  # may be early, or for timers that have ended
        self._in_heap: dict[tuple[str, Hashable], int] = {}  # timer -> when the heap comes to it
        self._heap_order = 0

    def wake(self, owner: str, name: Hashable, at_us: int, handler: Handler, arguments: tuple[Any, ...]) -> None:
        """Call `handler(*arguments)` at `at_us`; a second call with the same name moves the timer."""
        key = (owner, name)
        self.due[key] = (at_us, handler, arguments)
        self._timers_of[owner].add(name)
        if at_us < self._in_heap.get(key, at_us + 1):
            self._push(key, at_us)

    def _push(self, key: tuple[str, Hashable], at_us: int) -> None:
        """Push a timer on the heap; a timer that is moved to a later time is pushed again when its entry is due."""
        self._in_heap[key] = at_us
        self._heap_order += 1
        heapq.heappush(self._heap, (at_us, self._heap_order, key))

    def cancel_wake(self, owner: str, name: Hashable) -> None:
        """Drop a timer, if there is one."""
        if self.due.pop((owner, name), None) is not None:
            discard(self._timers_of, owner, name)

    def next_deadline_us(self) -> int | None:
        """Return when `run_next_due` has work next, which may be only to clear away ended timers."""
        for _ in range(MAX_ENDED_TIMERS):
            if not self._heap:
                return None
            at_us, _order, key = self._heap[0]
            if self._in_heap.get(key) == at_us and key in self.due and self.due[key][0] == at_us:
                return at_us
            self._pop()
        return self._heap[0][0] if self._heap else None

    def _pop(self) -> tuple[str, Hashable] | None:
        """Remove the heap's first entry; return its timer, None if that has ended or was moved."""
        at_us, _order, key = heapq.heappop(self._heap)
        if self._in_heap.get(key) != at_us:
            return None
        del self._in_heap[key]
        if key not in self.due:
            return None
        due_us = self.due[key][0]
        if due_us > at_us:
            self._push(key, due_us)
            return None
        return key


def discard(index: defaultdict[str, set[Entry]], owner: str, entry: Entry) -> None:
    """Remove an entry of an owner, and the owner with the last one."""
    entries = index[owner]
    entries.discard(entry)
    if not entries:
        del index[owner]
