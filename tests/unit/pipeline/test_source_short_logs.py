"""Logs that end before the group's offset."""

from __future__ import annotations

from zkrebalancer.pipeline.source.short_logs import PATIENCE_S, ShortLog, ShortLogs

ONE, TWO = ("t", 1), ("t", 2)


def test_a_log_is_reported_once_it_has_been_too_short_for_a_while() -> None:
    logs = ShortLogs()
    for now_s in (0.0, PATIENCE_S - 1):
        assert logs.overdue({ONE: 5, TWO: 5}, {ONE: 3, TWO: 5}, now_s) == []
    assert logs.overdue({ONE: 5, TWO: 5}, {TWO: 5}, PATIENCE_S) == []  # its end is unknown now
    assert logs.overdue({ONE: 5, TWO: 5}, {ONE: 4, TWO: 5}, PATIENCE_S) == [ShortLog(*ONE, 5, 4)]
    assert logs.overdue({ONE: 5, TWO: 5}, {ONE: 4, TWO: 5}, PATIENCE_S + 1) == []


def test_a_log_that_becomes_too_short_again_is_reported_again() -> None:
    """In `ShortLogs._drop`, forget only since when: the loss is not noticed."""
    logs = ShortLogs()
    for positions in ({ONE: 5}, {}, {ONE: 5}):
        assert logs.overdue(positions, {ONE: 3}, 0.0) == []
        assert logs.overdue(positions, {ONE: 3}, PATIENCE_S) == [ShortLog(*one, 5, 3) for one in positions]
        assert logs.overdue({ONE: 5}, {ONE: 5}, PATIENCE_S) == []


def test_a_log_that_has_grown_or_is_read_from_its_new_beginning_was_not_too_short() -> None:
    """As after a change of leaders, and when the coordinator has set the offsets of a recreated topic."""
    logs = ShortLogs()
    for positions, ends in (({ONE: 5}, {ONE: 5}), ({ONE: 0}, {ONE: 3}), ({}, {})):
        assert logs.overdue({ONE: 5}, {ONE: 3}, 0.0) == []
        assert logs.overdue(positions, ends, PATIENCE_S) == []
        assert logs.overdue({ONE: 5}, {ONE: 3}, PATIENCE_S) == []
        assert logs.overdue({}, {}, PATIENCE_S) == []


def test_a_query_that_ends_soon_does_not_wait() -> None:
    assert ShortLogs().overdue({ONE: 5}, {ONE: 3}, 0.0, patience_s=0.0) == [ShortLog(*ONE, 5, 3)]
