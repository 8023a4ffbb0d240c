"""Round robin equals a straightforward loop."""

from __future__ import annotations

from hypothesis import given

from tests.unit.assignment.problems import placed, problems
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.model import Member, Problem, ordered_consumers


def deal_by_walking(problem: Problem) -> set[tuple[str, int, str, int]]:
    """Walk the circle one consumer thread at a time, as Kafka's assignor does."""
    circle = [
        (consumer, thread)
        for consumer in ordered_consumers(problem)
        for thread in range(
            max((n for t, n in problem.members[consumer].threads.items() if t in problem.topics), default=0)
        )
    ]
    dealt, place = set(), 0
    for topic in sorted(problem.topics):
        if not any(topic in member.threads for member in problem.members.values()):
            continue
        for partition in range(problem.topics[topic]):
            while circle[place % len(circle)][1] >= problem.members[circle[place % len(circle)][0]].threads.get(
                topic, 0
            ):
                place += 1
            dealt.add((*circle[place % len(circle)], topic, partition))
            place += 1
    return dealt


@given(problem=problems(max_partitions=9))
def test_equals_the_plain_loop(problem: Problem) -> None:
    assert set(placed(decide("round_robin", problem))) == deal_by_walking(problem)


def test_threads_take_turns_and_the_circle_continues_with_the_next_topic() -> None:
    problem = Problem({"a": 2, "b": 3}, {"c1": Member({"a": 2, "b": 2}, {}), "c2": Member({"a": 1, "b": 1}, {})})
    assert decide("round_robin", problem) == {
        "c1": {0: {"a": (0,), "b": (1,)}, 1: {"a": (1,), "b": (2,)}},
        "c2": {0: {"b": (0,)}},
    }
