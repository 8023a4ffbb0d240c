"""Warnings about peers and nodes with repeated faults: the first fault at once, then sums at growing intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 3_600.0  # after this time without a fault, the intervals start anew
MAX_KEPT = 10_000  # peers that are remembered
MAX_REASONS = 8  # of one peer; its further reasons count as one
MAX_REASON = 300  # characters of a reason that are logged, and of a peer that are told apart
MAX_TOPICS = 10  # in one line
LINES_PER_S = 20.0  # of all peers together
MAX_BURST = 200
MAX_LINE = 1_000  # characters; names of clients may have tens of thousands
_FURTHER = ""
_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class _Row:
    until_s: float  # no line before
    pause_s: float
    unsaid: int = 0  # faults since the last line


class Complaints:
    """Decides which faults of peers, or of nodes that somebody writes again and again, are logged."""

    def __init__(self) -> None:
        """Start without faults."""
        self._rows: dict[str, dict[str, _Row]] = {}  # by peer and reason

    def text(self, peer: str, reason: str, now_s: float, lines: LineRate | None = None) -> str | None:
        """Return the text to log now, or None if this fault is only counted for a later line.

        Reasons that differ only in numbers are the same. If `lines` leaves the text out, the peer's next fault is due.
        """
        shown, peer = reason[:MAX_REASON], peer[:MAX_REASON]
        rows = self._rows.pop(peer, {})
        while len(self._rows) >= MAX_KEPT:
            del self._rows[next(iter(self._rows))]
        self._rows[peer] = rows
        key = _DIGITS.sub("#", shown)
        if key not in rows and len(rows) >= MAX_REASONS - 1:
            key = _FURTHER
        row = rows.get(key)
        if row is None or now_s >= row.until_s + LONGEST_PAUSE_S:
            row = rows[key] = _Row(now_s, FIRST_PAUSE_S / 2)
        said = f"{shown} (and {row.unsaid} times since the last such line)" if row.unsaid else shown
        if now_s < row.until_s or (line := said if lines is None else lines.text(said, now_s)) is None:
            row.unsaid += 1
            return None
        row.unsaid, row.pause_s = 0, min(2 * row.pause_s, LONGEST_PAUSE_S)
        row.until_s = now_s + row.pause_s
        return line


class LineRate:
    """Limits the lines that all peers together can cause, however many they are: a burst, then some in each second."""

    def __init__(self) -> None:
        """Start with a whole burst."""
        self._left = float(MAX_BURST)
        self._at_s: float | None = None
        self._unsaid = 0  # lines that were left out since the last one

    def text(self, text: str, now_s: float) -> str | None:
        """Return the line to log now, or None if it is only counted for a later one."""
        if self._at_s is not None:
            self._left = min(float(MAX_BURST), self._left + (now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._left < 1:
            self._unsaid += 1
            return None
        self._left -= 1
        unsaid, self._unsaid = self._unsaid, 0
        shown = text[:MAX_LINE]
        return f"{shown} ({unsaid} lines before it were left out)" if unsaid else shown


def undescribed(refused: Mapping[str, str]) -> list[str]:
    """Return a text for each reason why Kafka does not describe topics; `refused`: topic -> reason."""
    texts = []
    for reason in sorted(set(refused.values())):
        names = sorted(topic for topic, why in refused.items() if why == reason)
        more = f" and {len(names) - MAX_TOPICS} more" if len(names) > MAX_TOPICS else ""
        shown = ", ".join(names[:MAX_TOPICS])
        texts.append(f"Kafka does not describe these topics ({reason}), which stay as they are: {shown}{more}")
    return texts
