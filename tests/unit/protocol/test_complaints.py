"""A client that reconnects for ever with the same fault, or a node that is written again and again, fills no log."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol import complaints
from zkrebalancer.protocol.complaints import (
    FIRST_PAUSE_S,
    LINES_PER_S,
    LONGEST_PAUSE_S,
    MAX_BURST,
    MAX_LINE,
    Complaints,
    LineRate,
)


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


def test_lines_of_any_number_of_peers_have_a_rate_and_what_is_left_out_is_counted() -> None:
    """In `LineRate.text`, let all pass, or count nothing."""
    rate = LineRate()
    texts = [rate.text(f"peer {number}", 5.0) for number in range(MAX_BURST + 3)]
    assert texts == [*(f"peer {number}" for number in range(MAX_BURST)), None, None, None]
    soon_s = 5.0 + 1.5 / LINES_PER_S
    assert rate.text("x" * 2 * MAX_LINE, soon_s) == "x" * MAX_LINE + " (3 lines before it were left out)"
    assert rate.text("again", soon_s) is None
    later = [rate.text("later", 10_000.0) for _ in range(MAX_BURST + 1)]
    assert later == ["later (1 lines before it were left out)", *["later"] * (MAX_BURST - 1), None]


def test_a_peer_whose_line_is_left_out_is_not_silent_for_an_interval() -> None:
    """In `Complaints.text`, count it as said: with many peers, one would be silent for an hour, and its faults lost."""
    found, rate = Complaints(), LineRate()
    assert found.text("a", "x", 0.0, rate) == "x"
    for number in range(MAX_BURST - 1):
        rate.text(f"peer {number}", 0.0)
    assert [found.text(peer, "x", 0.0, rate) for peer in "abb"] == [None] * 3
    assert (
        found.text("b", "x", 1.0, rate) == "x (and 2 times since the last such line) (2 lines before it were left out)"
    )
    for _ in range(MAX_BURST):
        rate.text("other", FIRST_PAUSE_S)
    assert found.text("a", "x", FIRST_PAUSE_S, rate) is None
    later_s = FIRST_PAUSE_S + 1.0
    assert (found.text("a", "x", later_s, rate) or "").startswith("x (and 2 times since the last such line)")
    assert found.text("a", "x", later_s, rate) is None
