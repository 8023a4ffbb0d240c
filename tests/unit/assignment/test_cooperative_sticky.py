"""Cooperative sticky withholds exactly what another member has to let go, and a second round completes it."""

from __future__ import annotations

from hypothesis import given

from tests.unit.assignment.problems import holding, problems, targets
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.result import WITHHELD, summarize


@given(problem=problems(max_partitions=9))
def test_withholds_what_would_move_and_nothing_else(problem: Problem) -> None:
    owners = current_owners(problem)
    sticky = targets(decide("sticky", problem))
    assert targets(decide("cooperative_sticky", problem)) == {
        partition: consumer
        for partition, consumer in sticky.items()
        if partition not in owners or owners[partition] == consumer
    }
    assert summarize(problem, decide("cooperative_sticky", problem)).moved == 0


@given(problem=problems(max_partitions=9))
def test_the_second_round_is_complete_and_moves_nothing(problem: Problem) -> None:
    second = holding(problem, decide("cooperative_sticky", problem))
    assignment = decide("cooperative_sticky", second)
    assert targets(assignment).keys() == targets(decide("sticky", problem)).keys()
    assert summarize(second, assignment).moved == 0


def test_an_owner_that_unsubscribed_has_to_let_go_first() -> None:
    problem = Problem({"t": 1}, {"c1": Member({}, {("t", 0): 0}), "c2": Member({"t": 1}, {})})
    assignment = decide("cooperative_sticky", problem)
    assert assignment == {"c1": {}, "c2": {}}
    assert summarize(problem, assignment).unassigned == {"t": ((0, WITHHELD),)}
