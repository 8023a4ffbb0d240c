"""Partitions whose beginnings were not known when they were started."""

from __future__ import annotations

import pytest

from tests.unit.observe.history import History


def handed_over() -> History:
    """Return five records that one consumer has read, and a second one that starts without a position."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5)
    return history.started("b", -1, generation=2)


@pytest.mark.parametrize(("position", "counts"), [(5, (10, 0, 0)), (7, (10, 2, 0)), (2, (10, 0, 3))])
def test_where_a_partition_begins_that_was_not_known_at_its_start_excuses_nothing(
    position: int, counts: tuple[int, int, int]
) -> None:
    """In `Run._repositioned`, take it for a seek: a stored offset that is read too late may be a false one."""
    history = handed_over().repositioned("b", position, reason="begin").delivered("b", position, 9, generation=2)
    verdict = history.verdict()
    assert (verdict.produced, verdict.lost, verdict.duplicated_outside_crash) == counts


def test_a_group_begins_where_a_position_is_known_first() -> None:
    """In `PartitionHistory._note_first`, look at the first start only."""
    history = History().produced(0, 9).started("a", -1).stopped("a", -1).started("b", -1, generation=2)
    verdict = history.repositioned("b", 4, reason="begin").delivered("b", 4, 9, generation=2).verdict()
    assert (verdict.ok, verdict.produced, verdict.delivered) == (True, 6, 6)


def test_after_a_seek_no_position_is_unknown() -> None:
    history = handed_over().repositioned("b", 6).repositioned("b", 5, reason="begin")
    assert history.delivered("b", 5, 9, generation=2).verdict().ok
