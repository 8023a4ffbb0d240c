"""Do two protocols differ? Runs with the same seed form pairs, which are tested, and corrected for how many are tested.

Whole runs are compared, never records or steps within a run, which depend on each other. The two runs of a pair have
the same targets and were made one soon after the other, so what a busy hour does to both falls out of their difference.

- The test is Wilcoxon's signed-rank test with its exact distribution (every sign of every difference), so it needs no
  assumption about how the times are distributed. With fewer than 6 pairs it cannot show anything at 5 %.
- The interval has the differences that this test would not reject (Hodges and Lehmann, 1963), so a test without any
  correction and the interval never contradict each other, if none of the differences are alike or 0 (counts often are)
  and there are at most 14, of which p is exact. That of a median has the medians that the sign test would not reject.
  A bootstrap of ten pairs covered 93 % instead of 95 %.
- Of the primary measure, named in advance, every comparison of a report counts (Holm, 1979: at most 5 % of reports
  have one that is wrong). Of the other measures, at most 5 % of the shown differences are expected to be wrong
  (Benjamini and Hochberg, 1995). Comparisons of too few pairs do not count: whatever they are, they cannot be shown, so
  none of them can be a mistake (Tarone, 1990).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb

import numpy as np
import scipy  # its `stats`, which take a second to import, are loaded when they are used

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
    """Return the confidence interval of the median of at least one run: exact, so it covers CONFIDENCE or more.

    Of fewer than MIN_PAIRS runs, it is their range, which covers less.
    """
    ordered = sorted(values)
    rank = _rejected([comb(len(ordered), below) for below in range(len(ordered) + 1)])
    return ordered[rank], ordered[-1 - rank]


def _interval(apart: np.ndarray) -> tuple[float, float]:
    """Return the same of a difference, by the means of each two of `apart`, and of each with itself."""
    means = np.sort(np.add.outer(apart, apart)[np.triu_indices(len(apart))] / 2)
    rank = _rejected(_rank_sums(len(apart)))
    return float(means[rank]), float(means[-1 - rank])


def _rank_sums(pairs: int) -> list[int]:
    """Return of how many signs of so many differences the ranks above 0 have the sum 0, 1, 2 and so on."""
    signs = [1]
    for rank in range(1, pairs + 1):
        signs = [a + b for a, b in zip([*signs, *[0] * rank], [*[0] * rank, *signs], strict=True)]
    return signs


def _rejected(signs: Sequence[int]) -> int:
    """Return the highest statistic that a test rejects at one of its ends, 0 if there is none."""
    total = sum(signs)
    return max(sum(2 * below / total <= ALPHA for below in accumulate(signs)) - 1, 0)


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
