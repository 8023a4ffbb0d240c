"""Growing pauses, one row for each group: what fails again and again is tried less and less often."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 30.0
REST_S = 120.0  # after so long without a failure the pauses begin anew
MAX_GROUPS = 10_000  # that are remembered


class Pauses:
    """How long to wait after a group's failure."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._failures: dict[str, tuple[int, float]] = {}  # group -> how many in a row, when the last one was

    def after_failure(self, group: str, now_s: float) -> float:
        """Return for how many seconds to wait."""
        count, last_s = self._failures.pop(group, (0, now_s))
        if now_s - last_s > REST_S:
            count = 0
        while len(self._failures) >= MAX_GROUPS:
            del self._failures[next(iter(self._failures))]
        self._failures[group] = count + 1, now_s
        return float(min(FIRST_S * 2 ** min(count, 30), LONGEST_S))
