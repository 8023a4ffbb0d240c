"""Properties of every strategy: complete, no partition twice, only to subscribers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignment.problems import placed, problems, readable, shuffled, sizes, targets
from zkrebalancer.assignment import STRATEGIES, decide, strategy
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.result import NO_SUBSCRIBER, WITHHELD, summarize
from zkrebalancer.protocol.errors import UnknownStrategyError
from zkrebalancer.protocol.fields import TopicPartition

every_strategy = pytest.mark.parametrize("name", STRATEGIES)
total_strategy = pytest.mark.parametrize("name", ["range", "round_robin", "sticky"])


@total_strategy
@given(problem=problems())
def test_assigns_every_partition_with_a_subscriber(name: str, problem: Problem) -> None:
    assert targets(decide(name, problem)).keys() == readable(problem)


@every_strategy
@given(problem=problems())
def test_assigns_each_partition_once_to_a_thread_that_reads_it(name: str, problem: Problem) -> None:
    assignment = decide(name, problem)
    assigned = list(placed(assignment))
    assert len(assigned) == len({(topic, partition) for _, _, topic, partition in assigned})
    for consumer, thread, topic, partition in assigned:
        assert 0 <= thread < problem.members[consumer].threads.get(topic, 0)
        assert 0 <= partition < problem.topics[topic]


@every_strategy
@given(problem=problems())
def test_contains_every_member_and_sorts_partitions(name: str, problem: Problem) -> None:
    assignment = decide(name, problem)
    assert list(assignment) == sorted(problem.members)
    for threads in assignment.values():
        for topics in threads.values():
            for partitions in topics.values():
                assert partitions
                assert list(partitions) == sorted(partitions)


@every_strategy
@given(problem=problems(), order=st.lists(st.integers(0, 9), min_size=3))
def test_does_not_depend_on_the_order_of_dictionaries(name: str, problem: Problem, order: list[int]) -> None:
    assert decide(name, problem) == decide(name, shuffled(problem, order))


@pytest.mark.parametrize("name", ["round_robin", "sticky"])
@given(problem=problems(subscribe_alike=True, max_threads=1))
def test_balances_within_one_for_equal_subscriptions(name: str, problem: Problem) -> None:
    member_sizes = sizes(decide(name, problem)).values()
    assert max(member_sizes, default=0) - min(member_sizes, default=0) <= 1


def newest_claimants(problem: Problem, partition: TopicPartition) -> set[str]:
    """Return the consumers that claim a partition in the newest generation of its claims."""
    claims = {name: m.generation for name, m in problem.members.items() if partition in m.owned}
    return {name for name, generation in claims.items() if generation == max(claims.values())}


@every_strategy
@given(problem=problems())
def test_summary_accounts_for_every_partition(name: str, problem: Problem) -> None:
    assignment = decide(name, problem)
    summary = summarize(problem, assignment)
    assigned, owners = targets(assignment), current_owners(problem)
    missing = {(topic, number) for topic, entries in summary.unassigned.items() for number, _ in entries}
    everything = {(topic, number) for topic, count in problem.topics.items() for number in range(count)}
    assert missing == everything - assigned.keys()
    assert summary.kept + summary.moved + len(owners.keys() & missing) == len(owners)
    assert summary.kept == sum(consumer in newest_claimants(problem, tp) for tp, consumer in assigned.items())
    for topic, entries in summary.unassigned.items():
        has_subscriber = any(topic in member.threads for member in problem.members.values())
        assert {reason for _, reason in entries} == {WITHHELD if has_subscriber else NO_SUBSCRIBER}


def test_unknown_strategy_names_the_known_ones() -> None:
    with pytest.raises(UnknownStrategyError, match=r"'fair' is unknown; known are range, round_robin, sticky"):
        strategy("fair")


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    reads = {"t": 1}
    problem = Problem(
        {"t": 4},
        {
            "a": Member(reads, {}),
            "z": Member(reads, {}, instance_id="pod-1"),
            "y": Member(reads, {}, instance_id="pod-2"),
        },
    )
    for name in ("range", "round_robin", "sticky"):
        assert sizes(decide(name, problem)) == {"z": 2, "y": 1, "a": 1}
        assert targets(decide(name, problem))["t", 0] == "z"
