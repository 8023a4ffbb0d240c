"""Asks a person on a terminal. Meanwhile the hub runs: the session of ZooKeeper, which a command has, must not end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
from gevent.socket import wait_read

from zkrebalancer.protocol.errors import RebalancerError

ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


class OutputLostError(RebalancerError):
    """What would be changed could not be shown."""


@contextmanager
def shown_first(*, dry_run: bool = False) -> Iterator[None]:
    """Print, in the block, what a command is about to change; raises OutputLostError if the output takes no more.

    Without it, a command whose reader is gone, such as `head`, would end without a word.
    """
    try:
        yield
    except OSError as error:
        if dry_run:  # who only looks need not see all
            raise
        text = f"nothing was changed: the output cannot be written: {error.strerror or error}"
        raise OutputLostError(text) from None


def can_ask(*, as_json: bool) -> bool:
    """Whether a question can be answered: the input is a terminal, and not closed, and the output is for people."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty()


def is_confirmed(question: str) -> bool:
    """Ask until the answer is yes or no; raises OutputLostError, and click.Abort at the end of the input."""
    while True:
        with shown_first():
            click.echo(f"{question} [y/N]: ", nl=False)
        with suppress(io.UnsupportedOperation):  # an input in memory has come already
            wait_read(sys.stdin.fileno())
        try:
            answer = click.termui.visible_prompt_func("").strip().lower()
        except EOFError:
            raise click.Abort from None
        if answer in ANSWERS:
            return ANSWERS[answer]
        click.echo("Error: invalid input")
