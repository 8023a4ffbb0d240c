"""A progress bar for Spark's jobs, on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

INTERVAL_S = 0.2
END_S = 5.0  # for the bar's thread to end


class _Current:
    """What is being computed; a bar is drawn by another thread."""

    step = ""


def step(context: SparkContext, name: str) -> None:
    """Name the jobs that follow, in Spark's page and beside the bar."""
    context.setJobDescription(name)
    _Current.step = name


@contextmanager
def shown(context: SparkContext, title: str) -> Iterator[None]:
    """Show a bar of the tasks of all running stages while the block runs, if stderr is a terminal."""
    console = Console(file=sys.stderr)  # bound now: an interrupt redirects stderr
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_over = threading.Event()
    with Progress(*columns, console=console, transient=True, redirect_stderr=False) as bars:
        watcher = threading.Thread(target=_watch, args=(context, bars, title, is_over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join(END_S)


def _watch(context: SparkContext, bars: Progress, title: str, is_over: threading.Event) -> None:
    bar, tracker = bars.add_task(title, total=None), context.statusTracker()
    while not is_over.wait(INTERVAL_S):
        bars.update(bar, description=f"{title}: {_Current.step}" if _Current.step else title)
        stages = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number)) is not None]
        if stages:
            done = sum(stage.numCompletedTasks for stage in stages)
            bars.update(bar, completed=done, total=sum(stage.numTasks for stage in stages))
