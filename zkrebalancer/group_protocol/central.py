"""Central assignment: targets come from outside, member by member, and each member's position is reported.

Each member has its own epoch, so targets of other members do not affect a member that has its target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from zkrebalancer.group_protocol.consumer_protocol import PROTOCOL_TYPE, needs_own_assignor
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, Description
from zkrebalancer.group_protocol.effects import Standing, Targeted
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import NOTHING, Partition, Partitions
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, JoinGroupRequest, OneGroup
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import InvalidNameError, PatternError
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import MAX_TOPICS, STATIC, WHITE_LIST

if TYPE_CHECKING:
    from zkrebalancer.group_protocol.consumer_group import ConsumerGroup, Turn

FIRST_TARGET = "first-target"  # a timer of a member
HASTE = "haste"  # a timer of the group
MAX_FIRST_TARGET_MS = 10_000  # longest time for short heartbeat intervals, or a held join, before the first target
MAX_NAMES_BYTES = 950_000  # of topics, as a registration has them: a request to ZooKeeper has 1,000,000
NAME_BYTES = 5  # of a topic there, besides its name
MAX_REST_MS = 3_000  # longest time for which a held join waits for more: after Kafka's default interval, clients know


class CentralTargets:
    """The targets of one group's members, and the newcomers without a target."""

    def __init__(self, group: ConsumerGroup) -> None:
        """Start without targets."""
        self._group = group
        self._given: dict[str, Targeted] = {}
        self._joins: dict[str, Turn] = {}  # of classic newcomers; answered when their whole first share is free
        self._newcomers: dict[str, int] = {}  # members that wait for their first target, or share -> until when, in ms
        self._released: set[Partition] = set()  # given up lately, and not yet given to a member
        self._is_changed = False  # whether a held join may be due, since `due_joins` last looked at all of them
        self._names: Mapping[UUID, str] = {}  # of the topics, as last reported
        self._reported: dict[str, tuple[Description, Standing]] = {}  # of each member: of what it was made

    def forget(self, member_id: str) -> None:
        """Forget a member that is gone."""
        self._given.pop(member_id, None)
        self._reported.pop(member_id, None)
        self._newcomers.pop(member_id, None)
        self.refuse(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def close(self, error: ErrorCode) -> None:
        """Refuse all held joins."""
        for member_id in [*self._joins]:
            self.refuse(member_id, error)

    def refuse(self, member_id: str, error: ErrorCode) -> None:
        """Refuse a held join, if there is one."""
        turn = self._joins.pop(member_id, None)
        if turn is not None:
            self._group.scheduler.reply(turn.ticket, turn.refuse(error))

    # ---- targets

    def give(self, member: ConsumerMember, targeted: Targeted) -> bool:
        """Set a member's target; return whether it changes anything."""
        self._given[member.member_id] = targeted
        if targeted.partitions and member.member_id not in self._joins:
            self._admit(member.member_id)
        target = self.target_of(member)
        self._released -= target
        return not self._group.world.topics.is_known or target != member.target

    def target_of(self, member: ConsumerMember) -> Partitions:
        """Return a member's target, without partitions that do not exist or that the member does not want.

        Clients accept any assignment, and some loop over a topic that they do not want. After a restart, the stored
        target applies until there is a new one.
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

    # ---- haste

    @property
    def is_awaited(self) -> bool:
        """Whether targets are expected, so that clients should hear of them soon."""
        return bool(self._newcomers) or self._is_in_haste

    @property
    def _is_in_haste(self) -> bool:
        return self._group.scheduler.has_timer((self._group.group_id, HASTE, ""))

    def hurry(self, released: Partitions = NOTHING) -> None:
        """Expect targets for one usual interval, because what was released will be given to members.

        A newcomer gets its share piece by piece, as others let go. Without this, its client would hear of a later piece
        only a usual interval after an earlier one.
        """
        self._released |= released
        self.look_again()
        interval_ms = self._group.world.settings.consumer_heartbeat_interval_ms
        self._group.scheduler.start_timer((self._group.group_id, HASTE, ""), interval_ms, self._end_haste)

    def _end_haste(self) -> None:
        self._released.clear()
        self.look_again()
        if self._joins:
            self._group.advance()

    # ---- newcomers

    def expect(self, member: ConsumerMember, session_timeout_ms: int) -> None:
        """Expect the first target of a newcomer, for a limited time."""
        self._limit_wait(member.member_id, min(MAX_FIRST_TARGET_MS, session_timeout_ms * 3 // 4))

    def _limit_wait(self, member_id: str, delay_ms: int) -> None:
        """Wait for a newcomer no longer than this from now on, or for less if that was said before."""
        until_ms = self._group.scheduler.now_ms + delay_ms
        if self._newcomers.get(member_id, until_ms) >= until_ms:
            self._newcomers[member_id] = until_ms
            key = (self._group.group_id, FIRST_TARGET, member_id)
            self._group.scheduler.start_timer(key, delay_ms, lambda: self._waited_in_vain(member_id))

    def _admit(self, member_id: str) -> None:
        self._newcomers.pop(member_id, None)
        self._group.cancel_timer(FIRST_TARGET, member_id)

    def _waited_in_vain(self, member_id: str) -> None:
        self._newcomers.pop(member_id, None)
        turn = self._joins.pop(member_id, None)
        if turn is not None:
            self._group.take_turn(turn)

    def hold_join(self, member: ConsumerMember, turn: Turn) -> bool:
        """Hold a classic newcomer's JoinGroup until its first share is free; return whether it is held."""
        self.refuse(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # an earlier one, which the client repeated
        if member.member_id not in self._newcomers or turn.member is not member:
            return False
        self._joins[member.member_id] = turn
        self.look_again()
        return True

    def look_again(self) -> None:
        """Note a change after which a held join may be due: thousands of heartbeats may come between two of them."""
        self._is_changed = True

    def due_joins(self) -> list[Turn]:
        """Remove and return the joins of newcomers whose whole share is free, as far as can be told.

        What comes later costs a client another join, and it learns of that only with a heartbeat.
        """
        if not self._is_changed:
            return []
        self._is_changed = False
        roster = self._group.roster
        members = [roster.members[member_id] for member_id in self._joins]
        ready = [one.member_id for one in members if one.target and all(map(roster.is_free_for(one), one.target))]
        if ready and self._is_more_to_come():
            for member_id in ready:
                self._limit_wait(member_id, MAX_REST_MS)
            return []
        for member_id in ready:
            self._admit(member_id)
        return [self._joins.pop(member_id) for member_id in ready]

    def _is_more_to_come(self) -> bool:
        """Whether partitions were released, or will soon be; a client that knows but is slow is not waited for."""
        roster = self._group.roster
        if any(map(roster.is_free, self._released)):
            return True
        unsettled = (roster.members[member_id] for member_id in roster.unsettled)
        giving_up = (member for member in unsettled if not member.position.held <= member.target)
        return any(self._is_in_haste or not self._group.is_told(member) for member in giving_up)

    # ---- what is reported

    def standings(self, names: Mapping[UUID, str]) -> tuple[Standing, ...]:
        """Return all members as they are reported; one that has not changed has the same `Standing` as before.

        `names`: those of the topics, by id.
        """
        if names != self._names:
            self._names = names
            self._reported.clear()
        return tuple(map(self._standing, self._group.roster.members.values()))

    def _standing(self, member: ConsumerMember) -> Standing:
        given = self._given.get(member.member_id)
        description = (given, member.description())
        known = self._reported.get(member.member_id)
        if known is None or known[0] != description:
            known = self._reported[member.member_id] = description, self._new_standing(member, given)
        return known[1]

    def _new_standing(self, member: ConsumerMember, given: Targeted | None) -> Standing:
        names, classic = self._names, member.classic
        usual_ms = self._group.world.settings.consumer_session_timeout_ms
        return Standing(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rack_id,
            member.topic_names,
            member.topic_regex,
            usual_ms if classic is None else classic.session_timeout_ms,
            member.rebalance_timeout_ms,
            0 if given is None else given.number,
            frozenset((names[topic_id], number) for topic_id, number in member.position.held if topic_id in names),
        )


def is_consumers_join(request: OneGroup) -> bool:
    """Whether a classic client joins a consumer group; in others, and in Kafka Streams, only clients can assign."""
    if not isinstance(request, JoinGroupRequest) or request.protocol_type != PROTOCOL_TYPE:
        return False
    return not needs_own_assignor(protocol.name for protocol in request.protocols)


def join_error(request: OneGroup, *, is_ready: bool) -> ErrorCode:
    """Return why a client cannot join a central group: the group's name is invalid, or topics are not known yet."""
    if not is_consumers_join(request) and not isinstance(request, ConsumerGroupHeartbeatRequest):
        return ErrorCode.NONE
    try:
        paths.validate_name("group", request.group_id)
    except InvalidNameError:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE if is_ready else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# ---- what a member's registration may name


def registered_as(names: Iterable[str], expression: str) -> tuple[str, dict[str, int]]:
    """Return the kind of a member's subscription as it is registered, and the topics, or the one expression."""
    legal = [name for name in names if paths.is_legal_topic(name)]
    if not expression:
        return STATIC, dict.fromkeys(legal, 1)
    return WHITE_LIST, {f"^(?:{'|'.join([f'(?:{expression})', *map(re.escape, legal)])})$": 1}


def check_registration(names: Iterable[str], expression: str) -> None:
    """Check that the coordinator will read the registration of a member that wants these topics.

    Raises:
        RefusedError: it names too many, or they are too long. Otherwise the member would get nothing, without an error.

    """
    pattern, subscription = registered_as(names, expression)
    if pattern == WHITE_LIST:
        try:
            TopicFilter(pattern, *subscription)
        except PatternError as error:
            raise RefusedError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"With all topics: {error}") from None
        return
    count = len(subscription)
    size = sum(map(len, subscription)) + NAME_BYTES * count
    if count > MAX_TOPICS or size > MAX_NAMES_BYTES:
        text = f"a request is refused: {count} topics of {size} bytes, more than {MAX_TOPICS} or {MAX_NAMES_BYTES}"
        raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, text, text)


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, group: ConsumerGroup | None) -> None:
    """Check what a member of KIP-848 would be subscribed to; raises as `check_registration`."""
    names, expression = request.subscribed_topic_names, request.subscribed_topic_regex
    if names is None and expression is None:
        return
    member = None if group is None else group.roster.members.get(request.member_id)
    if member is None and group is not None and request.instance_id is not None:
        member = group.roster.static_member(request.instance_id)
    if member is not None:
        names = member.topic_names if names is None else names
        expression = member.topic_regex if expression is None else expression
    check_registration(dict.fromkeys(names or ()), expression or "")
