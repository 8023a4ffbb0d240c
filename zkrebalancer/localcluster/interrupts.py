"""Defers interrupts of the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM: a process that is spawned but not recorded yet would never be killed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never interrupt another thread
        return
    received: list[int] = []
    deferred = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, lambda number, _frame: received.append(number))) for number in deferred]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    for late in received:
        signal.raise_signal(late)
