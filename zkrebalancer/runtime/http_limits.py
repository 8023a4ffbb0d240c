"""What keeps a flood of requests for pages from delaying the loop that it is answered on.

Requests begin at a bounded rate, one answer at a time is made in a thread, of metrics and pages together, and answers
that are the same for everybody are made once for all who ask meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

MAX_REQUESTS_PER_S = 100  # each takes about 0.3 ms; probes wait behind at most MAX_CLIENTS others
BURST = 20  # requests that begin at once after a pause
MIN_KEPT_S = 0.2
SHARE_OF_TIME = 4  # an answer is kept at least this many times as long as it took to make
MAX_KEPT_S = 5.0
MAX_REST_S = 1.0


class Pace:
    """Lets requests begin at a bounded rate."""

    def __init__(self) -> None:
        """Begin with a pause behind."""
        self._last_s = 0.0

    def wait(self) -> None:
        """Block this greenlet until its request may begin: those that came earlier are first."""
        now_s, interval_s = time.monotonic(), 1 / MAX_REQUESTS_PER_S
        self._last_s = max(self._last_s + interval_s, now_s - BURST * interval_s)
        if self._last_s > now_s:
            gevent.sleep(self._last_s - now_s)


class Shared:
    """An answer that is the same for everybody: made again only some time after it was made last."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        """Make nothing yet."""
        self._make = make
        self._content = b""
        self._until_s = 0.0
        self._making: gevent.Greenlet[..., bytes] | None = None

    def get(self) -> bytes:
        """Return the answer; blocks this greenlet only, and if it gives up, the others still get theirs."""
        if time.monotonic() < self._until_s:
            return self._content
        if self._making is None:
            self._making = gevent.spawn(self._make_and_keep)
        content: bytes = self._making.get()  # raises what it raises
        return content

    def _make_and_keep(self) -> bytes:
        began_s = time.monotonic()
        try:
            self._content = self._make()
            now_s = time.monotonic()
            self._until_s = now_s + min(MAX_KEPT_S, max(MIN_KEPT_S, SHARE_OF_TIME * (now_s - began_s)))
        finally:
            self._making = None
        return self._content


class Renderer:
    """Makes answers in a thread, one at a time, and rests after each for as long as it took."""

    def __init__(self) -> None:
        """Make nothing yet."""
        self._free = BoundedSemaphore(1)

    def make(self, prepare: Callable[[], Callable[[], bytes]]) -> bytes:
        """Return an answer; blocks this greenlet only. `prepare` copies on the loop what the thread needs.

        If the greenlet gives up, the next answer still waits until the thread has ended.
        """
        self._free.acquire()
        began_s = time.monotonic()
        try:
            making: AsyncResult[bytes] = gevent.get_hub().threadpool.spawn(prepare())
        except BaseException:
            self._rest(began_s)
            raise
        making.rawlink(lambda _made: self._rest(began_s))
        return making.get() or b""  # it is not None, and raises what it raises

    def _rest(self, began_s: float) -> None:
        gevent.spawn_later(min(MAX_REST_S, time.monotonic() - began_s), self._free.release)
