"""Pauses before a consumer joins its group again. Pure.

Whatever ends a membership soon after it began, such as a command that this version cannot read, or a quota that refuses
its acknowledgements, ends the next one as well. Each of them also moves partitions of the other members.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_PAUSE_MS, MAX_PAUSE_MS = 100, 30_000  # doubled each time
STEADY_MS = 60_000  # a membership of this length was no failure, whatever ended it


@dataclass(slots=True)
class RejoinPause:
    """When the next try to join may begin; an application may poll again at once."""

    not_before_ms: int = 0
    refused_count: int = 0  # registrations, in a row
    short_count: int = 0  # memberships, in a row
    _joined_ms: int = 0

    def note_refused(self, now_ms: int) -> None:
        """Note that a registration was refused."""
        self.not_before_ms = now_ms + _pause_ms(self.refused_count)
        self.refused_count += 1

    def note_joined(self, now_ms: int) -> None:
        """Note that a membership begins."""
        self.refused_count, self._joined_ms = 0, now_ms

    def note_ended(self, now_ms: int) -> None:
        """Note that a membership ended though its session lives; the first short one is followed by no pause."""
        if now_ms - self._joined_ms >= STEADY_MS:
            self.short_count = 0
        if self.short_count:
            self.not_before_ms = now_ms + _pause_ms(self.short_count - 1)
        self.short_count += 1


def _pause_ms(count: int) -> int:
    return min(MAX_PAUSE_MS, MIN_PAUSE_MS << min(count, 10))
