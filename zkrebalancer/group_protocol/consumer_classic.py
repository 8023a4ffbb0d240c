"""Members of a KIP-848 group that still speak the classic protocol: their epoch is their generation.

There is no leader. Each member joins and syncs alone, rejoins when its heartbeat's answer asks for it, and gets what
is free.
"""

from __future__ import annotations

from zkrebalancer.group_protocol.answers import (
    HeartbeatAnswer,
    JoinGroupAnswer,
    LeaveGroupAnswer,
    LeaveGroupMember,
    SyncGroupAnswer,
)
from zkrebalancer.group_protocol.central import check_registration
from zkrebalancer.group_protocol.consumer_group import JOIN, SYNC, ConsumerGroup, Turn
from zkrebalancer.group_protocol.consumer_heartbeat import replace_static
from zkrebalancer.group_protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    SubscriptionError,
    needs_own_assignor,
    read_subscription,
    read_version,
    write_assignment,
)
from zkrebalancer.group_protocol.consumer_roster import ClassicSide, ConsumerMember, ConsumerRoster, by_topic
from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState
from zkrebalancer.group_protocol.effects import Received
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import Partitions
from zkrebalancer.group_protocol.refusals import ONE_MEMBER_UNTIL, RefusedError
from zkrebalancer.group_protocol.requests import (
    MEMBER_ID_REQUIRED_FROM,
    NO_TIMEOUT,
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)


def handle(
    group: ConsumerGroup,
    received: Received,
    request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest,
) -> None:
    """Answer a request of the classic protocol.

    Raises:
        RefusedError: with the error for the client.

    """
    if group.is_dead:
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    match request:
        case JoinGroupRequest():
            join(group, received, request)
        case SyncGroupRequest():
            sync(group, received.ticket, request)
        case HeartbeatRequest():
            heartbeat(group, received.ticket, request)
        case LeaveGroupRequest():
            leave(group, received, request)


# ---- JoinGroup


