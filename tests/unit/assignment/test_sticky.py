"""Sticky: balance first, then the fewest moves, compared with the optimum by brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given

from tests.support import examples
from tests.unit.assignment.problems import (
    best_by_brute_force,
    cost,
    holding,
    placed,
    problems,
    readable,
    sizes,
    targets,
)
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Assignment, Member, Problem
from zkrebalancer.assignment.result import summarize

small_problems = problems(max_partitions=2, max_members=3, max_threads=2)
small_problems_alike = problems(max_partitions=2, max_members=3, max_threads=2, subscribe_alike=True)


def topics_alike(count: int, topics: dict[str, int]) -> dict[str, Member]:
    return {f"c{number}": Member(dict.fromkeys(topics, 1), {}) for number in range(count)}


@examples.times(3)
@given(problem=small_problems)
def test_is_optimal(problem: Problem) -> None:
    current = current_owners(problem)
    assert cost(targets(decide("sticky", problem)), current) == best_by_brute_force(problem, current)


@examples.times(2)
@given(problem=small_problems_alike)
def test_is_optimal_for_equal_subscriptions(problem: Problem) -> None:
    current = current_owners(problem)
    assert cost(targets(decide("sticky", problem)), current) == best_by_brute_force(problem, current)


@examples.times(2)
@given(problem=problems(max_partitions=12))
def test_no_partition_could_move_to_a_reader_with_two_fewer(problem: Problem) -> None:
    """Kafka's balance criterion (`AbstractStickyAssignor.isBalanced`)."""
    assignment = decide("sticky", problem)
    member_sizes = sizes(assignment)
    for (topic, _), owner in targets(assignment).items():
        for reader, member in problem.members.items():
            if topic in member.threads:
                assert member_sizes[owner] - member_sizes[reader] < 2


@examples.times(2)
@given(problem=problems(max_partitions=12))
def test_its_own_result_is_stable(problem: Problem) -> None:
    first = decide("sticky", problem)
    again = holding(problem, first)
    assert decide("sticky", again) == first
    assert summarize(again, first).moved == 0


def test_a_balanced_assignment_of_another_origin_is_kept() -> None:
    """The group is balanced, but differently from a fresh assignment."""
    members = {
        "c1": Member({"a": 1, "b": 1}, {("b", 1): 0, ("b", 0): 0}),
        "c2": Member({"a": 1}, {("a", 2): 0, ("a", 1): 0}),
        "c3": Member({"a": 1, "b": 1}, {("a", 0): 0}),
    }
    problem = Problem({"a": 3, "b": 2}, members)
    assert decide("sticky", problem) == {
        "c1": {0: {"b": (0, 1)}},
        "c2": {0: {"a": (1, 2)}},
        "c3": {0: {"a": (0,)}},
    }


@examples.times(2)
@given(problem=problems(max_partitions=9, subscribe_alike=True))
def test_a_leaving_member_causes_no_moves_between_the_others(problem: Problem) -> None:
    settled = holding(problem, decide("sticky", problem))
    leaver = min(settled.members, default=None)
    rest = Problem(settled.topics, {name: member for name, member in settled.members.items() if name != leaver})
    assert summarize(rest, decide("sticky", rest)).moved == 0


def test_needs_a_chain_of_moves() -> None:
    """c3 can relieve c1 only if c2 passes on one of its partitions."""
    members = {
        "c1": Member({"a": 1}, {("a", 0): 0, ("a", 1): 0, ("a", 2): 0}),
        "c2": Member({"a": 1, "b": 1}, {("b", 0): 0, ("b", 1): 0}),
        "c3": Member({"b": 1}, {("b", 2): 0}),
    }
    assignment = decide("sticky", Problem({"a": 3, "b": 3}, members))
    assert sizes(assignment) == {"c1": 2, "c2": 2, "c3": 2}
    assert summarize(Problem({"a": 3, "b": 3}, members), assignment).moved == 2


def reads(topics: str, **claims: int) -> Member:
    """Return a member that reads the topics (one letter each) and claims the first partitions of some."""
    return Member(dict.fromkeys(topics, 1), {(topic, number): 0 for topic, n in claims.items() for number in range(n)})


# Found by comparing random groups with and without a part of the search; each needs the part in its id.
HARD_CASES = [
    pytest.param(
        {"a": 2, "b": 3},
        {"c1": reads("ab", a=1, b=3), "c2": reads("b"), "c3": reads("b"), "c4": Member({"a": 1}, {("a", 1): 0})},
        id="an owner that gave up a claim on the way gets it back",
    ),
    pytest.param(
        {"a": 1, "b": 2, "c": 1},
        {"c1": reads("c"), "c2": reads("bc", b=2), "c3": reads("ac", c=1), "c4": reads("ab")},
        id="an owner that was passed already becomes cheaper to pass",
    ),
]


