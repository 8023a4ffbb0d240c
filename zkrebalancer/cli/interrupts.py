"""Ctrl-C in commands that run servers: it ends them in good order, whatever greenlet it meets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
import gevent

from zkrebalancer.protocol.errors import RebalancerError


@contextmanager
def interrupts_end_here() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command from its own greenlet, whichever one they meet; later ones are ignored.

    An error of the cleaning up that follows is told, and the command has been interrupted all the same.
    """
    hub, main = gevent.get_hub(), gevent.getcurrent()
    is_interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # what follows is cleaning up, which takes a second or two
        if gevent.getcurrent() is main:
            raise KeyboardInterrupt
        hub.loop.run_callback(main.throw, KeyboardInterrupt)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (RebalancerError, OSError) as error:
        if not is_interrupted:
            raise
        click.echo(f"While it was ended: {error}", err=True)
        raise KeyboardInterrupt from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