def join(group: ConsumerGroup, received: Received, request: JoinGroupRequest) -> None:
    """Admit a classic client, or move it towards its target.

    Raises:
        RefusedError: it cannot be a member.

    """
    members = group.roster.members
    if len(members) >= group.size_limit.max_size and request.member_id not in members:
        raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    subscription = _subscription(group, request)
    if group.central is not None:
        check_registration(subscription.topics, "")
    member_id = request.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        member_id = received.new_member_id(request.group_instance_id)
        if request.group_instance_id is None and received.api_version >= MEMBER_ID_REQUIRED_FROM:
            group.scheduler.reply(received.ticket, JoinGroupAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
    group.world.kept.check_subscription(request, received.client_id, subscription, group)
    count = len(members)
    member = _member(group, request, member_id, is_claiming=any(subscription.owned.values()))
    is_changed = _update(group, member, received, request, subscription)
    if is_changed or len(members) > count:  # a new member may want no topic yet
        group.bump(f"{member.member_id} subscribes")
    names = group.world.topics.by_name
    owned = frozenset(
        (names[topic].topic_id, number)
        for topic, numbers in subscription.owned.items()
        if topic in names
        for number in numbers
    )
    name = request.protocols[0].name  # not the request: its metadata would be kept until the answer
    turn = Turn(
        received.ticket,
        member,
        owned,
        lambda _before: _joined(group, member, name),
        lambda error: JoinGroupAnswer(error, member.member_id),
    )
    if group.central is not None and group.central.hold_join(member, turn):
        group.advance()  # the member is stored, and reported
    else:
        group.take_turn(turn)


def _subscription(group: ConsumerGroup, request: JoinGroupRequest) -> Subscription:
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != PROTOCOL_TYPE or needs_own_assignor(names) or not group.roster.supports(names):
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return read_subscription(request.protocols[0].metadata)
    except SubscriptionError as error:
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _member(group: ConsumerGroup, request: JoinGroupRequest, member_id: str, *, is_claiming: bool) -> ConsumerMember:
    """Return the member; as in Kafka, a dynamic member with an unknown id is a new one.

    In a central group, it is refused if it reports partitions: it was fenced, and has to learn that first.
    """
    roster, instance_id = group.roster, request.group_instance_id
    former = None if instance_id is None else roster.static_member(instance_id)
    if instance_id is not None and request.member_id != UNKNOWN_MEMBER_ID:
        _check(roster, member_id, instance_id)
    present = roster.members.get(member_id)
    if present is not None:
        if present.position.state is not ConsumerMemberState.AWAY:
            return present
        former = present  # it returns under its own id
    if former is not None:
        return replace_static(group, former, member_id)
    if group.central is not None and is_claiming:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = ConsumerMember(member_id, instance_id)
    roster.add(member)
    if group.central is not None:
        group.central.expect(member, request.session_timeout_ms)
    return member


def _update(
    group: ConsumerGroup,
    member: ConsumerMember,
    received: Received,
    request: JoinGroupRequest,
    subscription: Subscription,
) -> bool:
    """Apply the request to the member; return whether the subscription changed."""
    topics = tuple(sorted(set(subscription.topics)))
    is_changed = (topics, "") != (member.topic_names, member.topic_regex)
    classic = ClassicSide(request.session_timeout_ms, request.protocols)
    timeout_ms = request.rebalance_timeout_ms
    member.topic_names, member.topic_regex, member.rack_id = topics, "", subscription.rack_id
    member.rebalance_timeout_ms = request.session_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms
    member.client_id, member.client_host = received.client_id, received.client_host
    if classic != member.classic:
        group.roster.set_classic(member, classic)
        group.note_change()
    group.start_session(member)
    group.size_limit.check(member)
    return is_changed


def _joined(group: ConsumerGroup, member: ConsumerMember, name: str) -> JoinGroupAnswer:
    group.cancel_timer(JOIN, member.member_id)
    group.cancel_timer(SYNC, member.member_id)
    group.start_timer(SYNC, member, "it did not ask for its assignment in time")
    return JoinGroupAnswer(ErrorCode.NONE, member.member_id, member.position.epoch, PROTOCOL_TYPE, name)


# ---- SyncGroup, Heartbeat, LeaveGroup


def sync(group: ConsumerGroup, ticket: int, request: SyncGroupRequest) -> None:
    """Answer with the partitions that the member has.

    Raises:
        RefusedError: it has to join first, or is no member.

    """
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    classic = member.classic
    first = classic.protocols[0] if classic is not None else None
    if first is None or request.protocol_type not in {None, PROTOCOL_TYPE}:
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name not in {None, first.name}:
        raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_behind = group.due_epoch(member, group.group_epoch) > member.position.epoch
    if is_behind and member.position.state is not ConsumerMemberState.UNREVOKED:
        _call_to_join(group, member)
        raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
    group.cancel_timer(SYNC, member.member_id)
    group.start_session(member)
    version = read_version(first.metadata)
    assignment = write_assignment(version, named(group, member.position.assigned))
    group.scheduler.reply(ticket, SyncGroupAnswer(ErrorCode.NONE, PROTOCOL_TYPE, first.name, assignment))


def named(group: ConsumerGroup, partitions: Partitions) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions, without topics that are gone."""
    names = group.world.topics.name_of
    return {names[found]: numbers for found, numbers in by_topic(partitions).items() if found in names}


def heartbeat(group: ConsumerGroup, ticket: int, request: HeartbeatRequest) -> None:
    """Renew the session, and answer whether the member has to join again.

    Raises:
        RefusedError: it is no member.

    """
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    group.start_session(member)
    error = ErrorCode.NONE
    if _has_to_join(group, member):
        _call_to_join(group, member)
        error = ErrorCode.REBALANCE_IN_PROGRESS
    group.scheduler.reply(ticket, HeartbeatAnswer(error))


def _has_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether there is a newer target, something to give up, or something to get that is free now."""
    position = member.position
    if position.epoch < group.due_epoch(member, group.group_epoch):  # even while it still has something to give up
        return True
    is_free = group.roster.is_free_for(member)
    return position.state is ConsumerMemberState.UNRELEASED and all(map(is_free, member.target - position.assigned))


def _call_to_join(group: ConsumerGroup, member: ConsumerMember) -> None:
    group.start_timer(JOIN, member, "it did not join again in time")
    if group.central is not None:
        group.central.look_again()
        group.advance()  # a newcomer no longer waits for a member that knows


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ConsumerMember:
    _check(group.roster, member_id, instance_id)
    member = group.roster.members[member_id]
    if member.classic is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation_id != member.position.epoch:
        raise RefusedError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _check(roster: ConsumerRoster, member_id: str, instance_id: str | None) -> None:
    if error := roster.check(member_id, instance_id):
        raise RefusedError(error)


def leave(group: ConsumerGroup, received: Received, request: LeaveGroupRequest) -> None:
    """Remove the named members, those of KIP-848 too (an administrator), and answer when that is stored."""
    results = tuple(
        LeaveGroupMember(member.member_id, member.group_instance_id, _let_go(group, member))
        for member in request.members
    )
    is_one = received.api_version <= ONE_MEMBER_UNTIL and bool(results)
    answer = LeaveGroupAnswer(results[0].error_code if is_one else ErrorCode.NONE, results)
    if all(result.error_code for result in results):
        group.scheduler.reply(received.ticket, answer)
    else:
        group.go_on_without("members left", Turn(received.ticket, None, None, lambda _: answer, LeaveGroupAnswer))


def _let_go(group: ConsumerGroup, identity: MemberIdentity) -> ErrorCode:
    roster = group.roster
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER_ID and identity.group_instance_id is not None:
        named_member = roster.static_member(identity.group_instance_id)
        member_id = UNKNOWN_MEMBER_ID if named_member is None else named_member.member_id
    if error := roster.check(member_id, identity.group_instance_id):
        return error
    group.remove(roster.members[member_id])
    return ErrorCode.NONE
