"""Documents that are sent again whenever they change, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import gevent

from zkrebalancer.runtime import clock

MAX_STREAMS = 10  # half of the server's clients, so that probes and metrics always have a place
MAX_STREAM_S = 600.0  # then the browser asks again
LOOK_INTERVAL_S = 1.0
PING_INTERVAL_S = 1.0  # an event that says that nothing has changed; it fails soon after the reader has gone
PING = b"event: beat\ndata: {}\n\n"
Document = dict[str, Any]
Make = Callable[[], bytes]  # returns a document, encoded


class Streams:
    """The streams of all readers."""

    def __init__(self) -> None:
        """Have no reader."""
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether another reader has to ask again and again instead."""
        return self._count >= MAX_STREAMS

    def follow(self, make: Make) -> Iterator[bytes]:
        """Yield a document now, and whenever it differs from the one sent last."""
        self._count += 1
        try:
            yield _begin()
            yield from self._changes(make)
        finally:
            self._count -= 1

    def once(self, make: Make) -> Iterator[bytes]:
        """Yield a document that takes long to make.

        If the reader goes meanwhile, it is not made any more.
        """
        self._count += 1
        maker = gevent.Greenlet(make)
        try:
            yield _begin()
            maker.start()
            while gevent.joinall([maker], timeout=PING_INTERVAL_S) == []:
                yield PING
            yield _event(maker.get())
        finally:
            maker.kill(block=False)
            self._count -= 1

    @staticmethod
    def _changes(make: Make) -> Iterator[bytes]:
        until_us = clock.steady_us() + int(MAX_STREAM_S * 1e6)
        last, sent_us = b"", 0
        while clock.steady_us() < until_us:
            content = make()
            if content != last:
                last, sent_us = content, clock.steady_us()
                yield _event(content)
            elif clock.steady_us() >= sent_us + PING_INTERVAL_S * 1e6:
                sent_us = clock.steady_us()
                yield PING
            gevent.sleep(LOOK_INTERVAL_S)


def encode(document: Document) -> bytes:
    """Return a document as one line of JSON."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _begin() -> bytes:
    """Return when to ask again after an interruption, and our time: the reader's clock may be wrong."""
    return b"retry: 2000\n\nevent: time\ndata: %d\n\n" % clock.epoch_ms()


def _event(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"
