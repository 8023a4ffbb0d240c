"""Round robin: all partitions in order are dealt, one each, to the consumer threads in a circle.

Source: Kafka's `RoundRobinAssignor`, with consumer threads in the place of members. A thread that does not read the
topic is skipped; the next topic goes on where the last one ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from zkrebalancer.assignment.model import Assignment, Problem, ordered_consumers, to_assignment


def assign_round_robin(problem: Problem) -> Assignment:
    """Deal all partitions, sorted by topic and number, to the consumer threads, sorted by consumer and number."""
    return to_assignment(problem, _deal(problem))


def _deal(problem: Problem) -> Iterator[tuple[str, int, str, range]]:
    circle: list[tuple[str, int]] = []
    places: dict[str, list[int]] = {topic: [] for topic in problem.topics}  # where in the circle the topic is read
    for consumer in ordered_consumers(problem):
        threads = {topic: count for topic, count in problem.members[consumer].threads.items() if topic in places}
        for topic, thread_count in threads.items():
            places[topic].extend(range(len(circle), len(circle) + thread_count))
        circle.extend((consumer, thread) for thread in range(max(threads.values(), default=0)))

    next_place = 0
    for topic in sorted(problem.topics):
        readers, partition_count = places[topic], problem.topics[topic]
        if not readers or not partition_count:
            continue
        # The n-th partition goes to the n-th reader from here on: skipping the others costs nothing.
        first = bisect_left(readers, next_place)
        for turn in range(min(partition_count, len(readers))):
            consumer, thread = circle[readers[(first + turn) % len(readers)]]
            yield consumer, thread, topic, range(turn, partition_count, len(readers))
        next_place = readers[(first + partition_count - 1) % len(readers)] + 1
