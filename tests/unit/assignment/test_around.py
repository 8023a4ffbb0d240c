"""Members that can be told nothing keep what they hold; the others share the rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignment.problems import CONSUMER_NAMES, TOPIC_NAMES, problems
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.transition import place

NAMES = st.sampled_from(sorted(STRATEGIES))
KEEPING = st.sets(st.sampled_from(CONSUMER_NAMES))


@given(problem=problems(), name=NAMES, keeping=KEEPING, everything=st.booleans())
def test_they_keep_what_they_hold_and_get_nothing_more(
    problem: Problem, name: str, keeping: set[str], everything: bool
) -> None:
    found = place(STRATEGIES[name], problem, everything=everything, keeping=keeping)
    owners = current_owners(problem)
    for consumer in keeping & problem.members.keys():
        assert found.share(consumer).keys() == {tp for tp, owner in owners.items() if owner == consumer}
        assert consumer not in found.stops
    assert not keeping & found.changing


@given(problem=problems(), name=NAMES, keeping=KEEPING)
def test_nothing_that_another_member_reads_waits_for_them(problem: Problem, name: str, keeping: set[str]) -> None:
    """In `_without`, let them read what they read."""
    found, owners = place(STRATEGIES[name], problem, keeping=keeping), current_owners(problem)
    others = [member for consumer, member in problem.members.items() if consumer not in keeping]
    for topic, count in problem.topics.items():
        for partition in ((topic, number) for number in range(count)):
            is_read, owner = any(topic in member.threads for member in others), owners.get(partition)
            if is_read and owner not in keeping and not (name == "cooperative_sticky" and owner is not None):
                assert found.receiver(partition) in problem.members.keys() - keeping


def test_the_others_are_balanced_among_themselves() -> None:
    members = {
        name: Member({"t": 1}, {("t", number): 0 for number in numbers})
        for name, numbers in {"a": (0, 3), "b": (1, 2), "c": ()}.items()
    }
    found = place(STRATEGIES["sticky"], Problem({"t": 6}, members), keeping={"a"})
    assert {name: len(found.share(name)) for name in members} == {"a": 2, "b": 2, "c": 2}


PINS = st.dictionaries(st.sampled_from(TOPIC_NAMES), st.lists(st.integers(0, 6), unique=True))


@given(problem=problems(), keeping=KEEPING, pinned=PINS)
def test_pins_name_the_same_partitions_whoever_keeps_what_it_holds(
    problem: Problem, keeping: set[str], pinned: dict[str, list[int]]
) -> None:
    """In `_without`, leave out the partition numbers."""
    found = place(STRATEGIES["balanced"], replace(problem, options={"pinned": pinned}), keeping=keeping)
    for (topic, number), owner in current_owners(problem).items():
        if number in pinned.get(topic, ()) and topic in problem.members[owner].threads:
            assert found.receiver((topic, number)) == owner


def test_only_what_is_pinned_stays_when_somebody_joins_while_a_member_keeps_what_it_holds() -> None:
    members = {
        name: Member({"t": 1}, {("t", number): 0 for number in numbers})
        for name, numbers in {"a": (0, 2), "b": (1, 3, 4, 5), "c": ()}.items()
    }
    problem = Problem({"t": 6}, members, options={"pinned": {"t": [3, 5]}, "move_cost": 0, "min_gain": 0})
    found = place(STRATEGIES["balanced"], problem, keeping={"a"})
    assert found.share("b").keys() == {("t", 3), ("t", 5)}
