"""Shows the progress of a campaign: lines, and on a terminal also a status line."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.status import Status


class Progress:
    """A context manager; lines go to stdout, or to stderr if stdout is for a document."""

    def __init__(self, *, to_stderr: bool) -> None:
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._status = Status("", console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> Self:
        """Start the status line."""
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the terminal."""
        if self._status is not None:
            self._status.stop()

    def line(self, text: str) -> None:
        """Print a line with the time."""
        self.console.print(f"{time.monotonic() - self._began:7.1f} s  {text}", markup=False)

    def status(self, text: str) -> None:
        """Update the status line, if there is a terminal."""
        if self._status is not None:
            self._status.update(text[: self.console.width - 4])


def end_on_signals(end_soon: Callable[[], None], progress: Progress, ending: str) -> None:
    """End a run cleanly at the first Ctrl-C or SIGTERM; a second one has its usual effect."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(_number: int, _frame: object) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        end_soon()
        progress.line(ending)

    for number in before:
        signal.signal(number, end)
