"""What each request does to a KIP-848 group, except for heartbeats and joins, and the group's descriptions."""

from __future__ import annotations

from zkrebalancer.group_protocol import consumer_classic
from zkrebalancer.group_protocol.answers import (
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    ListedGroup,
    NamedTopicPartitions,
    OffsetCheckAnswer,
    OffsetDeleteAnswer,
)
from zkrebalancer.group_protocol.assignors import DEFAULT_ASSIGNOR
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.consumer_heartbeat import Heartbeat
from zkrebalancer.group_protocol.consumer_protocol import PROTOCOL_TYPE
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, by_topic
from zkrebalancer.group_protocol.effects import Received
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import Partitions
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OneGroup,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

EPOCH_FROM = 9  # versions of OffsetCommit


def handle(group: ConsumerGroup, received: Received, request: OneGroup) -> None:
    """Answer a request, at once or later.

    Raises:
        RefusedError: with the error for the client.

    """
    match request:
        case ConsumerGroupHeartbeatRequest():
            Heartbeat(group, received, request).handle()
        case OffsetCommitRequest():
            check_commit(group, received.ticket, request, received.api_version)
        case TxnOffsetCommitRequest():
            check_transactional_commit(group, received.ticket, request)
        case OffsetFetchRequest():
            check_fetch(group, received.ticket, request)
        case OffsetDeleteRequest():
            check_offset_delete(group, received.ticket, request)
        case JoinGroupRequest() | SyncGroupRequest() | HeartbeatRequest() | LeaveGroupRequest():
            consumer_classic.handle(group, received, request)


def check_commit(group: ConsumerGroup, ticket: int, request: OffsetCommitRequest, api_version: int) -> None:
    """Decide about an OffsetCommit: it must name the member's own epoch."""
    epoch = request.generation_id_or_member_epoch
    member = group.roster.members.get(request.member_id)
    error = _epoch_error(group, request, epoch)
    if member is not None and member.classic is None and api_version < EPOCH_FROM:
        error = ErrorCode.UNSUPPORTED_VERSION
    group.scheduler.reply(ticket, OffsetCheckAnswer(error, member is not None and member.classic is not None))


def check_transactional_commit(group: ConsumerGroup, ticket: int, request: TxnOffsetCommitRequest) -> None:
    """Decide about a TxnOffsetCommit. As in Kafka, a producer need not name its consumer; older ones cannot."""
    error = ErrorCode.NONE
    if group.is_dead or request != TxnOffsetCommitRequest(request.group_id):
        error = _epoch_error(group, request, request.generation_id)
    is_stale = error is ErrorCode.STALE_MEMBER_EPOCH
    group.scheduler.reply(ticket, OffsetCheckAnswer(ErrorCode.ILLEGAL_GENERATION if is_stale else error))


def check_fetch(group: ConsumerGroup, ticket: int, request: OffsetFetchRequest) -> None:
    """Decide about an OffsetFetch: a tool names no member; a member must name its epoch."""
    error = ErrorCode.NONE
    if request.member_id is not None or request.member_epoch >= 0:
        member = group.roster.members.get(request.member_id or "")
        error = ErrorCode.UNKNOWN_MEMBER_ID if member is None else _stale(member, request.member_epoch)
    group.scheduler.reply(ticket, OffsetCheckAnswer(error))


def _epoch_error(group: ConsumerGroup, request: OffsetCommitRequest | TxnOffsetCommitRequest, epoch: int) -> ErrorCode:
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if epoch < 0 and not group.roster.members:
        return ErrorCode.NONE
    member = group.roster.members.get(request.member_id)
    if member is not None:
        return _stale(member, epoch)
    is_fenced = group.roster.is_fenced(request.member_id, request.group_instance_id)
    return ErrorCode.FENCED_INSTANCE_ID if is_fenced else ErrorCode.UNKNOWN_MEMBER_ID


def _stale(member: ConsumerMember, epoch: int) -> ErrorCode:
    if epoch == member.position.epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def check_offset_delete(group: ConsumerGroup, ticket: int, request: OffsetDeleteRequest) -> None:
    """Answer which topics' offsets may be deleted: those that no member wants."""
    wanted: set[str] = set()
    for member in group.roster.members.values():
        wanted.update(member.topic_names, group.subscription(member))
    error = ErrorCode.GROUP_ID_NOT_FOUND if group.is_dead else ErrorCode.NONE
    group.scheduler.reply(ticket, OffsetDeleteAnswer(error, frozenset(request.topics) & wanted))


def delete_error(group: ConsumerGroup) -> ErrorCode:
    """Return why the group may not be deleted, or NONE."""
    if group.is_dead:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NON_EMPTY_GROUP if group.roster.members else ErrorCode.NONE


def describe(group: ConsumerGroup) -> DescribedConsumerGroup:
    """Return the group and its members."""
    members = tuple(
        DescribedConsumerMember(
            member.member_id,
            member.instance_id,
            member.rack_id,
            member.position.epoch,
            member.client_id,
            member.client_host,
            member.topic_names,
            member.topic_regex or None,
            _described(group, member.position.assigned),
            _described(group, member.target),
            0 if member.classic is not None else 1,
        )
        for member in group.roster.members.values()
    )
    return DescribedConsumerGroup(
        ErrorCode.NONE,
        group.group_id,
        None,
        group.state.value,
        group.group_epoch,
        group.target_epoch,
        group.roster.chosen_assignor(DEFAULT_ASSIGNOR),
        members,
    )


def _described(group: ConsumerGroup, partitions: Partitions) -> DescribedAssignment:
    names = group.world.topics.name_of
    return DescribedAssignment(
        tuple(
            NamedTopicPartitions(topic_id, names[topic_id], numbers)
            for topic_id, numbers in by_topic(partitions).items()
            if topic_id in names
        )
    )


def listed(group: ConsumerGroup) -> ListedGroup:
    """Return the group as it appears in a list."""
    return ListedGroup(group.group_id, PROTOCOL_TYPE, group.state.value, "consumer")
