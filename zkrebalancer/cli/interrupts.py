"""Lets commands clean up servers, files and nodes after Ctrl-C, SIGTERM or SIGHUP, whichever greenlet runs then."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from zkrebalancer.cli.main import raise_in_command
from zkrebalancer.protocol.errors import RebalancerError


@contextmanager
def interrupts_end_here() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a KeyboardInterrupt in the command's greenlet; ignore later ones.

    An error during the clean-up that follows is printed; the command still counts as interrupted.
    """
    is_interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # the clean-up that follows takes a second or two
        raise_in_command()

    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is below nohup
        ends.append(signal.SIGHUP)  # the terminal is gone
    before = {number: signal.signal(number, interrupt) for number in ends}
    try:
        yield
    except (RebalancerError, OSError) as error:
        if not is_interrupted:
            raise
        click.echo(f"during the clean-up: {error}", err=True)
        raise KeyboardInterrupt from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
