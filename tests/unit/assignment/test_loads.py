"""Offsets of many partitions as columns, and the lag and the rates computed from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.assignment.loads import UNKNOWN, Deferred, expected_or, lag_of, pack, rate_of, to_offsets, unpack
from zkrebalancer.protocol.fields import TopicPartition

OFFSETS = st.integers(0, 2**62) | st.just(UNKNOWN)


def test_each_partition_has_its_offset_and_what_is_not_known_or_does_not_exist_has_none() -> None:
    found: dict[TopicPartition, int] = {("t", 0): 0, ("t", 2): 2**62, ("t", 3): 7, ("gone", 0): 5}
    columns = to_offsets({"t": 3, "u": 1, "empty": 0}, found)
    assert {topic: column.tolist() for topic, column in columns.items()} == {
        "t": [0, UNKNOWN, 2**62],
        "u": [UNKNOWN],
        "empty": [],
    }


@given(st.dictionaries(st.text(), st.lists(OFFSETS)))
def test_what_is_packed_comes_out_as_it_was(offsets: dict[str, list[int]]) -> None:
    columns = {topic: np.array(values, np.int64) for topic, values in offsets.items()}
    assert {topic: column.tolist() for topic, column in unpack(pack(columns)).items()} == offsets


@given(st.lists(st.tuples(OFFSETS, OFFSETS)))
def test_lag_is_what_is_unread_and_nothing_where_that_is_unknown(pairs: list[tuple[int, int]]) -> None:
    ends, committed = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    assert lag_of(ends, committed).tolist() == [
        0 if UNKNOWN in (end, stored) else max(0, end - stored) for end, stored in pairs
    ]


@pytest.mark.parametrize(
    ("before", "ends", "rates"),
    [
        ([100, 200], [150, 200], [25.0, 0.0]),
        ([100, UNKNOWN, 5], [UNKNOWN, 100, 6], [0.0, 0.0, 0.5]),
        ([100, 200], [90, 300], [0.0, 50.0]),  # a topic that was made anew has a lower end
        ([100, 200, 300], [150], [25.0]),
        ([100], [150, 400], [25.0]),
        ([], [], []),
        ([0, UNKNOWN], [1, UNKNOWN], [0.5, 0.0]),
    ],
)
def test_the_rate_is_what_was_written_in_a_second(before: list[int], ends: list[int], rates: list[float]) -> None:
    found = rate_of(np.array(before, np.int64), np.array(ends, np.int64), 2.0)
    assert found.tolist() == rates


def test_expected_rates_come_first_and_measured_ones_only_where_none_is_expected() -> None:
    measured = np.array([9.0, 8.0, 7.0])
    assert expected_or(measured, [1, 2]).tolist() == [1.0, 2.0, 7.0]
    assert expected_or(measured, []).tolist() == [9.0, 8.0, 7.0]
    assert expected_or(measured, [1, 2, 3, 4]).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_column_is_computed_when_it_is_read_first_and_not_again() -> None:
    """The loop makes the mapping, the strategy's thread computes it."""
    computed: list[str] = []

    def compute(topic: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        computed.append(topic)
        return np.array([len(computed)])

    columns = Deferred(["t", "u"], compute)
    assert (list(columns), len(columns), "u" in columns, computed) == (["t", "u"], 2, True, ["u"])
    assert [int(columns[topic][0]) for topic in ("t", "u", "t", "u")] == [2, 1, 2, 1]
    assert computed == ["u", "t"]
    with pytest.raises(KeyError):
        columns["v"]
