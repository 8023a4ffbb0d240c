"""The current owner of each partition, from the claims of all members."""

from __future__ import annotations

from zkrebalancer.assignment.model import Problem
from zkrebalancer.protocol.fields import TopicPartition


def current_owners(problem: Problem) -> dict[TopicPartition, str]:
    """Return partition -> current owner for every existing, claimed partition, sorted.

    Of two claims, the newer generation wins; in the same generation, the lower name. A consumer that no longer
    subscribes to the topic still owns the partition until it has stopped it.
    """
    owners: dict[TopicPartition, str] = {}
    newest_first = sorted(problem.members, key=lambda consumer: (-problem.members[consumer].generation, consumer))
    for consumer in newest_first:
        for topic, partition in problem.members[consumer].owned:
            if 0 <= partition < problem.topics.get(topic, 0):
                owners.setdefault((topic, partition), consumer)
    return dict(sorted(owners.items()))
