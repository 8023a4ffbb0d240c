"""Shows the demo's progress: a live screen on a terminal, else plain lines."""

from __future__ import annotations

import time
from typing import Protocol, Self

import click
from rich.console import Console, RenderableType
from rich.live import Live

from zkrebalancer.experiments.demo.screen import Course, milliseconds, render
from zkrebalancer.experiments.picture import Picture
from zkrebalancer.experiments.watch import Watch
from zkrebalancer.observe.rebalances import Rebalance

REFRESH_PER_S = 8


class Show(Protocol):
    """Shows the progress of a run; a context manager."""

    watch: Watch | None

    def __enter__(self) -> Self:
        """Start to show."""

    def __exit__(self, *_error: object) -> None:
        """Stop, and restore the terminal."""

    def heading(self, text: str) -> None:
        """Show a heading."""

    def step(self, title: str) -> None:
        """Show the start of the next step."""

    def detail(self, line: str) -> None:
        """Show the progress of the step."""


class PlainShow:
    """Prints one line for each step, and for each rebalance when it has ended."""

    def __init__(self, *, to_stderr: bool) -> None:
        """Print to stderr or to stdout."""
        self.watch: Watch | None = None
        self._to_stderr = to_stderr
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Print the last rebalances."""
        self._print_rebalances()

    def heading(self, text: str) -> None:
        """Print the heading."""
        self._print(text)

    def step(self, title: str) -> None:
        """Print the step, after the rebalances that have ended since the last one."""
        self._print_rebalances()
        self._print(title)

    def detail(self, line: str) -> None:
        """Print the line, unless it is a mere counter."""
        if " of " not in line:
            self._print(f"  {line}")

    def _print_rebalances(self) -> None:
        if self.watch is not None:
            self.watch.look()
            for rebalance in self.watch.new_rebalances():
                self._print(f"  {rebalance_line(rebalance)}")

    def _print(self, line: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {line}", err=self._to_stderr)


class LiveShow:
    """A screen that is redrawn several times a second and disappears at the end."""

    def __init__(self, console: Console, total_steps: int) -> None:
        """Draw on a terminal."""
        self.watch: Watch | None = None
        self._console = console
        self._began = time.monotonic()
        self._course = Course("zkrebalancer demo", total_steps)
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=REFRESH_PER_S, transient=True
        )

    def __enter__(self) -> Self:
        """Start to draw."""
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear the screen's drawing."""
        self._live.stop()

    def heading(self, text: str) -> None:
        """Show the heading in the first line."""
        self._course.heading = text

    def step(self, title: str) -> None:
        """Start the next step."""
        self._course.detail = ""
        self._course.steps.append((time.monotonic() - self._began, title))

    def detail(self, line: str) -> None:
        """Show the line after the current step."""
        self._course.detail = line

    def _render(self) -> RenderableType:
        elapsed_s = time.monotonic() - self._began
        width, height = self._console.size
        if self.watch is None:
            return render(self._course, Picture(), elapsed_s, width, height)
        with self.watch.lock:
            return render(self._course, self.watch.picture, elapsed_s, width, height)


def rebalance_line(rebalance: Rebalance) -> str:
    """Return a rebalance as one line of text."""
    return (
        f"rebalance {rebalance.generation} of {rebalance.group}: {rebalance.cause}, {rebalance.mode}, "
        f"members {rebalance.members}, moved {rebalance.moved} of {rebalance.partitions}, "
        f"{rebalance.outcome} in {milliseconds(rebalance.settled_ms)}, "
        f"longest pause {milliseconds(rebalance.pause_ms_max)}"
    )
