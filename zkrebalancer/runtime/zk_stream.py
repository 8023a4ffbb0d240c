"""What kazoo's connection reads from and waits for, with few system calls and few turns of the hub.

kazoo reads the length of each answer, then the answer, and waits before each. It is woken for each request through a
pair of sockets, and writes one at a time. Here one call reads whatever has arrived, one writes all requests of a turn
of the hub, and no socket is needed to wake a greenlet of the same hub.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import gevent
from gevent.hub import Waiter

READ_BYTES = 65_536
MAX_UNSENT_BYTES = 65_536
READABLE = 1  # libev's number


class Bell:
    """Takes the place of kazoo's pair of sockets, both ends of it: counts the requests that are to be sent.

    Only greenlets of the connection's own hub may use it.
    """

    def __init__(self) -> None:
        """Count none yet."""
        self.count = 0
        self.waiter: Waiter[None] | None = None  # of the connection

    def send(self, wakes: bytes) -> int:
        """Count a request, and wake the connection once all requests of this turn are made: it sends them together."""
        self.count += len(wakes)
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            loop = gevent.get_hub().loop
            loop.run_callback(loop.run_callback, waiter.switch, None)  # after the reads that this turn collects
        return len(wakes)

    def recv(self, size: int) -> bytes:
        """Note that a request is sent; raises OSError if there is none."""
        if not self.count:
            raise BlockingIOError
        taken = min(size, self.count)
        self.count -= taken
        return bytes(taken)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class Stream:
    """A connected socket, also one with TLS, that is read and written in large portions."""

    def __init__(self, socket: Any) -> None:  # noqa: ANN401  # gevent's, of two kinds
        """Read and write without waiting from now on."""
        self._socket = socket
        self._unread = b""
        self._begin = 0  # of what is left of it
        self._is_at_end = False
        self._may_have_more = True  # without waiting
        self._watcher = gevent.get_hub().loop.io(socket.fileno(), READABLE)
        self._decrypted: Callable[[], int] = getattr(socket, "pending", int)  # what TLS has not returned yet
        self._unsent = bytearray()
        self.fileno = socket.fileno
        self.setblocking = socket.setblocking

    def send(self, content: bytes | memoryview) -> int:
        """Keep it for `flush`."""
        self._unsent += content
        return len(content)

    @property
    def is_clogged(self) -> bool:
        """Whether more is kept than is worth while."""
        return len(self._unsent) >= MAX_UNSENT_BYTES

    def flush(self) -> bool:
        """Send as much as the kernel takes at once of what is kept; return whether that was all."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            del self._unsent[:sent]
        return True

    def pending(self) -> int:
        """Return how many bytes `recv` has at once."""
        return len(self._unread) - self._begin

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end; raises BlockingIOError if nothing has arrived."""
        if not self.has_arrived():
            raise BlockingIOError
        begin, self._begin = self._begin, min(len(self._unread), self._begin + size)
        return self._unread[begin : self._begin]

    def has_arrived(self) -> bool:
        """Read what has arrived if nothing is left; return whether `recv` would return something, or the end.

        After a portion that was not full, the kernel is asked again only once it reports an arrival.
        """
        if self._begin < len(self._unread) or self._is_at_end:
            return True
        if not self._may_have_more:
            return False
        try:
            self._unread, self._begin = self._socket.recv(READ_BYTES), 0
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._may_have_more = False
            return False
        self._is_at_end = not self._unread
        self._may_have_more = len(self._unread) == READ_BYTES or bool(self._decrypted())
        return True

    def _arrived(self, waiter: Waiter[None]) -> None:
        self._may_have_more = True
        waiter.switch(None)

    def wait(self, bell: Bell | None, timeout_s: float | None) -> None:
        """Wait until something arrives, the bell rings, or the time is over."""
        waiter: Waiter[None] = Waiter()
        timer = None if timeout_s is None else gevent.get_hub().loop.timer(timeout_s)
        try:
            self._watcher.start(self._arrived, waiter)
            if timer is not None:
                timer.start(waiter.switch, None)
            if bell is not None:
                bell.waiter = waiter
            waiter.get()
        finally:
            self._watcher.stop()
            if timer is not None:
                timer.stop()
                timer.close()
            if bell is not None:
                bell.waiter = None

    def close(self) -> None:
        """Close the socket."""
        self._watcher.stop()
        self._watcher.close()
        self._socket.close()
