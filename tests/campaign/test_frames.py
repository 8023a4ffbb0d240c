"""The proxy's parser of ZooKeeper's frames, on messages from kazoo and on damaged ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign.frames import (
    CHECK,
    CREATE,
    DELETE,
    MAX_FRAME_BYTES,
    MULTI,
    SET_CONTENT,
    Conversation,
    FrameError,
    FrameSplitter,
    Operation,
    Session,
    join,
    read_operations,
    read_session,
)

OPERATION = struct.Struct(">iBi")  # kind, whether it is the end, error
PING = struct.pack(">ii", -2, 11)
CONNECT = struct.pack(">iqiqi", 0, 0, 3_000, 0, 16) + bytes(16) + b"\0"
PASSWORD = bytes(range(16))
CONNECTED = struct.pack(">iiqi", 0, 3_000, 77, 16) + PASSWORD + b"\0"
EXPIRED = struct.pack(">iiqi", 0, 0, 0, 16) + bytes(16)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">i", len(data)) + data


def multi(number: int, *operations: tuple[int, str]) -> bytes:
    """A transaction as ZooKeeper's protocol writes it."""
    frame = struct.pack(">ii", number, MULTI)
    for kind, path in operations:
        frame += OPERATION.pack(kind, 0, -1) + text(path)
        if kind == CREATE:
            frame += (
                text(b"content") + struct.pack(">ii", 1, 31) + text("world") + text("anyone") + struct.pack(">i", 2)
            )
        elif kind == SET_CONTENT:
            frame += text(b"new") + struct.pack(">i", 4)
        else:
            frame += struct.pack(">i", 3)
    return frame + OPERATION.pack(-1, 1, -1)


def reply(number: int, error: int = 0) -> bytes:
    return struct.pack(">iqi", number, 5, error)


@given(st.lists(st.binary(max_size=50)), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(join, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    splitter = FrameSplitter()
    found = [
        frame
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in splitter.feed(stream[begin:end])
    ]
    assert found == frames


@pytest.mark.parametrize("length", [-1, MAX_FRAME_BYTES + 1, 0x47455420])
def test_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(FrameError):
        FrameSplitter().feed(struct.pack(">i", length))


def test_a_session_is_read_with_its_password() -> None:
    assert read_session(CONNECTED) == Session(77, PASSWORD)
    assert read_session(EXPIRED) is None
    with pytest.raises(FrameError):
        read_session(b"short")


def test_the_operations_of_a_transaction_are_read() -> None:
    wanted = [(CHECK, "/a"), (CREATE, "/b/ü"), (SET_CONTENT, "/c"), (DELETE, "/d"), (CREATE, "/e")]
    assert list(read_operations(multi(1, *wanted))) == [Operation(*operation) for operation in wanted]
    assert list(read_operations(PING)) == []


@pytest.mark.parametrize("length", [3, 9, 16, 30])
def test_a_transaction_that_ends_too_early_is_refused(length: int) -> None:
    with pytest.raises(FrameError):
        list(read_operations(multi(1, (CREATE, "/b"))[:length]))


def test_the_reply_to_a_change_is_found_among_others() -> None:
    conversation = Conversation()
    assert conversation.requested(CONNECT) == ()
    assert conversation.replied(CONNECTED) == ()
    assert conversation.session == Session(77, PASSWORD)
    assert conversation.requested(multi(1, (CHECK, "/owners/c"))) == ()
    assert conversation.requested(multi(2, (CHECK, "/owners/c"), (DELETE, "/channel/c/command-1"))) == (
        "/channel/c/command-1",
    )
    assert conversation.requested(PING) == ()
    assert conversation.replied(reply(1)) == ()
    assert conversation.replied(reply(-2)) == ()
    assert conversation.replied(reply(2)) == ("/channel/c/command-1",)
    assert conversation.replied(reply(2)) == ()


def test_a_refused_change_does_not_count() -> None:
    conversation = Conversation()
    conversation.requested(CONNECT)
    conversation.replied(CONNECTED)
    conversation.requested(multi(2, (DELETE, "/a")))
    assert conversation.replied(reply(2, error=-101)) == ()
