"""How many offsets a batch may have, from how long the last ones took. Pure.

A partition that has to move waits for the batch in flight, and a member that keeps it waiting for longer than its
`stopTimeoutMs` is evicted: its batch was in vain, and the next one would be as long. So a batch should take half of
that time at most. The time of a batch is taken as a constant and a part that grows with its offsets; with a trigger
interval, for example, it is constant, and smaller batches would not be finished sooner.
"""

from __future__ import annotations

from collections import deque
from statistics import linear_regression

FIRST_OFFSETS = 100_000  # in the first batch, if the query sets no limit
FEWEST_OFFSETS = 1_000
MAX_GROWTH = 2  # beyond the largest of the last batches: were the estimate wrong, it would still end in time
REMEMBERED_BATCHES = 8
SPREAD = 2  # between the smallest and the largest of the batches from which a constant part can be told
SHARE_OF_LIMIT = 0.5


class Pace:
    """Learns from the batches of one query."""

    def __init__(self, stop_timeout_s: float, first: int = FIRST_OFFSETS) -> None:
        """Begin without a batch. `stop_timeout_s`: how long the group waits for one; `first`: offsets in the first."""
        self._first = first
        self._allowed_s = stop_timeout_s * SHARE_OF_LIMIT
        self._taken: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_BATCHES)  # offsets, seconds
        self._begun: tuple[int, float] | None = None

    def begin(self, offsets: int, now_s: float) -> None:
        """Note that a batch has been planned."""
        self._begun = offsets, now_s

    def end(self, now_s: float) -> None:
        """Note that the batch is finished."""
        if self._begun is not None:
            offsets, begun_s = self._begun
            self._taken.append((offsets, now_s - begun_s))
        self._begun = None

    def limit(self) -> int:
        """Return how many offsets the next batch may have."""
        if not self._taken:
            return self._first
        sizes, times_s = zip(*self._taken, strict=True)
        largest: int = max(sizes)
        constant_s, each_s = 0.0, max(seconds / offsets for offsets, seconds in self._taken)
        if largest >= SPREAD * min(sizes):
            fit = linear_regression(sizes, times_s)
            if fit.intercept > 0:
                constant_s, each_s = fit.intercept, max(0.0, fit.slope)
        most = max(MAX_GROWTH * largest, self._first)
        left_s = self._allowed_s - constant_s
        if left_s <= 0 or each_s <= 0:
            return most  # smaller ones would not be finished sooner
        return min(most, max(FEWEST_OFFSETS, int(left_s / each_s)))
