"""How many offsets a batch may have, from how long the last ones took. Pure.

A partition that has to move waits for the batch in flight, and a member that keeps it waiting for longer than its
`stopTimeoutMs` is evicted: its batch was in vain, and the next one would be as long. A batch takes a constant time,
such as the rest of a trigger's interval, which is no work, and a time that grows with its offsets. The second one may
be half of what the first one leaves of the limit, or an eighth of the first one, which makes little difference.

While all batches have about the same size, the two cannot be told: one of half the size shows them. What they showed is
kept until other sizes show something else. If the constant time is the limit or more, smaller batches are no way out:
they would end as late, and read less.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, linear_regression

FIRST_OFFSETS = 100_000  # in the first batch, if the query sets no limit
FEWEST_OFFSETS = 1_000
MAX_GROWTH = 2  # beyond the largest of the last batches
REMEMBERED_BATCHES = 8
SPREAD = 2  # between the smallest and the largest of the batches that show the constant time
SHARE_OF_REST = 0.5  # of what the constant time leaves of the limit: what offsets may take
SHARE_OF_CONSTANT = 0.125  # which offsets may take in any case: it makes little difference
SAFE_SHARE = 0.75  # of the limit: a batch that takes longer in proportion still ends in time
LONG_SHARE = 0.8  # of the limit: if the constant time takes more, batches may end late whatever their size


class Pace:
    """Learns from the batches of one query."""

    def __init__(self, stop_timeout_s: float, first: int = FIRST_OFFSETS) -> None:
        """Begin without a batch. `stop_timeout_s`: how long the group waits for one; `first`: offsets in the first."""
        self._limit_s = stop_timeout_s
        self._taken: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_BATCHES)  # offsets, seconds
        self._begun: tuple[int, float] | None = None
        self._shown_s: float | None = None  # the constant time, as different sizes last showed it; None: none did yet
        self._slope: float | None = None  # seconds of an offset, if the last sizes differ enough to show them
        self._good = first  # offsets of the largest batch that its size has not made too long; at first a guess

    def begin(self, offsets: int, now_s: float) -> None:
        """Note that a batch has been planned."""
        self._begun = offsets, now_s

    def end(self, now_s: float) -> None:
        """Note that the batch is finished."""
        if self._begun is None:
            return
        (offsets, begun_s), self._begun = self._begun, None
        took_s = now_s - begun_s
        self._taken.append((offsets, took_s))
        self._learn()
        if took_s < max(self._limit_s, self.constant_s + self._room_s()):
            self._good = max(self._good, offsets)
        elif offsets >= FEWEST_OFFSETS:  # few say nothing about many
            self._good = min(self._good, offsets // MAX_GROWTH)

    def _learn(self) -> None:
        sizes, times_s = zip(*self._taken, strict=True)
        self._slope = None
        if max(sizes) >= SPREAD * min(sizes):
            fit = linear_regression(sizes, times_s)
            self._shown_s = max(0.0, fit.intercept)
            self._slope = max(0.0, fit.slope) if fit.intercept > 0 else self._each_s()

    @property
    def constant_s(self) -> float:
        """The time that a batch takes whatever its size, as far as it is known."""
        return min([self._shown_s or 0.0, *(took_s for _offsets, took_s in self._taken)])

    @property
    def is_too_long(self) -> bool:
        """Whether batches of any size take about as long as the group waits, or longer."""
        return self.constant_s >= LONG_SHARE * self._limit_s

    def limit(self) -> int:
        """Return how many offsets the next batch may have."""
        if not self._taken:
            return self._good
        largest, took_s = max(self._taken)
        most = max(self._good, int(largest * self._growth(took_s)))
        each_s = self._each_s() if self._slope is None else self._slope
        if each_s > 0:
            wanted = int(self._room_s() / each_s)
            if self._slope is None and wanted < SPREAD * largest and (self._shown_s is None or wanted < FEWEST_OFFSETS):
                return _telling(largest, wanted)
            most = min(most, wanted)
        return max(FEWEST_OFFSETS, most)

    def _each_s(self) -> float:
        """Return the seconds of an offset, as far as similar sizes tell; those of the slowest if a batch was late."""
        sizes, times_s = zip(*self._taken, strict=True)
        if self._shown_s is None or max(times_s) >= self._limit_s:
            return max((took_s - self.constant_s) / offsets for offsets, took_s in self._taken)
        each_s = max(0.0, fmean(times_s) - self._shown_s) / fmean(sizes)
        if max(times_s) < SAFE_SHARE * self._limit_s:  # no reason for smaller ones: perhaps only the constant time grew
            each_s = min(each_s, self._room_s() / max(sizes))
        return each_s

    def _room_s(self) -> float:
        """Return how long the offsets of a batch may take together."""
        constant_s = self.constant_s
        if constant_s >= self._limit_s:  # none would end in time
            return SHARE_OF_REST * constant_s
        return max(SHARE_OF_REST * (self._limit_s - constant_s), SHARE_OF_CONSTANT * constant_s)

    def _growth(self, took_s: float) -> float:
        """Return how much larger a batch may be than one that took so long, whatever its time consists of."""
        if took_s <= 0 or self.constant_s >= self._limit_s:
            return MAX_GROWTH
        half_way_s = (took_s + self._limit_s) / 2
        return min(MAX_GROWTH, max(1 + SHARE_OF_CONSTANT, half_way_s / took_s))


def _telling(largest: int, wanted: int) -> int:
    """Return the size of a batch that shows which part of the time is constant; few offsets say nothing about many."""
    return max(1, min(wanted, largest // SPREAD)) if largest >= FEWEST_OFFSETS else FEWEST_OFFSETS
