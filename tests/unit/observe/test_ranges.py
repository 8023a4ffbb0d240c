"""A `RangeSet` behaves like a set of integers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.observe.ranges import RangeSet

LIMIT = 12
RANGES = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT))


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for begin, end in ranges for number in range(begin, end)}


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=15), RANGES)
def test_a_range_set_equals_a_set_of_integers(
    changes: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, expected = RangeSet(), set[int]()
    for is_added, (begin, end) in changes:
        if is_added:
            ranges.add(begin, end)
            expected |= set(range(begin, end))
        else:
            ranges.discard(begin, end)
            expected -= set(range(begin, end))
    pairs = list(ranges)
    assert members(pairs) == expected
    assert all(before[1] < after[0] for before, after in itertools.pairwise(pairs))
    assert ranges.count == len(expected)
    begin, end = min(asked), max(asked)
    assert members(ranges.common(begin, end)) == expected & set(range(begin, end))
    assert members(ranges.missing(begin, end)) == set(range(begin, end)) - expected
    assert members(ranges.at_or_above(begin)) == {number for number in expected if number >= begin}


def test_an_empty_range_adds_nothing() -> None:
    ranges = RangeSet()
    ranges.add(3, 3)
    assert (list(ranges), ranges.count) == ([], 0)
