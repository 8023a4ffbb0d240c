"""Do two protocols differ? Medians, ranges, and a seeded bootstrap of the difference of medians.

Whole runs are resampled, never records or steps within a run, which depend on each other. A bootstrap of few runs is
weak, so a verdict also says how often chance alone would separate so few runs completely.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 1
MIN_RUNS = 3  # of each protocol; two and two are separated by chance in every third comparison


@dataclass(frozen=True, slots=True)
class Sample:
    """One measure of one protocol over its runs."""

    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much the second protocol's median exceeds the first's, with its confidence interval.

    `by_chance`: how often chance separates equally many runs of equal protocols completely; None if these runs overlap.
    """

    median: float
    low: float
    high: float
    by_chance: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def sample(values: Sequence[float]) -> Sample:
    """Summarise the values of at least one run."""
    return Sample(len(values), statistics.median(values), min(values), max(values))


def difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare two protocols; None if either has fewer than MIN_RUNS runs."""
    if min(len(first), len(second)) < MIN_RUNS:
        return None
    chance = random.Random(SEED)  # noqa: S311  # the same runs give the same interval
    drawn = sorted(
        statistics.median(chance.choices(second, k=len(second)))
        - statistics.median(chance.choices(first, k=len(first)))
        for _ in range(RESAMPLES)
    )
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    is_parted = max(first) < min(second) or max(second) < min(first)
    return Difference(
        median=statistics.median(second) - statistics.median(first),
        low=drawn[tail],
        high=drawn[-1 - tail],
        by_chance=2 / comb(len(first) + len(second), len(first)) if is_parted else None,
    )
