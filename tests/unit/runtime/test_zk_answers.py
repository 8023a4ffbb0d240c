"""kazoo's results, converted to our replies."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from zkrebalancer.protocol.calls import (
    Content,
    Delete,
    Get,
    GetRights,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    SetRights,
    Stat,
)
from zkrebalancer.runtime.zk_answers import read_answer

STAT = SimpleNamespace(version=1, czxid=2, mzxid=3, ephemeralOwner=4, ctime=5, cversion=9, numChildren=3)


@pytest.mark.parametrize("content", [b"", None])
def test_a_node_without_content_is_empty(content: bytes | None) -> None:
    """In `read_answer`, return kazoo's None: a backup of Kafka's nodes would end with a traceback."""
    result = SimpleNamespace(exception=None, get=lambda: (content, STAT))
    assert read_answer(Get("/consumers"), result) == Content(b"", Stat(1, 2, 3, 4, 5, 6))


UNREADABLE = [UnicodeDecodeError("utf-8", b"\xed", 0, 1, "invalid"), struct.error("short"), IndexError()]


@pytest.mark.parametrize("error", UNREADABLE)
def test_an_answer_that_kazoo_cannot_read_is_an_answer(error: Exception) -> None:
    """In `read_answer`, raise it: who waits for the answer would wait for ever, as `security` for some rights did."""
    result = SimpleNamespace(exception=error, get=lambda: None)
    for read in (GetRights("/n"), Get("/n"), ListChildren("/n")):
        assert read_answer(read, result) == Refused(Refusal.MARSHALLING)
    for write in (Multi((Delete("/n"),)), SetRights("/n", {})):
        assert read_answer(write, result) == Refused(Refusal.CONNECTION_LOST)