@pytest.mark.parametrize(("topics", "members"), HARD_CASES)
def test_hard_cases_are_optimal(topics: dict[str, int], members: dict[str, Member]) -> None:
    problem = Problem(topics, members)
    current = current_owners(problem)
    assert cost(targets(decide("sticky", problem)), current) == best_by_brute_force(problem, current)


def test_the_newer_claim_wins_and_the_lower_name_at_equal_generations() -> None:
    threads = {"t": 1}
    owned = {("t", 0): 0}
    newer = {"c1": Member(threads, owned, generation=1), "c2": Member(threads, owned, generation=2)}
    assert targets(decide("sticky", Problem({"t": 1}, newer))) == {("t", 0): "c2"}
    equal = {"c2": Member(threads, owned, generation=2), "c1": Member(threads, owned, generation=2)}
    assert targets(decide("sticky", Problem({"t": 1}, equal))) == {("t", 0): "c1"}


def test_claims_to_missing_or_unsubscribed_partitions_are_ignored() -> None:
    members = {
        "c1": Member({"a": 1}, {("gone", 0): 0, ("a", 7): 0, ("b", 0): 0, ("b", 1): 0}),
        "c2": Member({"a": 1, "b": 1}, {}),
    }
    problem = Problem({"a": 2, "b": 2}, members)
    assert sizes(decide("sticky", problem)) == {"c1": 2, "c2": 2}
    assert summarize(problem, decide("sticky", problem)).moved == 2  # b-0 and b-1 leave c1, which has to stop them


def thread_sizes(assignment: Assignment, consumer: str, thread_count: int) -> list[int]:
    count_of = Counter(thread for name, thread, _, _ in placed(assignment) if name == consumer)
    return [count_of[thread] for thread in range(thread_count)]


@examples.times(2)
@given(problem=problems(max_partitions=9))
def test_threads_of_a_member_are_as_balanced_as_their_topics_allow(problem: Problem) -> None:
    assignment = decide("sticky", problem)
    for consumer, member in problem.members.items():
        thread_count = max(member.threads.values(), default=0)
        by_thread = thread_sizes(assignment, consumer, thread_count)
        for thread, topics in assignment[consumer].items():
            for topic in topics:
                assert by_thread[thread] - min(by_thread[: member.threads[topic]]) < 2


@given(problem=problems(max_partitions=9, subscribe_alike=True))
def test_threads_of_a_member_are_balanced_within_one_if_they_read_the_same_topics(problem: Problem) -> None:
    members = {
        name: replace(member, threads=dict.fromkeys(member.threads, 3)) for name, member in problem.members.items()
    }
    assignment = decide("sticky", Problem(problem.topics, members))
    for consumer in members:
        by_thread = thread_sizes(assignment, consumer, 3)
        assert max(by_thread) - min(by_thread) <= 1


def test_a_member_keeps_its_threads_and_gives_up_rows_of_the_fullest_ones() -> None:
    members = {
        "c1": Member({"t": 2}, {("t", 0): 1, ("t", 1): 1, ("t", 2): 1, ("t", 3): 0}),
        "c2": Member({"t": 2}, {}),
    }
    assert decide("sticky", Problem({"t": 4}, members)) == {
        "c1": {0: {"t": (3,)}, 1: {"t": (0,)}},
        "c2": {0: {"t": (1,)}, 1: {"t": (2,)}},
    }


def test_partitions_of_a_removed_thread_stay_with_the_member() -> None:
    member = Member({"t": 2}, {("t", 0): 0, ("t", 1): 1, ("t", 2): 2, ("t", 3): 2})
    assert decide("sticky", Problem({"t": 4}, {"c": member})) == {"c": {0: {"t": (0, 2)}, 1: {"t": (1, 3)}}}


