"""A group that counts as kept without a strategy is one that the strategy would not change."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignment.problems import problems
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment.kept import MAX_CHECKED, STICKY, keeps_all
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.transition import place
from zkrebalancer.protocol.fields import TopicPartition

T = {"t": 1}


def settled(problem: Problem) -> Problem:
    """Return the problem, without topics that nobody reads, after sticky has been carried out."""
    read = {topic for member in problem.members.values() for topic in member.threads}
    problem = replace(problem, topics={topic: count for topic, count in problem.topics.items() if topic in read})
    transition = place(STRATEGIES["sticky"], problem)
    members = {name: replace(member, owned=transition.share(name)) for name, member in problem.members.items()}
    return replace(problem, members=members)


def group(*owned: dict[TopicPartition, int], topics: dict[str, int] | None = None) -> Problem:
    """Return a group in which each member reads `t`, of four partitions, and has these."""
    members = {f"c{number}": Member(T, claims) for number, claims in enumerate(owned)}
    return Problem({"t": 4} if topics is None else topics, members)


def parts(*numbers: int, topic: str = "t", thread: int = 0) -> dict[TopicPartition, int]:
    return {(topic, number): thread for number in numbers}


@given(
    problem=problems(subscribe_alike=True, max_threads=1).map(settled),
    changed=problems(max_partitions=3, max_members=1, max_threads=1),
)
def test_what_is_kept_is_what_the_strategies_leave_as_it_is(problem: Problem, changed: Problem) -> None:
    assert keeps_all(problem)
    mixed = replace(problem, members={**problem.members, **changed.members})
    for name, each in product(STICKY, (problem, mixed)):
        if keeps_all(each):
            transition = place(STRATEGIES[name], each)
            assert (transition.changing, transition.stops, transition.starts) == (frozenset(), {}, {})
            assert (transition.displaced_count, transition.withholds) == (0, False)
            assert not transition.columns.is_contradicted


@given(problem=problems(), topics=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=3))
def test_of_any_group(problem: Problem, topics: dict[str, int]) -> None:
    mixed = replace(problem, topics=topics)
    if keeps_all(mixed):
        assert not place(STRATEGIES["sticky"], mixed).changing


def test_a_group_that_has_everything_evenly_is_kept() -> None:
    assert keeps_all(group(parts(0, 3), parts(1, 2)))
    assert keeps_all(group(parts(0, 3), parts(1), parts(2)))
    assert keeps_all(Problem({}, {}))
    assert keeps_all(Problem({"t": 2}, {"c0": Member({"t": 1, "none": 1}, parts(0, 1))}))


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(group(parts(0, 3), parts(1)), id="a partition without an owner"),
        pytest.param(group(parts(0, 1, 2), parts(3)), id="one member has two more"),
        pytest.param(group(parts(0, 1), parts(1, 2)), id="a partition with two owners"),
        pytest.param(group(parts(0, 1), parts(2, 4)), id="a partition that does not exist"),
        pytest.param(group(parts(0, 1), {**parts(2), **parts(0, topic="gone")}), id="a topic that does not exist"),
        pytest.param(group(parts(0, 1), {**parts(2), **parts(-1)}), id="a partition below 0"),
        pytest.param(group(parts(0, 1), {**parts(2), **parts(3, thread=1)}), id="another thread"),
        pytest.param(
            group(parts(0, 1), {**parts(2), **parts(0, topic="u")}, topics={"t": 3, "u": 1}), id="not subscribed"
        ),
        pytest.param(
            Problem({"t": 2}, {"c0": Member(T, parts(0)), "c1": Member({"t": 2}, parts(1))}), id="several threads"
        ),
        pytest.param(Problem({"t": 2}, {"c0": Member({"t": 2}, parts(0, 1))}), id="two threads"),
        pytest.param(
            Problem({"t": 2}, {"c0": Member(T, parts(0)), "c1": Member({"t": 1, "u": 1}, parts(1))}),
            id="different subscriptions",
        ),
    ],
)
def test_any_other_group_is_for_the_strategy(problem: Problem) -> None:
    assert not keeps_all(problem)


def test_a_large_group_is_for_the_strategy() -> None:
    count = MAX_CHECKED - 1
    assert keeps_all(Problem({"t": count}, {"c": Member(T, parts(*range(count)))}))
    count += 1
    assert not keeps_all(Problem({"t": count}, {"c": Member(T, parts(*range(count)))}))
