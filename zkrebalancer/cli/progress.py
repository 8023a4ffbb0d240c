"""Progress on stderr: a bar on a terminal. Otherwise a grid of runs prints a line per event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def event_bar() -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many events were read; yield a function that gets their number so far."""
    with _bar("events") as update:
        yield lambda done: update(done, None)


@contextmanager
def node_bar() -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on a terminal; yield a function that gets the number of nodes so far, and of all if it is known."""
    with _bar("nodes") as update:
        yield update


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    console = Console(stderr=True)
    columns = (BarColumn(30), MofNCompleteColumn(), TextColumn(what), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class GridShow:
    """Shows the current run and its current step; a context manager."""

    def __init__(self, console: Console, run_count: int) -> None:
        """Draw on a console for stderr."""
        self._console = console
        self._began_s = time.monotonic()
        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=run_count)
        self._title = ""

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def begin(self, number: int, title: str) -> None:
        """Show the run that begins; `number` counts from 0."""
        self._title = title
        self._progress.update(self._task, completed=number, description=title)
        if not self._console.is_terminal:
            self._print(title)

    def detail(self, line: str) -> None:
        """Show the current step of the run."""
        self._progress.update(self._task, description=f"{self._title}: {line}")
        if not self._console.is_terminal:
            self._print(f"  {line}")

    def end(self, line: str) -> None:
        """Show the result of the run."""
        self._progress.advance(self._task)
        self._print(f"{self._title}: {line}")

    def _print(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_s:6.1f} s  {line}", soft_wrap=True, markup=False)
