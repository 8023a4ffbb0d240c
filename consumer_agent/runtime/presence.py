"""How long the application has not polled, and the machine thread has not moved.

The lock of the shared state must be held, except for `go` and `looped_ms`.
"""

from __future__ import annotations

from collections.abc import Callable


class Presence:
    """Since when the application, and each handler that has records, has been away."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Begin with an application that has never polled."""
        self._now_ms = now_ms
        self._away_since_ms: int | None = None  # None: the application polls, or has never polled
        self._working_since_ms: dict[int, int] = {}  # consumer threads whose handler has records
        self._hanging: list[tuple[int, Callable[[], bool]]] = []  # since when, and whether it still does
        self._longest_ms = 0
        self.looped_ms: int | None = None  # when the machine thread moved last; None: it does not run

    def go(self) -> None:
        """Note that the application has left the poll, or is in a callback."""
        self._away_since_ms = self._now_ms()

    def come(self) -> None:
        """Note that the application polls, or is back from a callback."""
        since_ms, self._away_since_ms = self._away_since_ms, None
        if since_ms is not None:
            self._came_back(since_ms)

    def begin_work(self, thread: int) -> None:
        """Note that a consumer thread's handler gets records."""
        self._working_since_ms[thread] = self._now_ms()

    def end_work(self, thread: int) -> None:
        """Note that the handler has returned."""
        self._came_back(self._working_since_ms.pop(thread))

    def begin_hang(self, hangs: Callable[[], bool]) -> None:
        """Note that a thread of the application does not return from a call of ours, as long as `hangs` says so."""
        self._hanging = [one for one in self._hanging if one[1]()]
        self._hanging.append((self._now_ms(), hangs))

    @property
    def is_working(self) -> bool:
        """Whether a handler has records, or a thread hangs."""
        return bool(self._working_since_ms) or any(hangs() for _since_ms, hangs in self._hanging)

    @property
    def away_since_ms(self) -> int | None:
        """Since when the application, or its slowest handler, has been away, or hangs in a call of Kafka's client."""
        own = [] if self._away_since_ms is None else [self._away_since_ms]
        hanging = [since_ms for since_ms, hangs in self._hanging if hangs()]
        return min([*own, *hanging, *self._working_since_ms.values()], default=None)

    def metrics(self) -> dict[str, float]:
        """Return how long the application has been away, the longest time so far, and the machine thread's."""
        now_ms, since_ms, looped_ms = self._now_ms(), self.away_since_ms, self.looped_ms
        away_ms = 0 if since_ms is None else now_ms - since_ms
        return {
            "since_poll_ms": away_ms,
            "longest_since_poll_ms": max(away_ms, self._longest_ms),
            "loop_idle_ms": 0 if looped_ms is None else max(0, now_ms - looped_ms),
        }

    def count_on(self, former: Presence) -> None:
        """Remember the longest time of a former one."""
        self._longest_ms = former._longest_ms

    def _came_back(self, since_ms: int) -> None:
        self._longest_ms = max(self._longest_ms, self._now_ms() - since_ms)
