"""Parses ZooKeeper's frames, as far as needed to lose one chosen request or reply. Pure.

Every message is preceded by its length (4 bytes). A connection begins with a connect request and its answer, which
have no header. After them, a request begins with its number and its kind, and a reply with its request's number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

MAX_FRAME_BYTES = 8 * 1024 * 1024
MULTI, CREATE, DELETE, SET_CONTENT, CHECK, END_OF_MULTI = 14, 1, 2, 5, 13, -1
CHANGES = frozenset({CREATE, DELETE, SET_CONTENT})

Direction = Literal["request", "reply"]


class FrameError(Exception):
    """Received bytes that are not ZooKeeper's protocol."""


@dataclass(frozen=True, slots=True)
class Session:
    """Session id and password from the answer to a connect request; any client with both can end the session."""

    session_id: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a transaction."""

    kind: int
    path: str


class FrameSplitter:
    """Cuts a stream into frames; keeps an incomplete frame until more bytes come."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames (without their length) that `data` completes; raises FrameError."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from(">i", self._buffer)
            if not 0 <= length <= MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._buffer) < 4 + length:
                break
            frames.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return frames


def join(frame: bytes) -> bytes:
    """Return the frame as it is sent."""
    return struct.pack(">i", len(frame)) + frame


def read_session(connect_answer: bytes) -> Session | None:
    """Return the session of a connect answer, None if it is over; raises FrameError."""
    try:
        _version, timeout_ms, session_id, length = struct.unpack_from(">iiqi", connect_answer)
    except struct.error as error:
        raise FrameError(f"a connect answer of {len(connect_answer)} bytes") from error
    return Session(session_id, connect_answer[20 : 20 + length]) if timeout_ms > 0 else None


def read_operations(request: bytes) -> Iterator[Operation]:
    """Yield the operations of a transaction, nothing for any other request; raises FrameError."""
    try:
        _number, kind = struct.unpack_from(">ii", request)
        at = 8
        while kind == MULTI:
            operation, _done, _error = struct.unpack_from(">i?i", request, at)
            if operation == END_OF_MULTI:
                return
            path, at = _read_text(request, at + 9)
            yield Operation(operation, path)
            at = _skip_rest(request, operation, at)
    except struct.error as error:
        raise FrameError(f"a request of {len(request)} bytes that ends too early") from error


def _read_text(frame: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">i", frame, at)
    end = at + 4 + max(0, length)
    if end > len(frame):
        raise FrameError(f"a text of {length} bytes in a frame of {len(frame)}")
    return frame[at + 4 : end].decode(errors="replace"), end


def _skip_rest(frame: bytes, operation: int, at: int) -> int:
    """Return the end of the operation whose path ends at `at`."""
    if operation in {DELETE, CHECK}:
        return at + 4  # a version
    _content, at = _read_text(frame, at)
    if operation == SET_CONTENT:
        return at + 4
    if operation != CREATE:
        raise FrameError(f"operation {operation} in a transaction")
    (entries,) = struct.unpack_from(">i", frame, at)
    at += 4
    for _ in range(entries):  # of the access list: permissions, scheme, id
        _scheme, at = _read_text(frame, at + 4)
        _identity, at = _read_text(frame, at)
    return at + 4  # flags


@dataclass(slots=True)
class Conversation:
    """One connection, fed frame by frame; finds requests and replies that change nodes."""

    session: Session | None = None
    _has_asked: bool = False
    _has_answer: bool = False
    _changes: dict[int, tuple[str, ...]] = field(default_factory=dict)  # number of a request -> paths it changes

    def requested(self, frame: bytes) -> tuple[str, ...]:
        """Handle a client's frame; return the paths that it changes."""
        if not self._has_asked:
            self._has_asked = True
            return ()
        changed = tuple(operation.path for operation in read_operations(frame) if operation.kind in CHANGES)
        if changed:
            self._changes[struct.unpack_from(">i", frame)[0]] = changed
        return changed

    def replied(self, frame: bytes) -> tuple[str, ...]:
        """Handle a server's frame; return the paths changed by the request that it answers."""
        if not self._has_answer:
            self._has_answer = True
            self.session = read_session(frame)
            return ()
        if len(frame) < 16:
            raise FrameError(f"a reply of {len(frame)} bytes")
        number, _zxid, error = struct.unpack_from(">iqi", frame)
        changed = self._changes.pop(number, ())
        return () if error else changed
