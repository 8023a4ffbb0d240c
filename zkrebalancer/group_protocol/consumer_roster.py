"""The members of a KIP-848 group: their subscriptions and positions, and the holder of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from zkrebalancer.group_protocol.consumer_states import MEMBER_TRANSITIONS, ConsumerMemberState
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import NEW, NOTHING, Partition, Partitions, Position
from zkrebalancer.group_protocol.requests import JoinGroupProtocol
from zkrebalancer.group_protocol.stored import StoredClassicSide, StoredConsumerMember, StoredPartitions

Description = tuple[object, ...]


class InvalidPositionError(Exception):
    """A bug: a member was about to get what another holds, or to make a transition that the table lacks."""


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The additional data of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]


@dataclass(slots=True)
class ConsumerMember:
    """One member; `topic_regex` is empty if there is none, `classic` None for a KIP-848 client."""

    member_id: str
    instance_id: str | None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = 0
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicSide | None = None
    position: Position = NEW
    target: Partitions = NOTHING
    kept: tuple[Description, StoredConsumerMember] | None = field(default=None, compare=False, repr=False)
    """What `to_stored` has made of the member, and of what."""

    def description(self) -> Description:
        """Return everything that may change; as long as it is equal, so is each form of the member."""
        return (
            self.position,
            self.target,
            self.classic,
            self.topic_names,
            self.topic_regex,
            self.client_id,
            self.client_host,
            self.rack_id,
            self.rebalance_timeout_ms,
            self.server_assignor,
        )

    @property
    def has_its_target(self) -> bool:
        """Whether the member has its target, and its client knows."""
        position = self.position
        is_stable = position.state is ConsumerMemberState.STABLE and position.epoch > 0
        return is_stable and position.assigned == self.target


class ConsumerRoster:
    """The members of one group."""

    def __init__(self) -> None:
        self.members: dict[str, ConsumerMember] = {}
        self.unsettled: set[str] = set()  # members that have not reached the target
        self.classic_count = 0  # members that speak the classic protocol
        self._support: Counter[str] = Counter()  # classic protocol -> number of members that support it
        self._static: dict[str, str] = {}
        self._fenced: dict[str, str] = {}  # instance -> the member that another consumer of the group has replaced
        self._holders: dict[Partition, str] = {}

    def add(self, member: ConsumerMember) -> None:
        """Add a member, with what it holds."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
            self._fenced.pop(member.instance_id, None)
        self._count_classic(member.classic, 1)
        self._hold(member, member.position.held)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member; what it holds becomes free."""
        self.move(member, Position(0, 0, ConsumerMemberState.GONE))
        del self.members[member.member_id]
        self.unsettled.discard(member.member_id)
        self._count_classic(member.classic, -1)
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def move(self, member: ConsumerMember, position: Position) -> None:
        """Change a member's position.

        Raises:
            InvalidPositionError: the table has no such transition, or another member holds one of the partitions.

        """
        former = member.position
        if position.state not in MEMBER_TRANSITIONS[former.state]:
            raise InvalidPositionError(f"{member.member_id}: {former.state.value} -> {position.state.value}")
        for partition in former.held - position.held:
            del self._holders[partition]
        self._hold(member, position.held)
        member.position = position

    def renew_ids(self, present: Mapping[UUID, UUID]) -> None:
        """Replace the ids of topics, which stay the same topics: former id -> present id."""
        for member in self.members.values():
            position = member.position
            assigned, revoking = with_ids(position.assigned, present), with_ids(position.revoking, present)
            member.position = replace(position, assigned=assigned, revoking=revoking)
            member.target = with_ids(member.target, present)
        self._holders = {(present.get(one, one), number): holder for (one, number), holder in self._holders.items()}

    def _hold(self, member: ConsumerMember, partitions: Partitions) -> None:
        for partition in partitions:
            if self._holders.setdefault(partition, member.member_id) != member.member_id:
                raise InvalidPositionError(f"{member.member_id} and {self._holders[partition]} hold {partition}")

    def is_free(self, partition: Partition) -> bool:
        """Whether no member holds a partition."""
        return partition not in self._holders

    def is_free_for(self, member: ConsumerMember) -> Callable[[Partition], bool]:
        """Return a function that says whether no other member holds a partition."""
        return lambda partition: self._holders.get(partition, member.member_id) == member.member_id

    def set_classic(self, member: ConsumerMember, classic: ClassicSide | None) -> None:
        """Set which protocol a member speaks."""
        self._count_classic(member.classic, -1)
        self._count_classic(classic, 1)
        member.classic = classic

    def _count_classic(self, classic: ClassicSide | None, change: int) -> None:
        if classic is not None:
            self.classic_count += change
            for name in {protocol.name for protocol in classic.protocols}:  # a protocol listed twice counts once
                self._support[name] += change
                if not self._support[name]:  # a member may join again with other names, without end
                    del self._support[name]

    def supports(self, names: Iterable[str]) -> bool:
        """Whether all classic members support one of these classic protocols."""
        return any(self._support[name] == self.classic_count for name in names)

    def note_progress(self, member: ConsumerMember, target_epoch: int) -> None:
        """Note whether the member has reached the target; the group does not wait for a member that is away."""
        if member.position.has_reached(target_epoch) or member.position.state is ConsumerMemberState.AWAY:
            self.unsettled.discard(member.member_id)
        else:
            self.unsettled.add(member.member_id)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with this instance id."""
        member_id = self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def note_fenced(self, member: ConsumerMember) -> None:
        """Note that a static member is about to be removed for good."""
        if member.instance_id is not None:
            self._fenced[member.instance_id] = member.member_id

    def is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        """Whether this static member was removed for good."""
        return instance_id is not None and self._fenced.get(instance_id) == member_id

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if this is a member, else the error; a static member that was replaced is fenced."""
        if instance_id is not None:
            current = self.static_member(instance_id)
            if current is None and not self.is_fenced(member_id, instance_id):
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current is None or current.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def chosen_assignor(self, default: str) -> str:
        """Return the assignor that most members ask for."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return votes.most_common(1)[0][0] if votes else default


