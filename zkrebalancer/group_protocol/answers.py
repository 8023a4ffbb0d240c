"""Answers of a group coordinator, with Kafka's own field names; `error_code` is 0 for success.

A name that is None is the empty string in versions of the protocol in which it cannot be null.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import TopicPartitions

NO_LEADER = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    """A member, as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupAnswer:
    """The member's new generation; `members` is empty unless the member is the leader."""

    error_code: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_LEADER
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupAnswer:
    """The member's assignment."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Whether the member is known; REBALANCE_IN_PROGRESS asks it to join again."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupMember:
    """The result for one member that was to leave."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupAnswer:
    """The result for each member; before v3, only `error_code` of the one member is sent."""

    error_code: ErrorCode
    members: tuple[LeaveGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetCheckAnswer:
    """The decision about an OffsetCommit, a TxnOffsetCommit or an OffsetFetch: NONE lets it pass to the store.

    Decisions about one group come in an order that the store has to keep: a commit that was allowed before a
    rebalance must not be stored after an offset that was read, or committed, after it.
    """

    error_code: ErrorCode
    is_classic_member: bool = False
    """Whether a member of the classic protocol commits, which REBALANCE_IN_PROGRESS makes join again."""


@dataclass(frozen=True, slots=True)
class OffsetDeleteAnswer:
    """Offsets of `subscribed_topics` must stay (GROUP_SUBSCRIBED_TO_TOPIC); those of other topics may be deleted.

    GROUP_ID_NOT_FOUND: this gateway has no such group, which may still have stored offsets.
    """

    error_code: ErrorCode
    subscribed_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member of a classic group; without `member_metadata` unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A classic group; an unknown one has the state Dead (and, from v6 on, GROUP_ID_NOT_FOUND)."""

    error_code: ErrorCode
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
    error_message: str | None = None
    is_used: bool = False  # a KIP-848 group with members, which has this state here, but is not empty


@dataclass(frozen=True, slots=True)
class DescribeGroupsAnswer:
    """Classic groups, in the order of the request, each once."""

    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in a list; `group_type` is `classic` or `consumer`."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class ListGroupsAnswer:
    """The groups that pass the filters."""

    error_code: ErrorCode
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """The result for a group that was to be deleted. GROUP_ID_NOT_FOUND: it may still have stored offsets."""

    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class DeleteGroupsAnswer:
    """The result for each group, in the order of the request."""

    results: tuple[DeletedGroup, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatAssignment:
    """All that a KIP-848 member has from now on; it gives up everything else."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatAnswer:
    """The member's epoch and, if it changed or the client asked for everything, its assignment."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: HeartbeatAssignment | None = None


@dataclass(frozen=True, slots=True)
class NamedTopicPartitions:
    """Partitions of one topic, for a person to read."""

    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedAssignment:
    """What a KIP-848 member has, or shall have."""

    topic_partitions: tuple[NamedTopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumerMember:
    """A member of a KIP-848 group. `member_type` (v1): 0 for a classic client, 1 for a KIP-848 client."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: int


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """A KIP-848 group."""

    error_code: ErrorCode
    group_id: str
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeAnswer:
    """KIP-848 groups, in the order of the request, each once."""

    groups: tuple[DescribedConsumerGroup, ...]


Answer = (
    JoinGroupAnswer
    | SyncGroupAnswer
    | HeartbeatAnswer
    | LeaveGroupAnswer
    | OffsetCheckAnswer
    | OffsetDeleteAnswer
    | DescribeGroupsAnswer
    | ListGroupsAnswer
    | DeleteGroupsAnswer
    | ConsumerGroupHeartbeatAnswer
    | ConsumerGroupDescribeAnswer
)
