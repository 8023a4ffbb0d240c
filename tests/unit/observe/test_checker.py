"""The checker finds each broken promise, and nothing where none was broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zkrebalancer.observe.checker import Verdict, check, judge

Event = dict[str, Any]


class History:
    """Events of one group and one partition, a millisecond apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: str, **fields: object) -> History:
        at_us = 1_000 * (len(self.events) + 1)
        common: Event = {"mono_us": at_us, "process": "test", "kind": kind, "group": "g", "generation": 1, "cause_id": "c"}
        self.events.append({**common, **fields})
        return self

    def produced(self, first: int, last: int) -> History:
        return self.add("produced", group=None, topic="t", partition=0, first_offset=first, last_offset=last)

    def started(self, member: str, position: int, generation: int = 1) -> History:
        fields = {"topic": "t", "partitions": [0], "positions": [position]}
        return self.add("fetcher_started", member=member, generation=generation, **fields)

    def stopped(self, member: str, position: int, reason: str = "revoked") -> History:
        return self.add("fetcher_stopped", member=member, topic="t", partitions=[0], positions=[position], reason=reason)

    def delivered(self, member: str, first: int, last: int) -> History:
        fields = {"topic": "t", "partition": 0, "first_offset": first, "last_offset": last, "count": last - first + 1}
        return self.add("delivered", member=member, **fields)

    def committed(self, member: str, offset: int) -> History:
        return self.add("committed", member=member, topic="t", partition=0, offset=offset)

    def ended(self, member: str) -> History:
        return self.add("ownership_ended", member=member, reason="expired")

    def verdict(self) -> Verdict:
        return judge(self.events)


def moved() -> History:
    """Ten records, half of them read by a, the rest by b after a clean move."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 5).stopped("a", 5)
    return history.started("b", 5, generation=2).delivered("b", 5, 9)


def test_a_clean_move_is_fine() -> None:
    verdict = moved().verdict()
    assert verdict.ok
    assert (verdict.produced, verdict.delivered, verdict.lost, verdict.duplicated) == (10, 10, 0, 0)
    assert (verdict.out_of_order, verdict.overlaps) == (0, 0)


def test_a_record_that_nobody_got_is_lost() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5).started("b", 6)
    verdict = history.delivered("b", 6, 9).verdict()
    assert verdict.lost == 1
    assert "offsets 5-5 were never delivered" in verdict.problems[0]


def test_the_last_records_are_lost_too() -> None:
    assert History().produced(0, 9).started("a", 0).delivered("a", 0, 8).verdict().lost == 1


def test_what_was_produced_before_the_group_began_is_not_missed() -> None:
    assert History().produced(0, 9).started("a", 7).delivered("a", 7, 9).verdict().ok


def test_two_owners_at_once_are_an_overlap() -> None:
    verdict = History().produced(0, 0).started("a", 0).delivered("a", 0, 0).started("b", 1).verdict()
    assert verdict.overlaps == 1
    assert "which a still has" in verdict.problems[0]


def test_a_dead_members_interval_ends_when_the_coordinator_says_so() -> None:
    assert History().produced(0, 0).started("a", 0).delivered("a", 0, 0).ended("a").started("b", 1).verdict().ok


def test_delivery_without_the_partition_is_a_problem() -> None:
    verdict = moved().produced(10, 10).delivered("a", 10, 10).verdict()
    assert any("without having the partition" in problem for problem in verdict.problems)


def test_a_second_delivery_after_a_clean_stop_is_inexcusable() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 4).started("b", 4)
    verdict = history.delivered("b", 4, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (1, 1)
    assert not verdict.ok


def test_a_second_delivery_after_a_crash_is_excused_from_the_committed_offset_on() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 3)
    verdict = history.delivered("b", 3, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (2, 0)
    assert verdict.ok


def test_a_second_delivery_below_the_committed_offset_is_inexcusable_even_after_a_crash() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 2)
    assert history.delivered("b", 2, 9).verdict().duplicated_outside_crash == 1


def test_a_lost_session_excuses_as_a_crash_does() -> None:
    history = History().produced(0, 1).started("a", 0).delivered("a", 0, 1).stopped("a", 2, reason="lost").started("b", 0)
    assert history.delivered("b", 0, 1).verdict().ok


def test_going_back_within_an_interval_is_out_of_order() -> None:
    verdict = History().produced(0, 5).started("a", 0).delivered("a", 3, 5).delivered("a", 0, 2).verdict()
    assert verdict.out_of_order == 1


def test_a_partition_without_an_owner_in_a_living_group_is_not_converged() -> None:
    history = History().add("fetcher_started", member="a", topic="t", partitions=[0, 1], positions=[0, 0]).stopped("a", 0)
    verdict = history.verdict()
    assert not verdict.converged
    assert not verdict.ok


def test_the_records_of_a_deleted_topic_are_judged_apart_from_those_of_its_successor() -> None:
    history = moved().add("topic_deleted", group=None, topic="t").stopped("b", 10).produced(0, 1)
    verdict = history.started("a", 0).delivered("a", 0, 1).verdict()
    assert verdict.ok
    assert verdict.produced == 12


def test_a_rebalance_is_joined_from_its_events() -> None:
    history = moved()
    history.add("rebalance_requested", trigger="member-joined")
    plan = {"mode": "eager", "member_count": 2, "partition_count": 1, "moved_count": 1, "plan_us": 9}
    history.add("rebalance_planned", generation=2, **plan)
    history.add("rebalance_finished", generation=2, outcome="finished", settled_us=31_000, pause_us_max=1, moved_count=1)
    (rebalance,) = history.verdict().rebalances
    assert (rebalance.cause, rebalance.settled_ms, rebalance.pause_ms_max) == ("member-joined", 31.0, 1.0)
    assert (rebalance.mode, rebalance.members, rebalance.moved, rebalance.outcome) == ("eager", 2, 1, "finished")


def test_files_are_merged_by_time_and_a_torn_last_line_is_tolerated(tmp_path: Path) -> None:
    lines = [json.dumps(event) for event in moved().events]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[::2]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(lines[1::2]) + '\n{"mono_us": 5, "ki')
    verdict = check(tmp_path)
    assert verdict.ok
    assert verdict.torn_lines == 1


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"mono_us": "x", "kind": "fault"}'])
def test_a_broken_line_elsewhere_is_a_problem(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n" + json.dumps(moved().events[0]) + "\n")
    assert check(tmp_path).problems == ("a.jsonl, line 1: not an event",)
