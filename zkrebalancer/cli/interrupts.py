"""Ctrl-C in commands that run servers: it ends them in good order, whatever greenlet it meets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import gevent


@contextmanager
def interrupts_end_here() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command from its own greenlet, whichever one they meet; later ones are ignored."""
    hub, main = gevent.get_hub(), gevent.getcurrent()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # what follows is cleaning up, which takes a second or two
        if gevent.getcurrent() is main:
            raise KeyboardInterrupt
        hub.loop.run_callback(main.throw, KeyboardInterrupt)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
