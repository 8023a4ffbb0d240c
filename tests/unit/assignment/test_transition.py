"""What a transition says of a decision: who stops and starts what, and how much of it moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignment.problems import placed, problems, targets
from zkrebalancer.assignment import STRATEGIES, decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.transition import Transition, place

NAMES = st.sampled_from(sorted(STRATEGIES))


def transition(name: str, problem: Problem, *, everything: bool = False) -> Transition:
    return place(STRATEGIES[name], problem, everything=everything)


@given(problem=problems(), name=NAMES)
def test_its_figures_are_those_of_the_changes(problem: Problem, name: str) -> None:
    after, owners = targets(decide(name, problem)), current_owners(problem)
    read = {topic for member in problem.members.values() for topic in member.threads}
    found = transition(name, problem)
    assert found.assigned_count == len(after)
    assert found.moved_count == sum(after.get(tp, owner) != owner for tp, owner in owners.items())
    assert found.displaced_count == sum(after.get(tp) != owner and tp[0] in read for tp, owner in owners.items())
    assert found.withholds == any(tp not in after and tp[0] in read for tp in owners)
    assert found.changing == found.stops.keys() | found.starts.keys()
    assert {type(value) for value in (found.moved_count, found.displaced_count, found.assigned_count)} == {int}


@given(problem=problems(), name=NAMES)
def test_an_eager_transition_starts_everything_and_stops_what_moves(problem: Problem, name: str) -> None:
    found, lazy = transition(name, problem, everything=True), transition(name, problem)
    starts = {(consumer, thread, *tp) for consumer, started in found.starts.items() for tp, thread in started.items()}
    assert starts == set(placed(decide(name, problem)))
    assert (found.stops, found.changing) == (lazy.stops, lazy.changing)
    assert (found.everything, lazy.everything) == (True, False)


@given(problem=problems(), name=NAMES)
def test_it_knows_its_members_and_who_gets_what(problem: Problem, name: str) -> None:
    found, after = transition(name, problem), targets(decide(name, problem))
    for consumer in (*problem.members, "stranger"):
        assert found.knows(consumer) == (consumer in problem.members)
        share = {tp for tp, owner in after.items() if owner == consumer}
        assert found.share(consumer).keys() == share
    for topic, count in {**problem.topics, "gone": 1}.items():
        for number in range(-1, count + 1):
            assert found.receiver((topic, number)) == after.get((topic, number))


def test_a_partition_that_only_changes_its_thread_is_stopped_and_started_but_does_not_move() -> None:
    member = Member({"t": 2}, {("t", 0): 0, ("t", 1): 0})
    found = transition("sticky", Problem({"t": 2}, {"c": member}))
    assert found.stops == {"c": frozenset({("t", 1)})}
    assert found.starts == {"c": {("t", 1): 1}}
    assert (found.moved_count, found.displaced_count, found.assigned_count, found.withholds) == (0, 0, 2, False)


def test_what_no_member_reads_is_stopped_and_counts_as_nothing() -> None:
    member = Member({"t": 1}, {("unread", 0): 0, ("t", 0): 0})
    found = transition("sticky", Problem({"t": 1, "unread": 1}, {"c": member}))
    assert found.stops == {"c": frozenset({("unread", 0)})}
    assert (found.moved_count, found.displaced_count, found.withholds) == (0, 0, False)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_settled_group_changes_nothing(name: str) -> None:
    members = {"a": Member({"t": 1}, {("t", 0): 0, ("t", 1): 0}), "b": Member({"t": 1}, {("t", 2): 0, ("t", 3): 0})}
    if name == "round_robin":
        members = {"a": Member({"t": 1}, {("t", 0): 0, ("t", 2): 0}), "b": Member({"t": 1}, {("t", 1): 0, ("t", 3): 0})}
    found = transition(name, Problem({"t": 4}, members))
    assert (found.stops, found.starts, found.changing) == ({}, {}, frozenset())
