"""Are two protocols apart? Medians, what the runs spread over, and a seeded bootstrap of the difference.

Runs are resampled, never the records or steps within one: these depend on each other. With few runs a bootstrap tells
little, and the verdict says how often chance alone would part as many runs completely.
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
MIN_RUNS = 3  # of each; chance parts two and two in every third comparison


@dataclass(frozen=True, slots=True)
class Sample:
    """One measure of one protocol over its runs."""

    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much the second of two protocols is above the first: medians, and the interval that holds 95 of 100.

    `by_chance`: how often runs that do not differ would be parted completely; None if these runs are not.
    """

    median: float
    low: float
    high: float
    by_chance: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def sample(values: Sequence[float]) -> Sample:
    """Return what is told of the values of some runs, at least one."""
    return Sample(len(values), statistics.median(values), min(values), max(values))


def difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare two protocols; None if either has fewer than MIN_RUNS."""
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
