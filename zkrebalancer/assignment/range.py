"""Range, as the legacy consumer did it: each topic is cut into contiguous pieces, one for each consumer thread.

Source: `RangeAssignor` of Kafka's ZooKeeper consumer. Two differences: static members come first, and threads are
sorted by number (there `c-10` sorted before `c-2`, as text).
"""

from __future__ import annotations

from collections.abc import Iterator

from zkrebalancer.assignment.model import Assignment, Problem, ordered_consumers, to_assignment


def assign_range(problem: Problem) -> Assignment:
    """Give each consumer thread a contiguous range of each topic; the first `partitions mod threads` get one more."""
    return to_assignment(problem, _ranges(problem))


def _ranges(problem: Problem) -> Iterator[tuple[str, int, str, range]]:
    consumer_threads: dict[str, list[tuple[str, int]]] = {topic: [] for topic in problem.topics}
    for consumer in ordered_consumers(problem):
        for topic, thread_count in problem.members[consumer].threads.items():
            if topic in consumer_threads:
                consumer_threads[topic].extend((consumer, thread) for thread in range(thread_count))
    for topic, readers in consumer_threads.items():
        if not readers:
            continue
        size, longer_count = divmod(problem.topics[topic], len(readers))
        first = 0
        for position, (consumer, thread) in enumerate(readers):
            end = first + size + (position < longer_count)
            if end == first:
                break  # more threads than partitions: nothing is left for this one and those after it
            yield consumer, thread, topic, range(first, end)
            first = end
