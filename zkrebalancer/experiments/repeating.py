"""What is done again and again beside a run, also while the run itself is busy waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from zkrebalancer.protocol.errors import RebalancerError


class RepeatingError(RebalancerError):
    """What was to be done again and again was not: there was an error, whose traceback was printed."""


class Repeating:
    """Calls `action` at an interval from a thread of its own; a context manager."""

    def __init__(self, action: Callable[[], None], interval_s: float) -> None:
        """Prepare; nothing is called before it is entered."""
        self._action = action
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._is_done = False
        self._thread = threading.Thread(target=self._repeat, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, after the call that is under way; raises RepeatingError if it has ended by itself."""
        self._ended.set()
        self._thread.join()
        if error is None and not self._is_done:
            raise RepeatingError(f"{self._thread.name} has failed; the traceback stands above")

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._action()
        self._is_done = True
