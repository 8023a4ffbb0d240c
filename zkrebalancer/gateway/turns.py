"""Long work in pieces, between which the lease, other connections and other groups have their turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import gevent

ITEMS_PER_TURN = 1_000  # partitions, or others that take about a microsecond each
PAUSE_S = 1e-6  # with 0, gevent would check sockets and timers only after fifty switches
Item = TypeVar("Item")


def let_others_run() -> None:
    """Switch to all others that are ready."""
    gevent.sleep(PAUSE_S)


def in_turns(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items; others run in between."""
    for number, item in enumerate(items, 1):
        if not number % ITEMS_PER_TURN:
            let_others_run()
        yield item