@pytest.mark.parametrize("disputed", [0, 1])
@pytest.mark.parametrize("max_exact_choices", [0, 500])
@pytest.mark.parametrize("topics", ["t", "tu"])
def test_partitions_claimed_twice_in_a_generation_are_given_up_first(
    disputed: int, max_exact_choices: int, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For equal subscriptions, and for partly overlapping ones in small and large groups."""
    monkeypatch.setattr("zkrebalancer.assignment.sticky.MAX_EXACT_CHOICES", max_exact_choices)
    members = {
        "c1": Member({"t": 1}, {("t", 0): 0, ("t", 1): 0}),
        "c2": Member({"t": 1}, {("t", disputed): 0, ("t", 2): 0}),
        "c3": Member(dict.fromkeys(topics, 1), {}),
    }
    problem = Problem({"t": 3, "u": 0}, members)
    assert targets(decide("sticky", problem)) == {("t", 1 - disputed): "c1", ("t", 2): "c2", ("t", disputed): "c3"}


@pytest.mark.parametrize("member_count", [1, 3, 7])
def test_a_joining_member_gets_only_its_share(member_count: int) -> None:
    topics = {"a": 20, "b": 22}
    group = Problem(topics, topics_alike(member_count, topics))
    settled = holding(group, decide("sticky", group))
    joined = Problem(topics, {**settled.members, "new": Member({"a": 1, "b": 1}, {})})
    assignment = decide("sticky", joined)
    assert sizes(assignment)["new"] == 42 // (member_count + 1)
    assert summarize(joined, assignment).moved == sizes(assignment)["new"]


@pytest.fixture
def by_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve overlapping subscriptions as in a large group."""
    monkeypatch.setattr("zkrebalancer.assignment.sticky.MAX_EXACT_CHOICES", 0)


@pytest.mark.usefixtures("by_classes")
@examples.times(3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=small_problems)
def test_classes_are_optimally_balanced(problem: Problem) -> None:
    current = current_owners(problem)
    assignment = decide("sticky", problem)
    assert targets(assignment).keys() == readable(problem)
    assert all(topic in problem.members[owner].threads for (topic, _), owner in targets(assignment).items())
    squares, lost_claims = cost(targets(assignment), current)
    best_squares, fewest_lost_claims = best_by_brute_force(problem, current)
    assert squares == best_squares
    assert lost_claims >= fewest_lost_claims


@pytest.mark.usefixtures("by_classes")
@examples.times(1, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems(max_partitions=12))
def test_the_result_by_classes_is_stable(problem: Problem) -> None:
    first = decide("sticky", problem)
    assert decide("sticky", holding(problem, first)) == first


@pytest.mark.usefixtures("by_classes")
def test_a_class_gives_up_rows_of_its_largest_members() -> None:
    members = {
        "c1": Member({"a": 1, "b": 1}, {("b", number): 0 for number in range(6)}),
        "c2": Member({"a": 1, "b": 1}, {("b", 6): 0, ("b", 7): 0}),
        "c3": Member({"b": 1}, {}),
    }
    problem = Problem({"a": 0, "b": 8}, members)
    assignment = decide("sticky", problem)
    assert sorted(sizes(assignment).values()) == [2, 3, 3]
    assert summarize(problem, assignment).moved == 3  # two to c3, one to c2


@pytest.mark.parametrize(("old_count", "new_count"), [(200, 1), (200, 40), (40, 200)])
def test_classes_of_a_large_group_move_only_the_shares_of_new_members(old_count: int, new_count: int) -> None:
    """Each class reads three of ten topics, so a new member's share may come through a chain."""
    topics = {f"t{number}": 8 * (old_count + new_count) // 10 for number in range(10)}
    reading = [{f"t{(number + offset) % 10}": 1 for offset in range(3)} for number in range(10)]
    group = Problem(topics, {f"old{number}": Member(reading[number % 10], {}) for number in range(old_count)})
    settled = holding(group, decide("sticky", group))
    joining = {f"new{number}": Member(reading[number % 10], {}) for number in range(new_count)}
    grown = Problem(topics, {**settled.members, **joining})
    assignment = decide("sticky", grown)
    by_size = Counter(sizes(assignment).values())
    assert max(by_size) - min(by_size) <= 1
    share_of_new = sum(count for consumer, count in sizes(assignment).items() if consumer.startswith("new"))
    assert summarize(grown, assignment).moved == share_of_new


def test_large_overlapping_group_stays_exact() -> None:
    """More members than one search can serve, so every topic moves in several rounds."""
    topics = {f"t{number}": 60 for number in range(5)}
    members = {f"old{number}": Member(dict.fromkeys(topics.keys() - {f"t{number}"}, 1), {}) for number in range(5)}
    settled = holding(Problem(topics, members), decide("sticky", Problem(topics, members)))
    joining = {f"new{number}": replace(members[f"old{number}"], owned={}) for number in range(5)}
    grown = Problem(topics, {**settled.members, **joining})
    assignment = decide("sticky", grown)
    assert set(sizes(assignment).values()) == {30}
    assert summarize(grown, assignment).moved == 150
