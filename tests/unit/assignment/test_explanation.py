"""Every strategy explains every partition, consistently with its assignment."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignment.problems import problems, targets
from zkrebalancer.assignment import STRATEGIES, decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.explanation import Explanation, explain
from zkrebalancer.assignment.model import Member, Problem

GROUP = Problem(
    {"t": 3, "only": 1, "unread": 1},
    {"c1": Member({"t": 1, "only": 1}, {("t", 0): 0, ("t", 2): 0, ("only", 0): 0}), "c2": Member({"t": 1}, {})},
    lag={"t": [10, 10, 10]},
)


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("range", 0, Explanation("c1", "c1", "its range of the topic")),
        ("round_robin", 1, Explanation(None, "c1", "its turn in the circle")),
        ("sticky", 0, Explanation("c1", "c1", "kept")),
        ("sticky", 1, Explanation(None, "c2", "fewest partitions")),
        ("sticky", 2, Explanation("c1", "c2", "fewest partitions")),
        ("cooperative_sticky", 1, Explanation(None, "c2", "fewest partitions")),
        ("cooperative_sticky", 2, Explanation("c1", None, "withheld until revoked")),
    ],
)
def test_explanations_of_each_strategy(name: str, number: int, expected: Explanation) -> None:
    assert explain(name, GROUP, ("t", number)) == expected


def test_balanced_also_explains_the_best_alternative() -> None:
    explanation = explain("balanced", GROUP, ("t", 2))
    assert explanation is not None
    assert (explanation.holder, explanation.target, explanation.alternative) == ("c1", "c1", "c2")
    assert explanation.reason == "kept"
    assert explanation.changes.keys() == {"load", "rack", "move", "spread", "total"}
    assert explanation.changes["move"] > 0
    assert explanation.changes["total"] > 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_partitions_without_a_choice(name: str) -> None:
    assert explain(name, GROUP, ("only", 0)) == Explanation("c1", "c1", "only subscriber")
    assert explain(name, GROUP, ("unread", 0)) == Explanation(None, None, "no subscriber")
    assert explain(name, GROUP, ("t", 3)) is None
    assert explain(name, GROUP, ("gone", 0)) is None


@given(problem=problems(), name=st.sampled_from(sorted(STRATEGIES)))
def test_holder_and_target_agree_with_the_assignment(problem: Problem, name: str) -> None:
    target, holder = targets(decide(name, problem)), current_owners(problem)
    for partition in [(topic, number) for topic, count in problem.topics.items() for number in range(count)]:
        explanation = explain(name, problem, partition)
        assert explanation is not None
        assert (explanation.holder, explanation.target) == (holder.get(partition), target.get(partition))
        assert explanation.reason


FULL = {"max_partitions_per_member": 2}


def test_where_all_others_are_full_a_partition_is_kept_or_goes_to_the_only_place() -> None:
    """Without an alternative, the reason is still given."""
    members = {
        "c1": Member({"t": 1}, {("t", 0): 0, ("t", 1): 0}),
        "c2": Member({"t": 1}, {("t", 2): 0}),
    }
    problem = Problem({"t": 4}, members, lag={"t": [10] * 4}, options=FULL)
    kept, new = explain("balanced", problem, ("t", 0)), explain("balanced", problem, ("t", 3))
    assert (kept, new) == (Explanation("c1", "c1", "kept"), Explanation(None, "c2", "least loaded"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_group_that_reads_nothing_is_no_problem(name: str) -> None:
    """Without a load there is no average; numpy would warn of a division by zero."""
    nothing = Problem({"unread": 2}, {"c1": Member({}, {("unread", 0): 0})}, lag={"unread": [10, 10]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = explain(name, nothing, ("unread", 0))
    assert explanation is not None
    assert explanation.target is None