# ---- the stored form


def to_stored(member: ConsumerMember) -> StoredConsumerMember:
    """Return a member in its stored form, the same one as long as nothing changes: each write has all members."""
    description = member.description()
    if member.kept is None or member.kept[0] != description:
        member.kept = description, _stored(member)
    return member.kept[1]


def _stored(member: ConsumerMember) -> StoredConsumerMember:
    classic, position = member.classic, member.position
    return StoredConsumerMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topic_names,
        member.topic_regex,
        member.server_assignor,
        position.epoch,
        position.previous_epoch,
        position.state.value,
        _packed(position.assigned),
        _packed(position.revoking),
        _packed(member.target),
        None if classic is None else StoredClassicSide(classic.session_timeout_ms, classic.protocols),
    )


def from_stored(stored: StoredConsumerMember) -> ConsumerMember:
    """Return the member that was stored."""
    classic = stored.classic
    return ConsumerMember(
        stored.member_id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.rack_id,
        stored.rebalance_timeout_ms,
        stored.topic_names,
        stored.topic_regex,
        stored.server_assignor,
        None if classic is None else ClassicSide(classic.session_timeout_ms, classic.protocols),
        Position(
            stored.epoch,
            stored.previous_epoch,
            ConsumerMemberState(stored.state),
            _unpacked(stored.assigned),
            _unpacked(stored.revoking),
        ),
        _unpacked(stored.target),
    )


def with_ids(partitions: Partitions, present: Mapping[UUID, UUID]) -> Partitions:
    """Return partitions with other ids of their topics: former id -> present id."""
    return frozenset((present.get(topic_id, topic_id), number) for topic_id, number in partitions)


def by_topic(partitions: Partitions) -> dict[UUID, tuple[int, ...]]:
    """Return topic id -> sorted partitions."""
    found: dict[UUID, list[int]] = {}
    for topic_id, number in partitions:
        found.setdefault(topic_id, []).append(number)
    # By their numbers, as they compare: a UUID compares itself in Python, which took most of the time of an assignment.
    return {topic_id: tuple(sorted(found[topic_id])) for topic_id in sorted(found, key=lambda one: one.int)}


def _packed(partitions: Partitions) -> tuple[StoredPartitions, ...]:
    return tuple(StoredPartitions(topic_id.bytes, numbers) for topic_id, numbers in by_topic(partitions).items())


def _unpacked(stored: tuple[StoredPartitions, ...]) -> Partitions:
    return frozenset((UUID(bytes=topic.topic_id), number) for topic in stored for number in topic.partitions)
