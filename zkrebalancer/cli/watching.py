"""Keeps a view on the screen: `--watch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click
import gevent
from rich.console import RenderableType

from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.tables import console
from zkrebalancer.protocol.errors import RebalancerError

INTERVAL_S = 2.0

View = tuple[Sequence[RenderableType], Sequence[str]]  # what to show, and problems
watch_option = click.option("--watch", is_flag=True, help=f"Show it again every {INTERVAL_S:g} s, until Ctrl-C.")


def refuse_json(*, watch: bool, as_json: bool) -> None:
    """Raise UsageError if both are set: the one JSON document would never end."""
    if watch and as_json:
        raise click.UsageError("--watch shows a view again and again, so it cannot be combined with --json")


def show(read: Callable[[], View], *, watch: bool) -> None:
    """Print what `read` returns; to `watch`, again and again until Ctrl-C.

    The first failure of `read` ends the command. After later ones, the last view stays, with the error below it.
    """
    screen = console()
    view = read()
    if not watch:
        _print(view)
        return
    error = ""  # of the last try
    try:
        while True:
            if screen.is_terminal:
                click.clear()
            screen.print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {INTERVAL_S:g} s; Ctrl-C ends")
            _print(view)
            if error:
                screen.print(f"not up to date: {error}")
            gevent.sleep(INTERVAL_S)
            try:
                view, error = read(), ""
            except RebalancerError as failure:
                error = str(failure)
    except KeyboardInterrupt:  # this is how it ends: exit code 0
        if screen.is_terminal:
            click.echo()  # after ^C, so that the shell's prompt begins its own line


def _print(view: View) -> None:
    shown, problems = view
    for each in shown:
        console().print(each)
    for problem in problems:
        click.echo(f"problem: {plain(problem)}", err=True)
