"""Range follows the legacy consumer's rule for several threads."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.unit.assignment.problems import problems
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.model import Member, Problem

# partitions, threads of each consumer, and the partitions of each consumer thread c1-0, c1-1, …, c2-0, … as the legacy
# consumer computes them: thread at position i starts at i * (n // t) + min(i, n % t).
LEGACY_TABLE = [
    (10, {"c1": 2, "c2": 1}, {"c1-0": [0, 1, 2, 3], "c1-1": [4, 5, 6], "c2-0": [7, 8, 9]}),
    (5, {"c1": 2, "c2": 2}, {"c1-0": [0, 1], "c1-1": [2], "c2-0": [3], "c2-1": [4]}),
    (8, {"c1": 1, "c2": 3}, {"c1-0": [0, 1], "c2-0": [2, 3], "c2-1": [4, 5], "c2-2": [6, 7]}),
    (3, {"c1": 2, "c2": 2}, {"c1-0": [0], "c1-1": [1], "c2-0": [2]}),
    (1, {"c1": 1, "c2": 4}, {"c1-0": [0]}),
    (7, {"c1": 3, "c2": 2}, {"c1-0": [0, 1], "c1-1": [2, 3], "c1-2": [4], "c2-0": [5], "c2-1": [6]}),
    (0, {"c1": 3}, {}),
]


@pytest.mark.parametrize(("partition_count", "threads", "expected"), LEGACY_TABLE)
def test_legacy_table(partition_count: int, threads: dict[str, int], expected: dict[str, list[int]]) -> None:
    members = {consumer: Member({"t": count}, {}) for consumer, count in threads.items()}
    assignment = decide("range", Problem({"t": partition_count}, members))
    assert {
        f"{consumer}-{thread}": list(topics["t"])
        for consumer, by_thread in assignment.items()
        for thread, topics in by_thread.items()
    } == expected


def test_threads_are_ordered_by_number() -> None:
    assignment = decide("range", Problem({"t": 11}, {"c": Member({"t": 11}, {})}))
    assert assignment["c"] == {thread: {"t": (thread,)} for thread in range(11)}


@given(problem=problems(max_partitions=12))
def test_each_thread_gets_one_contiguous_range_of_a_topic_within_one_of_the_others(problem: Problem) -> None:
    assignment = decide("range", problem)
    for topic, partition_count in problem.topics.items():
        sizes = []
        for consumer, member in problem.members.items():
            for thread in range(member.threads.get(topic, 0)):
                partitions = assignment[consumer].get(thread, {}).get(topic, ())
                assert list(partitions) == list(range(min(partitions, default=0), max(partitions, default=-1) + 1))
                sizes.append(len(partitions))
        if sizes:
            assert sum(sizes) == partition_count
            assert max(sizes) - min(sizes) <= 1
