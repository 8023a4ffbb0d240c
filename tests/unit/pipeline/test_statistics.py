from __future__ import annotations

import math
import random

import pytest

from zkrebalancer.pipeline.report.statistics import (
    ALPHA,
    MIN_PAIRS,
    Sample,
    difference,
    false_discoveries,
    holm,
    interval_of_median,
    quantiles,
    sample,
)


def test_a_sample_has_median_and_range() -> None:
    assert sample([4.0, 1.0, 9.0]) == Sample(3, 4.0, 1.0, 9.0)


def test_of_quantiles_the_late_ones_are_values_that_occurred() -> None:
    assert quantiles([float(n) for n in range(1, 101)]) == (50.5, 95.0, 100.0)
    assert quantiles([7.0]) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize("pairs", range(2, 9))
def test_pairs_that_all_differ_alike_show_as_much_as_their_number_allows(pairs: int) -> None:
    """The exact p is 2 of 2 ** pairs signs: 3 pairs, which parted completely, find a difference by chance in 25 %."""
    ours = [float(n) for n in range(1, pairs + 1)]
    found = difference(ours, [value + 10 for value in ours])
    assert found is not None
    assert (found.pairs, found.median, found.low, found.high) == (pairs, 10.0, 10.0, 10.0)
    assert found.p == pytest.approx(2 / 2**pairs)
    assert (found.p <= ALPHA) == (pairs >= MIN_PAIRS)


def test_what_both_runs_of_a_pair_share_falls_out() -> None:
    """Take the medians' difference instead of the pairs': the noise of the hours hides it."""
    hours = [100.0, 900.0, 300.0, 700.0, 200.0, 800.0, 400.0, 600.0]
    found = difference(hours, [hour + 5 + n for n, hour in enumerate(hours)])
    assert found is not None
    assert found.p < 0.01
    assert 5 <= found.low <= found.median <= found.high <= 12


def test_an_interval_has_what_the_test_does_not_reject() -> None:
    """Take a bootstrap of the median: of some pairs, its interval leaves out 0 while p is above 5 %, or the reverse."""
    drawn = random.Random(3)
    for pairs in (6, 8, 10, 12):
        for shift in [drawn.uniform(0, 1.5) for _ in range(40)]:
            found = difference([0.0] * pairs, [drawn.gauss(shift, 1) for _ in range(pairs)])
            assert found is not None
            assert (found.p <= ALPHA) == (not found.low <= 0 <= found.high)


def test_an_interval_of_a_median_covers_it_often_enough() -> None:
    """Take the third lowest and highest of ten: they cover it in 89 %; the second ones in 98 %, a bootstrap in 93 %."""
    assert interval_of_median([float(n) for n in (3, 1, 2, 10, 9, 8, 7, 4, 5, 6)]) == (2.0, 9.0)
    assert interval_of_median([4.0, 1.0, 6.0, 2.0, 3.0, 5.0]) == (1.0, 6.0)
    assert interval_of_median([7.0]) == (7.0, 7.0)
    drawn = random.Random(5)
    samples = [[drawn.expovariate(1) for _ in range(10)] for _ in range(1_000)]
    covered = sum(low <= math.log(2) <= high for low, high in map(interval_of_median, samples))
    assert covered >= 950


def test_there_may_be_more_runs_than_a_float_has_powers_of_two() -> None:
    """In `_rejected`, multiply the number of all signs by ALPHA: it overflows."""
    low, high = interval_of_median([float(run) for run in range(1, 1_101)])
    assert low + high == 1_101
    assert high - low == pytest.approx(1.96 * math.sqrt(1_100), abs=2)


def test_equal_runs_show_nothing() -> None:
    found = difference([3.0] * 10, [3.0] * 10)
    assert found is not None
    assert found.p == 1.0
    assert difference([], []) is None


def test_equal_protocols_seldom_differ() -> None:
    """The share of wrong findings is at most ALPHA: with separated ranges of three runs each it was a tenth."""
    drawn = random.Random(7)
    sides = [[[drawn.lognormvariate(0, 1) for _ in range(10)] for _ in range(2)] for _ in range(200)]
    found = [difference(*pair) for pair in sides]
    wrong = sum(one is not None and one.p <= ALPHA for one in found)
    assert wrong <= 17  # of 200; 1 in 50 such tests would see more


def test_the_same_runs_give_the_same_interval() -> None:
    values = ([1.0, 5.0, 3.0, 4.0], [4.0, 2.0, 7.0, 3.0])
    assert difference(*values) == difference(*values)


def test_many_comparisons_are_corrected() -> None:
    """The textbook's example of Holm: 0.01, 0.02, 0.03 and 0.005; none may become smaller than a smaller one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert false_discoveries([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert false_discoveries([]) == []
