"""Sticky: as balanced as the subscriptions allow, and then as few moves as possible.

Members are balanced first (what moves between consumers costs a pause), then each member's share over its own threads.
Source of the rules: Kafka's `StickyAssignor`; ours is exact where that one is a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Assignment, Member, Problem, ordered_consumers, to_assignment
from zkrebalancer.assignment.spread import spread
from zkrebalancer.protocol.fields import TopicPartition


def assign_sticky(problem: Problem) -> Assignment:
    """Balance members within one where the subscriptions allow it, with the fewest moves between members.

    A member's partitions are then spread over its threads in the same way. A claim counts for a partition that exists,
    of a topic that the member still subscribes to, and that no newer claim contradicts.
    """
    return to_assignment(problem, _placements(problem))


def _placements(problem: Problem) -> Iterator[tuple[str, int, str, tuple[int]]]:
    topics_of = {
        consumer: [topic for topic in problem.members[consumer].threads if topic in problem.topics]
        for consumer in ordered_consumers(problem)
    }
    claims: dict[str, list[TopicPartition]] = {consumer: [] for consumer in topics_of}
    for (topic, partition), consumer in current_owners(problem).items():
        if topic in problem.members[consumer].threads:
            claims[consumer].append((topic, partition))
    shares = spread(
        topics_of,
        {topic: range(problem.topics[topic]) for topics in topics_of.values() for topic in topics},
        {consumer: _threads_in_turn(problem.members[consumer], claimed) for consumer, claimed in claims.items()},
    )
    for consumer, share in shares.items():
        for thread, (topic, partition) in _over_threads(problem.members[consumer], share):
            yield consumer, thread, topic, (partition,)


def _threads_in_turn(member: Member, claimed: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Order what a member holds: one of each thread, then a second one of each, so that full threads give up first."""
    turn_of_thread: dict[int, int] = {}
    order: list[tuple[int, int, TopicPartition]] = []
    for topic, partition in claimed:
        thread = member.owned[topic][partition]
        turn = turn_of_thread.get(thread, 0)
        turn_of_thread[thread] = turn + 1
        order.append((turn, thread, (topic, partition)))
    return [topic_partition for _, _, topic_partition in sorted(order)]


def _over_threads(member: Member, share: Sequence[TopicPartition]) -> Iterator[tuple[int, TopicPartition]]:
    """Spread a member's partitions over those of its threads that read their topics, keeping the thread they are on."""
    partitions: dict[str, list[int]] = {}
    claims: dict[int, list[TopicPartition]] = {}
    for topic, partition in sorted(share):
        partitions.setdefault(topic, []).append(partition)
        thread = member.owned.get(topic, {}).get(partition)
        if thread is not None and thread < member.threads[topic]:
            claims.setdefault(thread, []).append((topic, partition))
    thread_count = max((member.threads[topic] for topic in partitions), default=0)
    topics_of = {
        thread: [topic for topic in partitions if thread < member.threads[topic]] for thread in range(thread_count)
    }
    for thread, topic_partitions in spread(topics_of, partitions, claims).items():
        for topic_partition in topic_partitions:
            yield thread, topic_partition
