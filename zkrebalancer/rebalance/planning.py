"""From a group's view to the strategy's problem, and from its answer to a target that may be carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.assignment.model import Problem
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.plan import Target
from zkrebalancer.rebalance.view import Member

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group


def make_problem(group: Group) -> Problem:
    """Return what the strategy has to decide; topics whose offsets must be reset first are left out."""
    resetting = group.topic_reset.stale_topics()
    fenced = group.static_members.fenced()
    members = {}
    for consumer in sorted(group.view.members):
        member = group.view.members[consumer]
        if member.registration is None or member.evicting or not member.registered or consumer in fenced:
            continue
        threads = {t: n for t, n in resolve(group, member).items() if t not in resetting}
        claims = group.static_members.claims_of(member, fenced) | dict(group.view.held_by(consumer))
        members[consumer] = ProblemMember(
            threads=threads,
            owned=_by_topic(claims),
            generation=member.owners.generation if member.owners else 0,
            instance_id=member.registration.instance_id,
            rack=member.registration.rack,
            capacity=member.registration.capacity,
        )
    members.update(group.static_members.absent())
    wanted = {topic for member in members.values() for topic in member.threads}
    return Problem({topic: _count(group, topic) for topic in sorted(wanted) if topic in group.topics}, members)


def admissible(group: Group, target: Target) -> Target:
    """Leave out of a strategy's answer what cannot be: consumers that are gone, partitions that do not exist.

    A frozen group keeps every held partition where it is.
    """
    view = group.view
    result: Target = {}
    for consumer in view.members:
        wanted = target.get(consumer, {})
        result[consumer] = {tp: thread for tp, thread in wanted.items() if exists(group, tp)}
    if not view.settings.frozen:
        return result
    stale = group.topic_reset.stale_topics()
    for consumer, wanted in result.items():
        held = view.held_by(consumer)
        result[consumer] = {tp: thread for tp, thread in wanted.items() if not view.holders(tp)}
        result[consumer].update({tp: thread for tp, thread in held.items() if exists(group, tp) and tp[0] not in stale})
    return result


def resolve(group: Group, member: Member) -> dict[str, int]:
    """Return the topics that a consumer wants, with its number of threads for each."""
    if member.registration is None:
        return {}
    try:
        return dict(group.leadership.subscriptions.resolve(member.registration))
    except PatternError as error:
        if not member.pattern_refused:
            group.desk.warn(f"group {group.name}: consumer {member.consumer} gets nothing: {error}")
        member.pattern_refused = True
        return {}


def exists(group: Group, partition: TopicPartition) -> bool:
    """Whether the cluster has the partition now."""
    topic = group.topics.get(partition[0])
    return topic is not None and partition[1] in topic.partitions


def _count(group: Group, topic: str) -> int:
    return max(group.topics[topic].partitions, default=-1) + 1


def _by_topic(partitions: dict[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), thread in partitions.items():
        topics.setdefault(topic, {})[partition] = thread
    return topics
