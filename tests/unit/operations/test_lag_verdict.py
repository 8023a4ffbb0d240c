"""Verdicts about lag: vectors of readings, and what is expected of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.operations.lag_verdict import MIN_WINDOW_MS, Reading, Verdict, judge, worst

OK, WARN, STALL, STOP, REWIND = Verdict
STEP_MS = MIN_WINDOW_MS


def owned(*pairs: tuple[int | None, int | None], is_owned: bool = True, step_ms: int = STEP_MS) -> list[Reading]:
    """Return readings at equal intervals, from (offset, end)."""
    return [Reading(position * step_ms, offset, end, is_owned) for position, (offset, end) in enumerate(pairs)]


def with_markers(*pairs: tuple[int, int]) -> list[Reading]:
    return [Reading(position * STEP_MS, *pair, is_owned=True, has_unread=False) for position, pair in enumerate(pairs)]


def moving(*states: str) -> list[Reading]:
    """Return readings of a partition of which nothing is read; one of them came between two owners."""
    return [Reading(position * STEP_MS, 5, 15, state == "owned") for position, state in enumerate(states)]


VECTORS: list[tuple[str, list[Reading], Verdict | None]] = [
    ("all read", owned((5, 5), (9, 9)), OK),
    ("a quiet topic", owned((5, 5), (5, 5), (5, 5)), OK),
    ("a burst on a quiet topic just now", owned((5, 5), (5, 5), (5, 900)), OK),
    ("caught up once", owned((5, 90), (90, 90), (90, 100)), OK),
    ("catches up", owned((5, 900), (300, 900), (600, 900)), OK),
    ("a steady lag, as of batches in hand", owned((5, 15), (15, 25), (25, 35)), OK),
    ("a lag that rises and falls", owned((5, 15), (15, 40), (30, 45)), OK),
    ("grows", owned((5, 15), (15, 35), (25, 65)), WARN),
    ("grows after a steady time", owned((5, 15), (15, 25), (20, 65)), WARN),
    ("stands still, and records come", owned((5, 15), (5, 25), (5, 35)), STALL),
    ("stands still on a quiet topic with records to read", owned((5, 15), (5, 15)), STALL),
    ("only markers of transactions are left", with_markers((5, 6), (5, 6)), OK),
    ("nobody reads", owned((5, 15), (5, 25), is_owned=False), STOP),
    ("nobody reads, by one reading", owned((5, 15), is_owned=False), STOP),
    ("nobody owns what is all read", owned((5, 5), (5, 5), is_owned=False), OK),
    ("moves just now from one owner to another", moving("owned", "free"), STALL),
    ("moved a moment ago", moving("free", "owned"), STALL),
    ("its last owner has just left", owned((5, 15), (9, 15), is_owned=False), OK),
    ("somebody else commits without owning", owned((5, 15), (9, 40), is_owned=False), WARN),
    ("went back", owned((50, 60), (10, 60)), REWIND),
    ("went back, and caught up", owned((50, 60), (10, 60), (60, 60)), REWIND),
    ("compacted: the end is before the offset", owned((50, 40), (50, 40)), OK),
    ("one reading says little", owned((5, 15)), None),
    ("two readings in a moment", owned((5, 15), (5, 25), step_ms=MIN_WINDOW_MS - 1), None),
    ("no offset is stored", owned((None, 15), (None, 15)), None),
    ("the end is unknown once", owned((5, 15), (5, None)), None),
    ("nothing was read", [], None),
]


@pytest.mark.parametrize(
    ("what", "readings", "expected"), VECTORS, ids=[what for what, _readings, _expected in VECTORS]
)
def test_each_vector_has_its_verdict(what: str, readings: list[Reading], expected: Verdict | None) -> None:
    assert judge(readings) is expected, what


any_reading = st.builds(  # of values that often give an alarm
    Reading,
    st.integers(min_value=0, max_value=3).map(lambda at: at * STEP_MS),
    st.sampled_from((5, 5, 5, 6, None)),
    st.sampled_from((7, 8, 9, 9, 5, None)),
    st.booleans(),
    st.sampled_from((None, None, False)),
)


@given(st.lists(any_reading, max_size=5).map(lambda found: sorted(found, key=lambda reading: reading.at_ms)))
def test_there_is_never_an_alarm_without_a_lag_in_the_last_reading_but_for_a_rewind(readings: list[Reading]) -> None:
    if judge(readings) in {WARN, STALL, STOP}:
        assert readings[-1].lag
        assert all(reading.lag for reading in readings)


def test_the_worst_verdict_counts_and_unknown_ones_do_not() -> None:
    assert worst([OK, None, STALL, WARN]) is STALL
    assert worst([None]) is None
    assert worst([]) is None
