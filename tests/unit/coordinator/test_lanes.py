"""Lanes: who owned a partition when, from changes and the present owners."""

from __future__ import annotations

import pytest

from zkrebalancer.coordinator.pages.lanes import Span, newest, spans
from zkrebalancer.rebalance.turnover import OwnerChange

P = ("t", 0)


def gained(at_ms: int, member: str) -> OwnerChange:
    return OwnerChange(at_ms, member, frozenset({P}), frozenset())


def lost(at_ms: int, member: str) -> OwnerChange:
    return OwnerChange(at_ms, member, frozenset(), frozenset({P}))


@pytest.mark.parametrize(
    ("changes", "owner", "expected"),
    [
        ([], None, []),
        ([], "a", [Span(10, None, "a")]),
        ([gained(20, "a")], "a", [Span(20, None, "a")]),
        ([lost(20, "a")], None, [Span(10, 20, "a")]),
        ([lost(20, "a"), gained(30, "b")], "b", [Span(10, 20, "a"), Span(30, None, "b")]),
        ([gained(20, "a"), lost(30, "a"), gained(35, "a")], "a", [Span(20, 30, "a"), Span(35, None, "a")]),
        ([gained(20, "a"), gained(30, "a")], "a", [Span(20, None, "a")]),
        # A change was seen late, or not at all.
        ([gained(20, "a"), gained(30, "b"), lost(31, "a")], "b", [Span(20, 30, "a"), Span(30, None, "b")]),
        ([gained(20, "a"), lost(30, "a")], "b", [Span(20, 30, "a"), Span(30, None, "b")]),
        ([gained(20, "a"), lost(30, "a"), lost(40, "c")], None, [Span(20, 30, "a")]),
    ],
)
def test_a_lane_has_a_span_for_each_time_with_an_owner(
    changes: list[OwnerChange], owner: str | None, expected: list[Span]
) -> None:
    assert spans(10, changes, {P: owner})[P] == expected


def test_other_partitions_of_a_change_do_not_matter() -> None:
    change = OwnerChange(20, "a", frozenset({P, ("t", 1), ("u", 0)}), frozenset())
    assert spans(10, [change], {P: "a"}) == {P: [Span(20, None, "a")]}


def test_of_too_many_spans_the_newest_stay() -> None:
    found = {P: [Span(1, 2, "a"), Span(3, None, "b")], ("t", 1): [Span(2, None, "a")]}
    assert newest(found, 3) == found
    assert newest(found, 2) == {P: [Span(3, None, "b")], ("t", 1): [Span(2, None, "a")]}
