"""Frames on a socket: an int32 size, then as many bytes. A large frame passes in pieces."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import gevent
from gevent.socket import socket

from zkrebalancer.kafka_protocol.errors import FrameError

PIECE_BYTES = 256 * 1024
MAX_REQUEST_ELEMENTS = 100_000  # of a request that is answered here: as many take a tenth of a second to decode
MAX_FRAME_BYTES = 1 << 30  # of frames that pass; brokers have limits of their own
MAX_TURN_S = 0.02  # of one connection whose frames never have to be waited for, before others have their turn
PAUSE_S = 1e-6  # with 0, gevent looks at sockets and timers after fifty turns only
_SIZE = struct.Struct(">i")


class FrameReader:
    """Reads frames; blocks only the greenlet that calls it. Raises EOFError if the stream ends within a frame."""

    def __init__(self, source: socket) -> None:
        """Begin between two frames."""
        self._source = source
        self._buffer = b""
        self._turn_ends_s = 0.0

    def next_size(self) -> int | None:
        """Begin the next frame and return its size; None if the stream ends here. Raises FrameError."""
        self._let_others_run()
        if not self._buffer:
            self._buffer = self._source.recv(PIECE_BYTES)
            if not self._buffer:
                return None
        (size,) = _SIZE.unpack(self.take(_SIZE.size))
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {size} bytes is announced, at most {MAX_FRAME_BYTES} are allowed")
        return int(size)

    def peek(self, count: int) -> bytes:
        """Return at least `count` bytes, or more if they are there, without going on."""
        while len(self._buffer) < count:
            piece = self._source.recv(PIECE_BYTES)
            if not piece:
                raise EOFError
            self._buffer = self._buffer + piece if self._buffer else piece
        return self._buffer

    def take(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        if len(self._buffer) < count:
            self._buffer = self._gathered(count)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _gathered(self, count: int) -> bytes:
        pieces, missing = [self._buffer], count - len(self._buffer)
        while missing > 0:
            piece = self._source.recv(PIECE_BYTES)
            if not piece:
                raise EOFError
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def pass_on(self, count: int, send: Callable[[bytes], None], before: bytes = b"") -> None:
        """Send `before` and the next `count` bytes, piece by piece."""
        first, self._buffer = self._buffer[:count], self._buffer[count:]
        if before or first:
            send(before + first)
        missing = count - len(first)
        while missing > 0:
            self._let_others_run()
            piece = self._source.recv(min(missing, PIECE_BYTES))
            if not piece:
                raise EOFError
            send(piece)
            missing -= len(piece)

    def _let_others_run(self) -> None:
        """Switch to other greenlets once in a while: calls of a socket switch only if they have to wait."""
        if time.monotonic() >= self._turn_ends_s:
            gevent.sleep(PAUSE_S)
            self._turn_ends_s = time.monotonic() + MAX_TURN_S


def framed(content: bytes) -> bytes:
    """Return the content as a frame."""
    return _SIZE.pack(len(content)) + content


def size_of(count: int) -> bytes:
    """Return what a frame of `count` bytes begins with."""
    return _SIZE.pack(count)
