from __future__ import annotations

import pytest

from zkrebalancer.pipeline.report.statistics import Difference, Sample, difference, sample


def test_a_sample_has_median_and_range() -> None:
    assert sample([4.0, 1.0, 9.0]) == Sample(3, 4.0, 1.0, 9.0)


def test_separated_runs_show_a_difference_and_its_chance() -> None:
    found = difference([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    assert found is not None
    assert found.is_shown
    assert found.by_chance == pytest.approx(0.1)  # 2 of the 20 ways to divide 6 runs separate them
    assert (found.median, found.low, found.high) == (10.0, 8.0, 12.0)


def test_overlapping_runs_show_no_difference() -> None:
    found = difference([1.0, 2.0, 13.0], [1.5, 2.5, 12.0])
    assert found is not None
    assert not found.is_shown
    assert found.by_chance is None


def test_two_runs_are_too_few() -> None:
    assert difference([1.0, 2.0], [9.0, 9.0, 9.0]) is None


def test_the_same_runs_give_the_same_interval() -> None:
    values = ([1.0, 5.0, 3.0, 4.0], [4.0, 2.0, 7.0, 3.0])
    assert difference(*values) == difference(*values)
    assert isinstance(difference(*values), Difference)
