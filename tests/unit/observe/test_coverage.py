"""Runs of offsets behave as sets of single offsets would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.observe.coverage import Coverage

DELIVERIES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from("xyz")), max_size=12)


@given(DELIVERIES)
def test_runs_are_equal_to_single_offsets(deliveries: list[tuple[int, int, str]]) -> None:
    coverage, first_by = Coverage(), dict[int, str]()
    for first, length, by in deliveries:
        offsets = range(first, first + length + 1)
        again = {offset: run.by for run in coverage.add(first, offsets[-1], by) for offset in range(run.first, run.last + 1)}
        assert again == {offset: first_by[offset] for offset in offsets if offset in first_by}
        for offset in offsets:
            first_by.setdefault(offset, by)
    missing = {offset for first, last in coverage.missing(0, 40) for offset in range(first, last + 1)}
    assert missing == set(range(41)) - first_by.keys()
    assert coverage.count() == len(first_by)
    assert coverage.last() == max(first_by, default=-1)
    assert coverage.common(5, 20) == len(first_by.keys() & set(range(5, 21)))
