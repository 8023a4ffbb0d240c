"""kazoo's results, converted to our replies."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zkrebalancer.protocol.calls import Content, Get, Stat
from zkrebalancer.runtime.zk_answers import read_answer

STAT = SimpleNamespace(version=1, czxid=2, mzxid=3, ephemeralOwner=4, ctime=5, cversion=9, numChildren=3)


@pytest.mark.parametrize("content", [b"", None])
def test_a_node_without_content_is_empty(content: bytes | None) -> None:
    """In `read_answer`, return kazoo's None: a backup of Kafka's nodes would end with a traceback."""
    result = SimpleNamespace(exception=None, get=lambda: (content, STAT))
    assert read_answer(Get("/consumers"), result) == Content(b"", Stat(1, 2, 3, 4, 5, 6))
