"""A client that reconnects for ever with the same fault, or a node that is written again and again, fills no log."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol import complaints
from zkrebalancer.protocol.complaints import FIRST_PAUSE_S, LONGEST_PAUSE_S, Complaints


def lines(found: Complaints, peer: str, begin_s: float, seconds: int) -> list[str]:
    """Report a fault each second; what differs is a number."""
    texts = [found.text(peer, f"a frame of {at} bytes", begin_s + at) for at in range(seconds)]
    return [text for text in texts if text is not None]


def test_a_fault_is_said_once_per_peer_and_reason_and_then_counted_with_growing_pauses() -> None:
    found = Complaints()
    assert lines(found, "a", 0.0, 31) == [
        "a frame of 0 bytes",
        "a frame of 10 bytes (and 9 times since the last such line)",
        "a frame of 30 bytes (and 19 times since the last such line)",
    ]
    assert lines(found, "b", 31.0, 2) == ["a frame of 0 bytes"]
    assert found.text("a", "no header", 33.0) == "no header"
    assert len(lines(found, "a", 34.0, 86_400)) < 35


def test_a_fault_after_a_long_time_without_one_begins_anew() -> None:
    found = Complaints()
    lines(found, "a", 0.0, 9)
    assert found.text("a", "a frame of 7 bytes", 2 * LONGEST_PAUSE_S) == "a frame of 7 bytes"
    assert found.text("a", "a frame of 8 bytes", 2 * LONGEST_PAUSE_S + FIRST_PAUSE_S) == "a frame of 8 bytes"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints, "MAX_KEPT", 2)
    found = Complaints()
    assert [found.text(peer, "x", 0.0) for peer in "abcacb"] == ["x", "x", "x", "x", None, "x"]
    assert len(found._rows) == 2
