"""Central assignment: targets come from outside, member by member, and outside hears what each member holds.

A member that has its target is left alone: its epoch is its own, and the targets of others do not concern it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from zkrebalancer.group_protocol.consumer_protocol import PROTOCOL_TYPE
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember
from zkrebalancer.group_protocol.effects import Standing, Targeted
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import Partitions
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, JoinGroupRequest, OneGroup
from zkrebalancer.group_protocol.topics import Topic
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import InvalidNameError

if TYPE_CHECKING:
    from zkrebalancer.group_protocol.consumer_group import ConsumerGroup, Turn

FIRST_TARGET = "first-target"  # a timer of a member
MAX_FIRST_TARGET_MS = 10_000  # how long a newcomer is served with haste, and a classic one waits for its first target


class CentralTargets:
    """What each member of one group was given from outside, and the newcomers that were given nothing yet."""

    def __init__(self, group: ConsumerGroup) -> None:
        """Know of no target."""
        self._group = group
        self._given: dict[str, Targeted] = {}
        self._joins: dict[str, Turn] = {}  # of classic newcomers, answered when all of their first target is free
        self.newcomers: set[str] = set()  # members that wait for their first target

    def forget(self, member_id: str) -> None:
        """Drop a member that is gone."""
        self._given.pop(member_id, None)
        self.newcomers.discard(member_id)
        self._refuse(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def close(self, error: ErrorCode) -> None:
        """Refuse all who wait."""
        for member_id in [*self._joins]:
            self._refuse(member_id, error)

    def _refuse(self, member_id: str, error: ErrorCode) -> None:
        turn = self._joins.pop(member_id, None)
        if turn is not None:
            self._group.scheduler.reply(turn.ticket, turn.refuse(error))

    # ---- targets

    def give(self, member: ConsumerMember, targeted: Targeted) -> bool:
        """Note what a member shall have from now on; return whether that is something new."""
        self._given[member.member_id] = targeted
        if targeted.partitions:
            self._end_haste(member.member_id)
        topics = self._group.world.topics
        return not topics.is_known or self.target_of(member) != member.target

    def target_of(self, member: ConsumerMember) -> Partitions:
        """Return what was given and can be: clients take any assignment, and some loop over a topic they do not want.

        After a restart it is what was stored, until something is given anew.
        """
        topics = self._group.world.topics
        wanted = self._group.subscription(member)
        given = self._given.get(member.member_id)
        if given is None:
            return frozenset(one for one in member.target if topics.name_of.get(one[0]) in wanted)
        return frozenset(
            (topics.by_name[topic].topic_id, number)
            for topic, number in given.partitions
            if topic in wanted and number < topics.by_name[topic].partition_count
        )

    # ---- newcomers

    def hasten(self, member: ConsumerMember, session_timeout_ms: int) -> None:
        """Expect the first target of a newcomer, for a while."""
        if member.member_id in self._given or member.member_id in self.newcomers:
            return
        self.newcomers.add(member.member_id)
        key = (self._group.group_id, FIRST_TARGET, member.member_id)
        delay_ms = min(MAX_FIRST_TARGET_MS, session_timeout_ms * 3 // 4)
        self._group.scheduler.start_timer(key, delay_ms, lambda: self._waited_in_vain(member.member_id))

    def _end_haste(self, member_id: str) -> None:
        self.newcomers.discard(member_id)
        if member_id not in self._joins:
            self._group.cancel_timer(FIRST_TARGET, member_id)

    def _waited_in_vain(self, member_id: str) -> None:
        self.newcomers.discard(member_id)
        turn = self._joins.pop(member_id, None)
        if turn is not None:
            self._group.take_turn(turn)

    def hold_join(self, member: ConsumerMember, turn: Turn) -> bool:
        """Keep a classic newcomer's JoinGroup until it can be given something; return whether it is kept."""
        self._refuse(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier one, sent again
        if member.member_id not in self.newcomers or turn.member is not member:
            return False
        self._joins[member.member_id] = turn
        return True

    def due_joins(self) -> list[Turn]:
        """Take out the joins of newcomers whose whole target is free."""
        roster = self._group.roster
        due = []
        for member_id in [*self._joins]:
            member = roster.members[member_id]
            if member.target and all(map(roster.is_free_for(member), member.target)):
                due.append(self._joins.pop(member_id))
                self._end_haste(member_id)
        return due

    # ---- what is reported

    def standings(
        self, members: Iterable[ConsumerMember], names: Mapping[UUID, str], session_ms: int
    ) -> tuple[Standing, ...]:
        """Return how members stand; `session_ms` is that of clients of KIP-848."""
        return tuple(self._standing(member, names, session_ms) for member in members)

    def _standing(self, member: ConsumerMember, names: Mapping[UUID, str], session_ms: int) -> Standing:
        given = self._given.get(member.member_id)
        return Standing(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rack_id,
            member.topic_names,
            member.topic_regex,
            session_ms if member.classic is None else member.classic.session_timeout_ms,
            member.rebalance_timeout_ms,
            0 if given is None else given.number,
            frozenset((names[topic_id], number) for topic_id, number in member.position.held if topic_id in names),
        )


def is_consumers_join(request: OneGroup) -> bool:
    """Whether a client of the classic protocol joins a group of consumers: of other groups only clients can assign."""
    return isinstance(request, JoinGroupRequest) and request.protocol_type == PROTOCOL_TYPE


def join_error(request: OneGroup, *, is_ready: bool) -> ErrorCode:
    """Say why a client cannot join a central group: its name cannot be a consumer group's, or topics are not known."""
    if not is_consumers_join(request) and not isinstance(request, ConsumerGroupHeartbeatRequest):
        return ErrorCode.NONE
    try:
        paths.validate_name("group", request.group_id)
    except InvalidNameError:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE if is_ready else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def names_of(seen: Mapping[str, Topic]) -> dict[UUID, str]:
    """Return the names of topics by their ids."""
    return {topic.topic_id: name for name, topic in seen.items()}
