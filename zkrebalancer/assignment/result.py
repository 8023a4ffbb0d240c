"""Compares an assignment with the current owners: partitions kept, moved and left unassigned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Assignment, Problem
from zkrebalancer.protocol.fields import TopicPartition

NO_SUBSCRIBER = "no subscriber"
WITHHELD = "withheld until revoked"


@dataclass(frozen=True, slots=True)
class Summary:
    """How many assigned partitions stay with their owner (`kept`) or come from another one (`moved`).

    If several members claim a partition in the same generation, each counts as its owner.
    `unassigned`: topic -> sorted (partition, reason); the reason is NO_SUBSCRIBER or WITHHELD.
    """

    kept: int
    moved: int
    unassigned: Mapping[str, tuple[tuple[int, str], ...]]


def summarize(problem: Problem, assignment: Assignment) -> Summary:
    """Compare an assignment of `problem` with its members' claims."""
    targets = dict(_targets(assignment))
    owners = current_owners(problem)
    kept = sum(_owns(problem, targets.get(partition), partition, owner) for partition, owner in owners.items())
    moved = sum(topic_partition in targets for topic_partition in owners) - kept
    subscribed = {topic for member in problem.members.values() for topic in member.threads}
    unassigned: dict[str, tuple[tuple[int, str], ...]] = {}
    for topic in sorted(problem.topics):
        reason = WITHHELD if topic in subscribed else NO_SUBSCRIBER
        missing = tuple(
            (partition, reason) for partition in range(problem.topics[topic]) if (topic, partition) not in targets
        )
        if missing:
            unassigned[topic] = missing
    return Summary(kept, moved, unassigned)


def _owns(problem: Problem, consumer: str | None, partition: TopicPartition, owner: str) -> bool:
    """Whether the consumer is the partition's owner, or claims it in the owner's generation."""
    if consumer is None or consumer == owner:
        return consumer == owner
    member = problem.members[consumer]
    return partition in member.owned and member.generation == problem.members[owner].generation


def _targets(assignment: Assignment) -> Iterator[tuple[TopicPartition, str]]:
    for consumer, threads in assignment.items():
        for topics in threads.values():
            for topic, partitions in topics.items():
                for partition in partitions:
                    yield (topic, partition), consumer
