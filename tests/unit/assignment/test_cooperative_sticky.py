"""Cooperative sticky withholds exactly the partitions that another member must revoke; a second round assigns them."""

from __future__ import annotations

from hypothesis import given

from tests.unit.assignment.problems import holding, problems, targets
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.result import WITHHELD, summarize
from zkrebalancer.protocol.fields import TopicPartition


@given(problem=problems(max_partitions=9))
def test_withholds_exactly_the_partitions_that_move(problem: Problem) -> None:
    owners = current_owners(problem)
    disputed = disputed_partitions(problem)
    sticky = targets(decide("sticky", problem))
    assert targets(decide("cooperative_sticky", problem)) == {
        partition: consumer
        for partition, consumer in sticky.items()
        if partition not in disputed and owners.get(partition, consumer) == consumer
    }
    assert summarize(problem, decide("cooperative_sticky", problem)).moved == 0


def disputed_partitions(problem: Problem) -> set[TopicPartition]:
    """Return the partitions that another member claims in the owner's generation."""
    members = problem.members
    return {
        partition
        for partition, owner in current_owners(problem).items()
        for name in members.keys() - {owner}
        if partition in members[name].owned and members[name].generation == members[owner].generation
    }


@given(problem=problems(max_partitions=9))
def test_the_second_round_is_complete_and_moves_nothing(problem: Problem) -> None:
    second = holding(problem, decide("cooperative_sticky", problem))
    assignment = decide("cooperative_sticky", second)
    assert targets(assignment).keys() == targets(decide("sticky", problem)).keys()
    assert summarize(second, assignment).moved == 0


def test_a_partition_claimed_twice_in_a_generation_is_withheld() -> None:
    held = {("t", 0): 0, ("t", 1): 0}
    of_one = {"c1": Member({"t": 1}, held, generation=2), "c2": Member({"t": 1}, {("t", 0): 0}, generation=2)}
    assert decide("sticky", Problem({"t": 2}, of_one)) == {"c1": {0: {"t": (1,)}}, "c2": {0: {"t": (0,)}}}
    assert decide("cooperative_sticky", Problem({"t": 2}, of_one)) == {"c1": {0: {"t": (1,)}}, "c2": {}}
    assert decide("cooperative_sticky", Problem({"t": 3}, of_one)) == {"c1": {0: {"t": (1,)}}, "c2": {0: {"t": (2,)}}}
    older = of_one | {"c2": Member({"t": 1}, {("t", 0): 0}, generation=1)}
    assert decide("cooperative_sticky", Problem({"t": 3}, older)) == {
        "c1": {0: {"t": (0, 1)}},
        "c2": {0: {"t": (2,)}},
    }


def test_a_partition_of_an_unsubscribed_owner_is_withheld() -> None:
    problem = Problem({"t": 1}, {"c1": Member({}, {("t", 0): 0}), "c2": Member({"t": 1}, {})})
    assignment = decide("cooperative_sticky", problem)
    assert assignment == {"c1": {}, "c2": {}}
    assert summarize(problem, assignment).unassigned == {"t": ((0, WITHHELD),)}
