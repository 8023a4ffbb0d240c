"""ConsumerGroupHeartbeat: which clients are admitted or fenced, and what the answer contains."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from zkrebalancer.group_protocol.answers import Answer, ConsumerGroupHeartbeatAnswer, HeartbeatAssignment
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup, Turn
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, by_topic
from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState
from zkrebalancer.group_protocol.effects import Fenced, Received
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import Partitions, Position
from zkrebalancer.group_protocol.refusals import RefusedError, refused
from zkrebalancer.group_protocol.requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    NO_TIMEOUT,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from zkrebalancer.group_protocol.topics import Topics, check_expression
from zkrebalancer.protocol.errors import PatternError

MEMBER_ID_FROM_CLIENT = 1  # versions of ConsumerGroupHeartbeat


def validate(request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]) -> None:
    """Check everything that does not depend on the group.

    Raises:
        RefusedError: the request is invalid.

    """
    epoch = request.member_epoch
    needs_id = api_version >= MEMBER_ID_FROM_CLIENT or epoch != JOIN_EPOCH
    has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    for is_wrong, text in (
        (not request.group_id, "GroupId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (epoch < LEAVE_FOR_A_WHILE_EPOCH, "MemberEpoch is invalid."),
        (needs_id and not request.member_id, "MemberId can't be empty."),
        (epoch == LEAVE_FOR_A_WHILE_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        (epoch == JOIN_EPOCH and request.rebalance_timeout_ms == NO_TIMEOUT, "RebalanceTimeoutMs must be provided."),
        (epoch == JOIN_EPOCH and request.topic_partitions != (), "TopicPartitions must be empty when (re-)joining."),
        (epoch == JOIN_EPOCH and not has_topics, "SubscribedTopicNames or SubscribedTopicRegex must be set."),
    ):
        if is_wrong:
            raise RefusedError(ErrorCode.INVALID_REQUEST, text)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        text = f"ServerAssignor {request.server_assignor:.80} is not supported. Supported assignors: {known}."
        raise RefusedError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    if request.subscribed_topic_regex:
        try:
            check_expression(request.subscribed_topic_regex)
        except PatternError as error:
            raise RefusedError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None


def check_ids(request: ConsumerGroupHeartbeatRequest, group: ConsumerGroup | None, topics: Topics) -> None:
    """Check that all topics of a client have ids: it gets ids, and asks the brokers for the names.

    Raises:
        RefusedError: one has none. Clients end with this error.

    """
    if not topics.without_ids or request.member_epoch < JOIN_EPOCH:
        return
    member = None if group is None else group.roster.members.get(request.member_id)
    wanted = frozenset(request.subscribed_topic_names or ())
    if request.subscribed_topic_regex:
        wanted |= topics.matching(request.subscribed_topic_regex)
    if group is not None and member is not None:
        wanted |= group.subscription(member)
    missing = wanted & topics.without_ids
    if missing:
        why = "the brokers' inter.broker.protocol.version is below 2.8"
        text = f"Topic {min(missing)} has no id, because {why}: use group.protocol=classic."
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, text)


class Heartbeat:
    """One valid ConsumerGroupHeartbeat in the group that it is for."""

    def __init__(self, group: ConsumerGroup, received: Received, request: ConsumerGroupHeartbeatRequest) -> None:
        self._group = group
        self._received = received
        self._request = request
        self._owned = _partitions(request.topic_partitions)
        self._member_id = request.member_id or received.fresh_id
        self._is_new = False  # a member that was none before, even if it wants no topic yet

    def handle(self) -> None:
        """Answer the request, at once or when its changes are stored.

        Raises:
            RefusedError: the member is unknown or fenced, or the group is full.

        """
        if self._group.is_dead:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted.")
        if self._request.member_epoch < JOIN_EPOCH:
            self._leave()
            return
        member = self._joining() if self._request.member_epoch == JOIN_EPOCH else self._present()
        self._group.start_session(member)
        is_changed = self._update(member) or self._is_new
        if is_changed:
            self._group.bump(f"{member.member_id} subscribes")
        if not is_changed and self._has_nothing_new(member):
            self._group.scheduler.reply(self._received.ticket, self._answer(member, is_assignment_due=False))
            return
        turn = self._turn(
            member, lambda before: self._answer(member, is_assignment_due=self._is_assignment_due(member, before))
        )
        self._group.take_turn(turn)

    def _turn(self, member: ConsumerMember | None, answer: Callable[[Position], Answer]) -> Turn:
        return Turn(self._received.ticket, member, self._owned, answer, lambda error: refused(self._request, error))

    def _has_nothing_new(self, member: ConsumerMember) -> bool:
        """Whether the client knows the member's position, and nothing has to be written before the answer."""
        group, position = self._group, member.position
        return (
            position.epoch == self._request.member_epoch
            and position.has_reached(group.due_epoch(member, group.group_epoch))
            and member.member_id not in group.untold
            and not self._is_full()
            and self._owned in {None, position.assigned}
        )

    # ---- who it is

    def _joining(self) -> ConsumerMember:
        """Return the member, which may be a new one. A client that joins has given up all partitions."""
        group, instance_id = self._group, self._request.instance_id
        former = None if instance_id is None else group.roster.static_member(instance_id)
        present = group.roster.members.get(self._member_id)
        if present is not None:
            if instance_id is not None and present is not former:
                raise RefusedError(ErrorCode.FENCED_INSTANCE_ID, f"Member {self._member_id:.80} has another instance.")
            if present.position.state is not ConsumerMemberState.AWAY:
                return present
            former = present  # it returns under its own id
        if former is None:
            if len(group.roster.members) >= group.size_limit.max_size:
                raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The consumer group has reached its maximum size.")
            self._is_new = True
            member = ConsumerMember(self._member_id, instance_id)
            group.roster.add(member)
            if group.central is not None:
                group.central.expect(member, group.world.settings.consumer_session_timeout_ms)
            return member
        if former.classic is None and former.position.state is not ConsumerMemberState.AWAY:
            raise RefusedError(ErrorCode.UNRELEASED_INSTANCE_ID, f"Instance id {instance_id} is in use.")
        return replace_static(group, former, self._member_id)

    def _known(self) -> ConsumerMember:
        request, roster = self._request, self._group.roster
        if error := roster.check(request.member_id, request.instance_id):
            raise RefusedError(error, f"Member {request.member_id:.80}: {error.name}")
        return roster.members[request.member_id]

    def _present(self) -> ConsumerMember:
        request, member = self._request, self._known()
        if member.classic is not None:  # it becomes one of this protocol by joining
            raise RefusedError(ErrorCode.FENCED_MEMBER_EPOCH, "The member speaks the classic protocol.")
        position = member.position
        if request.member_epoch == position.epoch:
            return member
        has_missed_an_answer = (
            request.member_epoch == position.previous_epoch
            and self._owned is not None
            and self._owned <= position.assigned
        )
        if not has_missed_an_answer:
            text = f"The member's epoch is {position.epoch}. It must abandon all its partitions and rejoin."
            raise RefusedError(ErrorCode.FENCED_MEMBER_EPOCH, text)
        return member

    def _leave(self) -> None:
        request, group, member = self._request, self._group, self._known()
        answer = ConsumerGroupHeartbeatAnswer(ErrorCode.NONE, None, member.member_id, request.member_epoch)
        if request.member_epoch == LEAVE_EPOCH:
            group.fence(member, "it left", self._turn(None, lambda _before: answer))
        else:  # its session continues; what it was giving up is free, because it has stopped
            if member.position.state is not ConsumerMemberState.AWAY:  # else it repeats this, for want of an answer
                away = Position(
                    LEAVE_FOR_A_WHILE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, ConsumerMemberState.AWAY, member.position.assigned
                )
                group.move(member, away)
            group.take_turn(self._turn(member, lambda _before: answer))

    # ---- what it wants

    def _update(self, member: ConsumerMember) -> bool:
        """Apply the request to the member; return whether the subscription changed."""
        request = self._request
        before = (member.topic_names, member.topic_regex)
        others = (member.rack_id, member.rebalance_timeout_ms, member.server_assignor, member.classic)
        if request.subscribed_topic_names is not None:
            member.topic_names = tuple(sorted(set(request.subscribed_topic_names)))
        if request.subscribed_topic_regex is not None:
            member.topic_regex = request.subscribed_topic_regex
        if request.rebalance_timeout_ms != NO_TIMEOUT:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.rack_id = request.rack_id if request.rack_id is not None else member.rack_id
        member.server_assignor = request.server_assignor or member.server_assignor
        member.client_id, member.client_host = self._received.client_id, self._received.client_host
        self._group.roster.set_classic(member, None)
        if others != (member.rack_id, member.rebalance_timeout_ms, member.server_assignor, member.classic):
            self._group.note_change()
        self._group.size_limit.check(member)
        return before != (member.topic_names, member.topic_regex)

    # ---- what it is told

    def _is_full(self) -> bool:
        request = self._request
        return request.member_epoch == JOIN_EPOCH or (
            request.rebalance_timeout_ms != NO_TIMEOUT
            and request.subscribed_topic_names is not None
            and request.topic_partitions is not None
        )

    def _is_assignment_due(self, member: ConsumerMember, before: Position) -> bool:
        return (
            self._is_full()
            or member.position.assigned != before.assigned
            or member.member_id in self._group.untold
            or self._owned not in {None, member.position.assigned}  # it may have missed an answer
        )

    def _answer(self, member: ConsumerMember, *, is_assignment_due: bool) -> ConsumerGroupHeartbeatAnswer:
        group = self._group
        is_awaited = group.central is not None and group.central.is_awaited
        is_urgent = is_awaited or bool(group.roster.unsettled) or group.group_epoch != group.target_epoch
        return ConsumerGroupHeartbeatAnswer(
            ErrorCode.NONE,
            None,
            member.member_id,
            member.position.epoch,
            group.world.intervals.interval_ms(group.group_id, len(group.roster.members), is_urgent=is_urgent),
            HeartbeatAssignment(_topic_partitions(member.position.assigned)) if is_assignment_due else None,
        )


def replace_static(group: ConsumerGroup, former: ConsumerMember, member_id: str) -> ConsumerMember:
    """Replace a static member by its later self, which gets its partitions under another id."""
    position = Position(0, 0, ConsumerMemberState.STABLE, former.position.assigned)
    group.remove(former)
    member = replace(former, member_id=member_id, classic=None, position=position, kept=None)
    group.roster.add(member)
    group.roster.note_progress(member, group.target_epoch)
    return member


def fence_member(group: ConsumerGroup, fenced: Fenced) -> None:
    """Remove a member; if another consumer has its instance id, its client ends with an error."""
    member = group.roster.members.get(fenced.member_id)
    if member is None or group.is_dead:
        return
    if fenced.for_good:
        group.roster.note_fenced(member)
    group.fence(member, "another consumer has its instance id" if fenced.for_good else "the coordinator has evicted it")


def _partitions(topics: tuple[TopicPartitions, ...] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def _topic_partitions(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic(partitions).items())
