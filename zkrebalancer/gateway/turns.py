"""Long work in pieces, between which the lease, other connections and other groups have their turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

ITEMS_PER_TURN = 1_000  # partitions, or others that take about a microsecond each
LONG_NAME = 1_000  # characters; finding out where a group belongs looks at each of them
PAUSE_S = 1e-6  # with 0, gevent would check sockets and timers only after fifty switches
Item = TypeVar("Item")


def let_others_run() -> None:
    """Switch to all others that are ready."""
    gevent.sleep(PAUSE_S)


def note_name(name: str) -> None:
    """Let others run if a name is so long that its group takes as long as many others."""
    if len(name) > LONG_NAME:
        let_others_run()


def in_turns(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items; others run in between."""
    for number, item in enumerate(items, 1):
        if not number % ITEMS_PER_TURN:
            let_others_run()
        yield item


class Places:
    """Places that uses of different sizes share. Who comes first is first: many small ones delay no large one."""

    def __init__(self, count: int) -> None:
        """Begin with as many free places."""
        self._free = count
        self._turn = Semaphore()
        self._given_back = Event()

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        """Wait until as many places are free, and use them."""
        with self._turn:
            while self._free < count:
                self._given_back.clear()
                self._given_back.wait()
            self._free -= count
        try:
            yield
        finally:
            self._free += count
            self._given_back.set()
