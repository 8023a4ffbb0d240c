"""Frames on a socket: an int32 size, then this number of bytes. A large frame is passed on in pieces."""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Callable, Iterator

from gevent.socket import socket
from gevent.ssl import SSLSocket

from zkrebalancer.gateway.turns import let_others_run
from zkrebalancer.kafka_protocol.errors import FrameError

PIECE_BYTES = 256 * 1024
FIRST_PIECE_BYTES = 16 * 1024  # before a login, and at the beginning of a frame: anybody may connect 20,000 times
MAX_PIECES_BYTES = 128 << 20  # of pieces on their way, of all connections together; beyond that, pieces are small
MAX_FRAME_BYTES = 1 << 30  # of relayed frames; brokers have their own limits
MAX_TURN_S = 0.02  # how long a connection whose frames are always ready may run before others do
_SIZE = struct.Struct(">i")


class Pieces:
    """The memory for pieces on their way: what a slow side does not take, or has yet to send, has its room here."""

    def __init__(self) -> None:
        """Start with nothing on its way."""
        self.used = 0

    @contextlib.contextmanager
    def hold(self, wanted: int) -> Iterator[int]:
        """Use memory for a piece, and give how large it may be: small if others use much, but never nothing."""
        size = wanted if self.used + wanted <= MAX_PIECES_BYTES else min(wanted, FIRST_PIECE_BYTES)
        self.used += size
        try:
            yield size
        finally:
            self.used -= size


class FrameReader:
    """Reads frames; blocks only the greenlet that calls it. Raises EOFError if the stream ends within a frame."""

    def __init__(self, source: socket, piece_bytes: int = PIECE_BYTES, pieces: Pieces | None = None) -> None:
        """Start between two frames; `piece_bytes`: how much is read at once, as far as `pieces` has memory for it."""
        self.piece_bytes = piece_bytes
        self._pieces = pieces or Pieces()
        self._source = source
        self._buffer = b""
        self._turn_ends_s = 0.0

    @property
    def has_more(self) -> bool:
        """Whether a part of the next frame has arrived already."""
        if self._buffer or (isinstance(self._source, SSLSocket) and self._source.pending()):
            return True
        arrivals = select.poll()
        arrivals.register(self._source.fileno(), select.POLLIN)
        return bool(arrivals.poll(0))

    def next_size(self) -> int | None:
        """Start the next frame and return its size; None if the stream ends here. Raises FrameError."""
        self._let_others_run()
        if not self._buffer:
            self._buffer = self._source.recv(min(self.piece_bytes, FIRST_PIECE_BYTES))
            if not self._buffer:
                return None
        (size,) = _SIZE.unpack(self.take(_SIZE.size))
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {size} bytes is announced, at most {MAX_FRAME_BYTES} are allowed")
        return int(size)

    def peek(self, count: int) -> bytes:
        """Return at least `count` bytes, and further ones that have arrived, without consuming them."""
        while len(self._buffer) < count:
            piece = self._source.recv(min(self.piece_bytes, FIRST_PIECE_BYTES))
            if not piece:
                raise EOFError
            self._buffer = self._buffer + piece if self._buffer else piece
        return self._buffer

    def take(self, count: int) -> bytes:
        """Consume and return exactly `count` bytes."""
        if len(self._buffer) < count:
            self._buffer = self._gathered(count)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _gathered(self, count: int) -> bytes:
        gathered = bytearray(self._buffer)  # a list would have an object for each byte that comes alone
        while (missing := count - len(gathered)) > 0:
            piece = self._source.recv(min(missing, self.piece_bytes))
            if not piece:
                raise EOFError
            gathered += piece
        return bytes(gathered)

    def pass_on(self, count: int, send: Callable[[bytes], None], before: bytes = b"") -> None:
        """Send `before` and the next `count` bytes, piece by piece."""
        first, self._buffer = self._buffer[:count], self._buffer[count:]
        if before or first:
            send(before + first)
        missing = count - len(first)
        while missing > 0:
            self._let_others_run()
            with self._pieces.hold(min(missing, self.piece_bytes)) as size:
                piece = self._source.recv(size)
                if not piece:
                    raise EOFError
                send(piece)
            missing -= len(piece)

    def _let_others_run(self) -> None:
        """Switch to other greenlets from time to time, because socket calls switch only if they have to wait."""
        if time.monotonic() >= self._turn_ends_s:
            let_others_run()
            self._turn_ends_s = time.monotonic() + MAX_TURN_S


def framed(content: bytes) -> bytes:
    """Return the content as a frame."""
    return _SIZE.pack(len(content)) + content


def size_of(count: int) -> bytes:
    """Return the beginning of a frame of `count` bytes: its size."""
    return _SIZE.pack(count)
