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
MAX_GROWTH = 2  # beyond the largest of the last batches
SAFE_SHARE = 0.75  # of the limit: a batch that takes longer in proportion still ends in time
REMEMBERED_BATCHES = 8
SPREAD = 2  # between the smallest and the largest of the batches from which a constant part can be told
SHARE_OF_LIMIT = 0.5


class Pace:
    """Learns from the batches of one query."""

    def __init__(self, stop_timeout_s: float, first: int = FIRST_OFFSETS) -> None:
        """Begin without a batch. `stop_timeout_s`: how long the group waits for one; `first`: offsets in the first."""
        self._first = first
        self._limit_s = stop_timeout_s
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
        constant_s, each_s = 0.0, max(seconds / offsets for offsets, seconds in self._taken)
        if max(sizes) >= SPREAD * min(sizes):
            fit = linear_regression(sizes, times_s)
            if fit.intercept > 0:
                constant_s, each_s = fit.intercept, max(0.0, fit.slope)
        left_s = self._limit_s * SHARE_OF_LIMIT - constant_s
        if left_s <= 0 or each_s <= 0:
            return self._most()  # smaller ones would not be finished much sooner
        return min(self._most(), max(FEWEST_OFFSETS, int(left_s / each_s)))

    def _most(self) -> int:
        """Return how many offsets a batch may have, whatever the times seem to consist of."""
        largest, took_s = max(self._taken)
        growth = min(MAX_GROWTH, SAFE_SHARE * self._limit_s / took_s) if took_s > 0 else MAX_GROWTH
        if growth < MAX_GROWTH:
            return max(FEWEST_OFFSETS, int(growth * largest))
        return max(MAX_GROWTH * largest, self._first)
