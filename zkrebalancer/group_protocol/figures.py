"""What metrics show of a group, and which partitions its members read."""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.group_protocol import classic_requests, consumer_requests
from zkrebalancer.group_protocol.answers import ListedGroup
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup


def listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    """Return the group as it appears in a list."""
    return classic_requests.listed(group) if isinstance(group, ClassicGroup) else consumer_requests.listed(group)


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """`group_type` is `classic` or `consumer`; `generation` is the generation of the former, or the latter's epoch."""

    group: str
    state: str
    group_type: str
    members: int
    generation: int

    @classmethod
    def of(cls, group: ClassicGroup | ConsumerGroup) -> GroupFigures:
        """Count in one group."""
        shown = listed(group)
        generation = group.generation_id if isinstance(group, ClassicGroup) else group.group_epoch
        members = len(group.roster.members)
        return cls(shown.group_id, shown.group_state, shown.group_type, members, generation)


def reads(group: ClassicGroup | ConsumerGroup, topic: str, number: int) -> bool:
    """Whether the group's members read a partition; in a classic group, which only its leader knows, it may be any."""
    if isinstance(group, ClassicGroup):
        return bool(group.roster.members)
    known = group.world.topics.by_name.get(topic)
    return known is not None and not group.roster.is_free((known.topic_id, number))
