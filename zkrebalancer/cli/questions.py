"""Asks a person on a terminal. Meanwhile the hub runs: the session of ZooKeeper, which a command has, must not end."""

from __future__ import annotations

import io
import sys
from contextlib import suppress

import click
from gevent.socket import wait_read

ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def can_ask(*, as_json: bool) -> bool:
    """Whether a question can be answered: the input is a terminal, and not closed, and the output is for people."""
    return not as_json and sys.stdin is not None and sys.stdin.isatty()


def is_confirmed(question: str) -> bool:
    """Ask until the answer is yes or no; raises click.Abort at the end of the input."""
    while True:
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
