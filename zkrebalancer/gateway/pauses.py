"""Growing intervals between retries, separately for each group."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 30.0
REST_S = 120.0  # after this time without a failure, the intervals start anew
MAX_GROUPS = 10_000  # groups to remember


class Pauses:
    """How long to wait after a group's failure."""

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: dict[str, tuple[int, float]] = {}  # group -> number in a row, time of the last one

    def after_failure(self, group: str, now_s: float) -> float:
        """Return how many seconds to wait."""
        count, last_s = self._failures.pop(group, (0, now_s))
        if now_s - last_s > REST_S:
            count = 0
        while len(self._failures) >= MAX_GROUPS:
            del self._failures[next(iter(self._failures))]
        self._failures[group] = count + 1, now_s
        return float(min(FIRST_S * 2 ** min(count, 30), LONGEST_S))
