"""Cooperative sticky, first round: the sticky target, without what somebody else still has to let go.

Source: Kafka's `CooperativeStickyAssignor`. Once the owners have revoked, a second round assigns what was withheld.
"""

from __future__ import annotations

from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Assignment, Problem, to_assignment
from zkrebalancer.assignment.sticky import assign_sticky


def assign_cooperative_sticky(problem: Problem) -> Assignment:
    """Assign as sticky does, but nobody a partition that has another owner now, even one that no longer subscribes."""
    owners = current_owners(problem)
    return to_assignment(
        problem,
        (
            (consumer, thread, topic, (partition,))
            for consumer, threads in assign_sticky(problem).items()
            for thread, topics in threads.items()
            for topic, partitions in topics.items()
            for partition in partitions
            if owners.get((topic, partition), consumer) == consumer
        ),
    )
