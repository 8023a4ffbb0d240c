"""What each request does to a classic group, except for JoinGroup, and the group's descriptions."""

from __future__ import annotations

from zkrebalancer.group_protocol.answers import (
    DescribedGroup,
    DescribedMember,
    HeartbeatAnswer,
    LeaveGroupAnswer,
    LeaveGroupMember,
    ListedGroup,
    OffsetCheckAnswer,
    OffsetDeleteAnswer,
    SyncGroupAnswer,
)
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_join import Join
from zkrebalancer.group_protocol.classic_states import ClassicState
from zkrebalancer.group_protocol.consumer_protocol import (
    MAX_ENTRIES_OF_GROUP,
    PROTOCOL_TYPE,
    Entries,
    SubscriptionError,
    read_subscription,
)
from zkrebalancer.group_protocol.effects import Received
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import ONE_MEMBER_UNTIL, RefusedError
from zkrebalancer.group_protocol.requests import (
    UNKNOWN_MEMBER_ID,
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OneGroup,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)


def handle(group: ClassicGroup, received: Received, request: OneGroup) -> None:
    """Answer a request, at once or later.

    Raises:
        RefusedError: it is one of the newer protocol.

    """
    ticket = received.ticket
    match request:
        case JoinGroupRequest():
            Join(group, received, request).handle()
        case SyncGroupRequest():
            sync(group, ticket, request)
        case HeartbeatRequest():
            heartbeat(group, ticket, request)
        case LeaveGroupRequest():
            leave(group, ticket, request, is_one=received.api_version <= ONE_MEMBER_UNTIL)
        case OffsetCommitRequest():
            check_commit(group, ticket, request)
        case TxnOffsetCommitRequest():
            check_transactional_commit(group, ticket, request)
        case OffsetFetchRequest():
            group.scheduler.reply(ticket, OffsetCheckAnswer(ErrorCode.NONE))
        case OffsetDeleteRequest():
            check_offset_delete(group, received, request)
        case ConsumerGroupHeartbeatRequest():
            is_dead = group.state is ClassicState.DEAD  # else a member's that was fenced and has to join anew
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_dead else ErrorCode.UNKNOWN_MEMBER_ID
            raise RefusedError(code, f"Group {group.group_id} is not a consumer group.")


def sync(group: ClassicGroup, ticket: int, request: SyncGroupRequest) -> None:
    """Answer with the member's assignment, or let the request wait until the leader has assigned."""
    error = _sync_error(group, request)
    if error:
        group.scheduler.reply(ticket, SyncGroupAnswer(error))
        return
    member = group.roster.members[request.member_id]
    group.answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an older one that waits
    member.sync_ticket = ticket
    group.note_sync(member.member_id)
    if group.state is ClassicState.STABLE:
        group.answer_sync(member, ErrorCode.NONE)
    elif member.member_id == group.roster.leader_id:
        group.assign({given.member_id: given.assignment for given in request.assignments})


