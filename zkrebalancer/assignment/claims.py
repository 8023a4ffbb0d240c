"""Who holds a partition now, when what the members say is put together."""

from __future__ import annotations

from zkrebalancer.assignment.model import Problem
from zkrebalancer.protocol.fields import TopicPartition


def current_owners(problem: Problem) -> dict[TopicPartition, str]:
    """Every partition that exists and that a member claims -> the consumer whose claim counts, in sorted order.

    Of two claims the higher generation counts, at equal generations the lower name. An owner that no longer subscribes
    to the topic is still its owner: it has to let go before another one may start.
    """
    owners: dict[TopicPartition, str] = {}
    newest_first = sorted(problem.members, key=lambda consumer: (-problem.members[consumer].generation, consumer))
    for consumer in newest_first:
        for topic, partition in problem.members[consumer].owned:
            if 0 <= partition < problem.topics.get(topic, 0):
                owners.setdefault((topic, partition), consumer)
    return dict(sorted(owners.items()))
