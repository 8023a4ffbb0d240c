"""Do two protocols differ? Runs with the same seed form pairs, which are tested, and corrected for how many are tested.

Whole runs are compared, never records or steps within a run, which depend on each other. The two runs of a pair have
the same targets and were made one soon after the other, so what a busy hour does to both falls out of their difference.

- The test is Wilcoxon's signed-rank test with its exact distribution (every sign of every difference), so it needs no
  assumption about how the times are distributed. With fewer than 6 pairs it cannot show anything at 5 %.
- The interval is a seeded bootstrap of the median difference.
- Of the primary measure, named in advance, every comparison of a report counts (Holm, 1979: at most 5 % of reports
  have one that is wrong). Of the other measures, at most 5 % of the shown differences are expected to be wrong
  (Benjamini and Hochberg, 1995). Comparisons of too few pairs do not count: whatever they are, they cannot be shown, so
  none of them can be a mistake (Tarone, 1990).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its `stats`, which take a second to import, are loaded when they are used

RESAMPLES = 2_000
MAX_SIGNS = 1 << 14  # of up to 14 pairs every sign is tried; of more, so many drawn by a seed
CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
SEED = 1
MIN_PAIRS = 6  # 2 of 2 ** 6 signs are as extreme as six differences of one sign: 3 %


@dataclass(frozen=True, slots=True)
class Sample:
    """One measure of one protocol over its runs."""

    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much the second protocol exceeds the first in the median pair, with its confidence interval.

    `pairs`: how many there are. `p`: how often equal protocols would differ as much, before any correction.
    """

    pairs: int
    median: float
    low: float
    high: float
    p: float


def sample(values: Sequence[float]) -> Sample:
    """Summarise the values of at least one run."""
    return Sample(len(values), statistics.median(values), min(values), max(values))


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 95th percentile (nearest rank) and the highest of at least one value."""
    late = np.quantile(values, 0.95, method="inverted_cdf")
    return statistics.median(values), float(late), max(values)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare pairs of runs, the n-th of `first` with the n-th of `second`; None if there is no pair."""
    apart = np.subtract(second, first)
    if not len(apart):
        return None
    low, high = _interval(apart)
    return Difference(len(apart), float(np.median(apart)), low, high, _chance(apart))


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the confidence interval of the median of at least one run, by a seeded bootstrap."""
    return _interval(np.asarray(values, dtype=float))


def _interval(apart: np.ndarray) -> tuple[float, float]:
    drawn = np.random.default_rng(SEED).choice(apart, (RESAMPLES, len(apart)))
    low, high = np.quantile(np.median(drawn, axis=1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def _chance(apart: np.ndarray) -> float:
    if len(apart) == 1:
        return 1.0
    rng = np.random.default_rng(SEED)
    found = scipy.stats.permutation_test(
        (apart,), _signed_ranks, permutation_type="samples", n_resamples=MAX_SIGNS, rng=rng
    )
    return float(found.pvalue)


def _signed_ranks(apart: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return Wilcoxon's statistic; differences of 0 take part in the ranks and count for neither side (Pratt, 1959)."""
    ranked: np.ndarray = np.sum(np.sign(apart) * scipy.stats.rankdata(np.abs(apart), axis=axis), axis=axis)
    return ranked


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p of each of several tests, so that comparing all with ALPHA makes one mistake in ALPHA of cases."""
    corrected = [0.0] * len(ps)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        corrected[place] = highest
    return corrected


def false_discoveries(ps: Sequence[float]) -> list[float]:
    """Return the p of each of several tests, so that of those below ALPHA, a share of ALPHA is expected to be wrong."""
    return [float(p) for p in scipy.stats.false_discovery_control(ps)] if ps else []