def _sync_error(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is ClassicState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := group.roster.check(request.member_id, request.group_instance_id):
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.roster.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    is_completing = group.state is ClassicState.COMPLETING_REBALANCE
    # No member knows a generation that is not stored yet.
    is_due = group.state is ClassicState.STABLE or (is_completing and group.is_generation_stored)
    return ErrorCode.NONE if is_due else ErrorCode.REBALANCE_IN_PROGRESS


def _differs(named: str | None, expected: str | None) -> bool:
    return named is not None and expected is not None and named != expected


def heartbeat(group: ClassicGroup, ticket: int, request: HeartbeatRequest) -> None:
    """Renew the member's session, and answer whether it has to join again."""
    error = group.roster.check(request.member_id, request.group_instance_id)
    if group.state is ClassicState.DEAD:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif not error and not group.knows(request.member_id, request.generation_id):
        error = ErrorCode.ILLEGAL_GENERATION
    if not error:
        group.start_session(group.roster.members[request.member_id])
        if group.state is ClassicState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    group.scheduler.reply(ticket, HeartbeatAnswer(error))


def leave(group: ClassicGroup, ticket: int, request: LeaveGroupRequest, *, is_one: bool) -> None:
    """Remove the named members, then rebalance once. `is_one`: the answer has only the first member's error."""
    if group.state is ClassicState.DEAD:
        group.scheduler.reply(ticket, LeaveGroupAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    results = tuple(
        LeaveGroupMember(member.member_id, member.group_instance_id, _let_go(group, member))
        for member in request.members
    )
    error = results[0].error_code if is_one and results else ErrorCode.NONE
    group.scheduler.reply(ticket, LeaveGroupAnswer(error, results))
    gone = [result for result in results if not result.error_code]
    if gone:
        names = ", ".join(result.member_id or str(result.group_instance_id) for result in gone)
        group.rebalance_after_departure(f"{names:.200} left")


def _let_go(group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
    roster = group.roster
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER_ID and identity.group_instance_id is not None:  # an administrator removes it
        member_id = roster.static_member_id(identity.group_instance_id) or UNKNOWN_MEMBER_ID
    elif member_id in roster.pending:
        group.cancel_session(member_id)
        roster.remove(member_id)
        return ErrorCode.NONE
    if error := roster.check(member_id, identity.group_instance_id):
        return error
    group.remove(roster.members[member_id])
    return ErrorCode.NONE


# ---- offsets


def check_commit(group: ClassicGroup, ticket: int, request: OffsetCommitRequest) -> None:
    """Decide about an OffsetCommit; an allowed one also renews the session, unless partitions are being assigned."""
    error = _commit_error(group, request, request.generation_id_or_member_epoch)
    member = group.roster.members.get(request.member_id)
    if not error and member is not None and group.state in {ClassicState.STABLE, ClassicState.PREPARING_REBALANCE}:
        group.start_session(member)
    group.scheduler.reply(ticket, OffsetCheckAnswer(error, member is not None))


def check_transactional_commit(group: ClassicGroup, ticket: int, request: TxnOffsetCommitRequest) -> None:
    """Decide about a TxnOffsetCommit."""
    group.scheduler.reply(ticket, OffsetCheckAnswer(_commit_error(group, request, request.generation_id)))


def _commit_error(
    group: ClassicGroup, request: OffsetCommitRequest | TxnOffsetCommitRequest, generation_id: int
) -> ErrorCode:
    is_transactional = isinstance(request, TxnOffsetCommitRequest)
    if group.state is ClassicState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is ClassicState.EMPTY:
        return ErrorCode.NONE  # a tool, or a consumer that assigns its partitions itself
    error = ErrorCode.NONE
    if generation_id >= 0 or request.member_id or request.group_instance_id is not None:
        error = group.roster.check(request.member_id, request.group_instance_id)
        if not error and not group.knows(request.member_id, generation_id):
            error = ErrorCode.ILLEGAL_GENERATION
    elif not is_transactional:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    if not error and not is_transactional and group.state is ClassicState.COMPLETING_REBALANCE:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return error


def check_offset_delete(group: ClassicGroup, received: Received, request: OffsetDeleteRequest) -> None:
    """Answer which topics' offsets may be deleted: those to which no consumer of the group is subscribed."""
    if group.state is ClassicState.DEAD:
        answer = OffsetDeleteAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
    elif group.state is ClassicState.EMPTY:
        answer = OffsetDeleteAnswer(ErrorCode.NONE)
    elif group.roster.protocol_type != PROTOCOL_TYPE:
        answer = OffsetDeleteAnswer(ErrorCode.NON_EMPTY_GROUP)
    else:
        subscribed = frozenset(request.topics)
        try:
            subscribed &= _subscribed(group)
        except SubscriptionError as error:
            text = f"no offsets are deleted, because any topic may be in use: {error}"
            group.scheduler.report(group.group_id, text, received.client_host)
        answer = OffsetDeleteAnswer(ErrorCode.NONE, subscribed)
    group.scheduler.reply(received.ticket, answer)


def _subscribed(group: ClassicGroup) -> set[str]:
    """Return the topics of all consumers of the group; raises SubscriptionError."""
    topics: set[str] = set()
    entries = Entries(MAX_ENTRIES_OF_GROUP, " of all members")
    for member in group.roster.members.values():
        name = group.protocol_name or member.protocols[0].name
        topics.update(read_subscription(member.metadata(name), entries).topics)
    return topics


# ---- descriptions


def describe(group: ClassicGroup) -> DescribedGroup:
    """Return the group and its members."""
    is_stable = group.state is ClassicState.STABLE
    name = group.protocol_name if is_stable else None
    members = tuple(
        DescribedMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.metadata(name) if is_stable else b"",
            member.assignment,
        )
        for member in group.roster.members.values()
    )
    return DescribedGroup(
        ErrorCode.NONE, group.group_id, group.state.value, group.roster.protocol_type or "", name or "", members
    )


def listed(group: ClassicGroup) -> ListedGroup:
    """Return the group as it appears in a list."""
    return ListedGroup(group.group_id, group.roster.protocol_type or "", group.state.value, "classic")


def delete_error(group: ClassicGroup) -> ErrorCode:
    """Return why the group may not be deleted, or NONE."""
    if group.state is ClassicState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is ClassicState.EMPTY else ErrorCode.NON_EMPTY_GROUP
