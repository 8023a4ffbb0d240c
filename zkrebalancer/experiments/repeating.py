"""What is done again and again beside a run, also while the run itself is busy waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Repeating:
    """Calls `action` at an interval from a thread of its own; a context manager."""

    def __init__(self, action: Callable[[], None], interval_s: float) -> None:
        """Prepare; nothing is called before it is entered."""
        self._action = action
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, after the call that is under way."""
        self._ended.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._action()
