"""Runs an action periodically in a thread, even while the run itself blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from zkrebalancer.protocol.errors import RebalancerError


class RepeatingError(RebalancerError):
    """The action failed; its traceback was printed."""


class Repeating:
    """Calls `action` every `interval_s` from a separate thread; a context manager."""

    def __init__(self, action: Callable[[], None], interval_s: float) -> None:
        """Create the thread; it starts on entry."""
        self._action = action
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._is_done = False
        self._thread = threading.Thread(target=self._repeat, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the thread after the call in progress; raises RepeatingError if the action failed."""
        self._ended.set()
        self._thread.join()
        if error is None and not self._is_done:
            raise RepeatingError(f"{self._thread.name} has failed; see its traceback above")

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._action()
        self._is_done = True
