"""Frames on a real socket, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import count
from typing import cast
from unittest import mock

import gevent
import pytest
from gevent.event import Event
from gevent.socket import socket, socketpair

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import frames
from zkrebalancer.gateway.frames import (
    FIRST_PIECE_BYTES,
    MAX_FRAME_BYTES,
    PIECE_BYTES,
    FrameReader,
    Pieces,
    framed,
    size_of,
)
from zkrebalancer.kafka_protocol.errors import FrameError

MANY_CALLS = 100
Pair = tuple[FrameReader, socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socketpair()
    yield FrameReader(near), far
    near.close()
    far.close()


def test_frames_that_come_byte_by_byte(pair: Pair) -> None:
    reader, far = pair

    def send() -> None:
        for byte in framed(b"first") + framed(b"second"):
            far.sendall(bytes([byte]))
            gevent.sleep(0)
        far.close()

    sender = gevent.spawn(send)
    assert [reader.next_size(), reader.take(5), reader.next_size()] == [5, b"first", 6]
    assert reader.peek(2)[:2] == b"se"
    assert [reader.take(6), reader.next_size()] == [b"second", None]
    sender.join()


def test_a_large_frame_passes_in_pieces(pair: Pair) -> None:
    reader, far = pair
    content = bytes(range(256)) * 8_192  # 2 MiB
    sender = gevent.spawn(far.sendall, framed(content) + framed(b"next"))
    pieces: list[bytes] = []
    size = reader.next_size()
    assert size == len(content)
    reader.pass_on(size, pieces.append, size_of(size))
    assert b"".join(pieces) == framed(content)
    assert max(map(len, pieces)) <= 256 * 1024 + 4
    assert [reader.next_size(), reader.take(4)] == [4, b"next"]
    sender.join()


@pytest.mark.parametrize("content", [b"\0\0", framed(b"whole")[:-1]])
def test_a_stream_that_ends_within_a_frame(pair: Pair, content: bytes) -> None:
    reader, far = pair
    far.sendall(content)
    far.close()
    with pytest.raises(EOFError):
        reader.take(reader.next_size() or 0)


@pytest.mark.parametrize("size", [-1, MAX_FRAME_BYTES + 1])
def test_a_size_that_cannot_be(pair: Pair, size: int) -> None:
    reader, far = pair
    far.sendall(size_of(size))
    with pytest.raises(FrameError, match=f"a frame of {size} bytes"):
        reader.next_size()


@pytest.mark.parametrize("is_large", [False, True])
def test_a_client_that_never_has_to_be_waited_for_leaves_others_their_turn(
    monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    monkeypatch.setattr("zkrebalancer.gateway.frames.MAX_TURN_S", 0.0)
    had_turn, calls = Event(), count()

    def recv(size: int) -> bytes:
        if had_turn.is_set() or next(calls) > MANY_CALLS:
            return b""
        return bytes(size) if is_large else framed(b"x") * 10

    reader = FrameReader(cast("socket", mock.Mock(recv=recv)))
    gevent.spawn_later(1e-6, had_turn.set)
    if is_large:
        with pytest.raises(EOFError):
            reader.pass_on(MAX_FRAME_BYTES, lambda _: None)
    else:
        while size := reader.next_size():
            reader.take(size)
    assert had_turn.is_set()


def test_no_more_is_read_at_once_than_is_said() -> None:
    """In `FrameReader`, read PIECE_BYTES somewhere: a gateway would hold them for each of 20,000 strangers."""
    asked: list[int] = []
    stream = BytesIO(framed(b"a" * 1_000) + framed(b"b" * 1_000))

    def recv(size: int) -> bytes:
        asked.append(size)
        return stream.read(size)

    passed: list[bytes] = []
    reader = FrameReader(cast("socket", mock.Mock(recv=recv)), 100)
    assert [reader.next_size(), reader.take(800), reader.peek(150)[:150]] == [1_000, b"a" * 800, b"a" * 150]
    reader.pass_on(200, passed.append)
    reader.pass_on(reader.next_size() or 0, passed.append)
    assert b"".join(passed) == b"a" * 200 + b"b" * 1_000
    assert max(asked) == 100


def test_pieces_are_small_while_others_use_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Pieces.hold`, give as much as is wanted: those whose client does not read would have 5 GB together."""
    monkeypatch.setattr(frames, "MAX_PIECES_BYTES", 2 * PIECE_BYTES)
    pieces, asked, goes_on = Pieces(), list[int](), Event()

    def recv(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    def wait(_piece: bytes) -> None:
        goes_on.wait(WITHIN_S)

    def pass_on(count: int) -> None:
        reader = FrameReader(cast("socket", mock.Mock(recv=recv)), pieces=pieces)
        reader.pass_on(count, wait)

    passing = [gevent.spawn(pass_on, PIECE_BYTES) for _ in range(3)]
    with gevent.Timeout(WITHIN_S):
        while len(asked) < len(passing):
            gevent.sleep(0)
    assert asked == [PIECE_BYTES, PIECE_BYTES, FIRST_PIECE_BYTES]
    assert pieces.used == sum(asked)
    goes_on.set()
    gevent.joinall(passing, raise_error=True)
    assert pieces.used == 0


def test_the_beginnings_of_frames_are_small_whoever_sends_them() -> None:
    """In `FrameReader.next_size` or `peek`, read PIECE_BYTES: each connection would keep as much, of no account."""
    asked: list[int] = []

    def recv(size: int) -> bytes:
        asked.append(size)
        return framed(bytes(4 * FIRST_PIECE_BYTES))[:size] if len(asked) == 1 else bytes(size)

    reader = FrameReader(cast("socket", mock.Mock(recv=recv)))
    assert reader.next_size() == 4 * FIRST_PIECE_BYTES
    assert len(reader.peek(FIRST_PIECE_BYTES)) < 2 * FIRST_PIECE_BYTES
    assert asked == [FIRST_PIECE_BYTES] * 2
