"""Requests to a group coordinator, with Kafka's own field names. One class has the fields of all versions.

A field that an older version lacks has its default here.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

UNKNOWN_MEMBER_ID = ""
MEMBER_ID_REQUIRED_FROM = 4  # versions of JoinGroup
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH = 0, -1, -2  # of a ConsumerGroupHeartbeat
NO_TIMEOUT = -1  # JoinGroup v0 has no rebalance timeout


@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    """One protocol that a member can use; `metadata` is opaque (for consumers: its subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """A member joins, or joins again; `member_id` is empty until it has one."""

    group_id: str
    member_id: str
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    rebalance_timeout_ms: int = NO_TIMEOUT
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    """What the leader gives to one member; opaque."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """A member asks for its assignment; the leader's request has all assignments."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A classic member is alive."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member to remove, by its id, or by its instance id if that is empty."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    """Remove members. Before v3 the request has one `member_id`, which is `members[0]` here."""

    group_id: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """A member wants to commit offsets; the decision does not depend on which ones.

    Before v9 the epoch is called `generation_id`; v0 has neither an epoch nor a member.
    """

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """A member wants to commit offsets within a transaction."""

    group_id: str
    generation_id: int = -1
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """A member wants to read offsets of one group. `member_id` is None before v9; from v8 on, a frame names several."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    """Somebody wants to delete the offsets of these topics."""

    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Describe classic groups."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """List groups; an empty filter matches everything. Filters ignore case."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()

    def selects(self, state: str, group_type: str) -> bool:
        """Whether both filters match a group."""
        pairs = ((self.states_filter, state), (self.types_filter, group_type))
        return all(not names or value.lower() in {name.strip().lower() for name in names} for names, value in pairs)


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    """Delete groups without members."""

    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    """A KIP-848 member joins (epoch 0), is alive, or leaves (-1; a static member that will return: -2).

    None, or -1 for the timeout: unchanged. An empty regular expression means none.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    """Describe KIP-848 groups."""

    group_ids: tuple[str, ...]


OneGroup = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | ConsumerGroupHeartbeatRequest
)
Request = OneGroup | DescribeGroupsRequest | ListGroupsRequest | DeleteGroupsRequest | ConsumerGroupDescribeRequest
