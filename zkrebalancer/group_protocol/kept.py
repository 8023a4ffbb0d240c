"""The memory that members of all groups may use together: what they send, what they are given, and their objects.

Each request has its limit, and each group. But anybody may form groups, so that many small ones could use up a
gateway's memory. Beyond the limit newcomers are refused, and so is a member that would keep more than before, unless
that is little. Members of groups that work go on, up to twice the limit: a member reports what it was given, so that
metadata and assignments could grow by each other.

What members of KIP-848 groups are given does not count there, but the partitions of their groups' topics have a limit,
in each group: an expression of two characters may give a member all partitions of the cluster. Beyond it, no group gets
more topics by a request, and groups go on with those that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_roster import ClassicMember
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.consumer_protocol import Subscription
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.group_protocol.requests import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OneGroup,
    SyncGroupRequest,
)
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredConsumerMember, StoredTopic
from zkrebalancer.group_protocol.topics import Topic, Topics

MAX_KEPT_BYTES = 256 << 20  # of all members
LITTLE_BYTES = 16 << 10  # of one member that is known, which it may keep beyond the limit
MEMBER_BYTES = 1 << 10  # that each member uses for its objects and timers
AGENT_BYTES = 16 << 10  # that the agent of each member of a central group uses
ENTRY_BYTES = 64  # that a text uses, or a protocol, besides its characters
TWICE = 2  # a member of a KIP-848 group is also kept as it is stored
MAX_PARTITIONS = 4_000_000  # of the topics of all KIP-848 and central groups, counted in each
MEASURE_INTERVAL_MS = 1_000  # measuring looks at every member
AnyGroup = ClassicGroup | ConsumerGroup
AnyMember = ClassicMember | ConsumerMember


class Kept:
    """How much is kept, at most: what comes is counted, until all members are measured again at the limit."""

    def __init__(
        self, groups: Callable[[], Iterable[AnyGroup]], topics: Topics, *, assigns_centrally: bool = False
    ) -> None:
        """Start with nothing; `groups` returns all groups."""
        self._groups = groups
        self._agent_bytes = AGENT_BYTES if assigns_centrally else 0
        self._topics = topics
        self._at_most = 0
        self._partitions = 0  # at most, too
        self._measured_ms = -MEASURE_INTERVAL_MS

    def check(self, request: OneGroup, client_id: str, group: AnyGroup | None, now_ms: int) -> None:
        """Count what a request lets its member, or all members of its group, keep.

        Raises:
            RefusedError: that is too much.

        """
        wanted = _wanted(request, client_id, {} if group is None else group.roster.members)
        if not wanted:
            return
        wanted += _of_name(request.group_id) if group is None else 0
        known = _known(request, group)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch > JOIN_EPOCH and not known:
            return  # it is no member, and becomes none
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            names, expression = request.subscribed_topic_names or (), request.subscribed_topic_regex
            selected = self._topics.matching(expression) if expression else frozenset[str]()
            self._check_topics({*names, *selected}, group, now_ms)
            wanted += 0 if known else self._agent_bytes
        is_sync = isinstance(request, SyncGroupRequest)  # there may be room soon, and all wait for its leader
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_sync else ErrorCode.GROUP_MAX_SIZE_REACHED
        self._count(wanted, sum(_replaced(request, member) for member in known), known, now_ms, code)

    def check_subscription(
        self, request: JoinGroupRequest, client_id: str, subscription: Subscription, group: ConsumerGroup
    ) -> None:
        """Count all that a classic member of a KIP-848 group keeps: more than `check` could know.

        Raises:
            RefusedError: that is too much.

        """
        known = _known(request, group)
        texts = (*_ids(request, client_id), subscription.rack_id, *set(subscription.topics))
        wanted = MEMBER_BYTES + _of_protocols(request.protocols, TWICE) + _of_texts(texts, TWICE)
        wanted += 0 if known else self._agent_bytes
        replaced, now_ms = sum(map(_of_member, known)), group.scheduler.now_ms
        self._check_topics(set(subscription.topics), group, now_ms)
        self._count(wanted, replaced, known, now_ms, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def check_upgrade(self, classic: ClassicGroup, upgraded: StoredConsumerGroup, now_ms: int) -> None:
        """Count what the members of a classic group keep when it becomes a KIP-848 group.

        Raises:
            RefusedError: that is too much.

        """
        wanted = _of_name(classic.group_id) + sum(self._agent_bytes + _of_member(one) for one in upgraded.members)
        self._count_partitions(_of_topics(upgraded.topics), now_ms)
        self._count(wanted, _of_group(classic), [], now_ms, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def add(self, group: AnyGroup) -> None:
        """Count a group that was read, or has another protocol now, which stays, however much it is."""
        self._at_most += self._with_agents(group)
        self._partitions += _partitions_of(group)

    def note_topics(self, before: Mapping[str, Topic], after: Mapping[str, Topic]) -> None:
        """Count the partitions added to topics of a group, however many: no request has caused that."""
        self._partitions += max(0, _of_topics(after.values()) - _of_topics(before.values()))

    def _check_topics(self, names: Iterable[str], group: AnyGroup | None, now_ms: int) -> None:
        """Count the partitions of the topics that a request adds to those of a group, or refuse it."""
        has = group.seen if isinstance(group, ConsumerGroup) else {}
        new = [name for name in names if name in self._topics.by_name and name not in has]
        self._count_partitions(_of_topics(map(self._topics.by_name.__getitem__, new)), now_ms)

    def _count_partitions(self, added: int, now_ms: int) -> None:
        if added and self._partitions + added > MAX_PARTITIONS:
            self._measure(now_ms)
        if added and self._partitions + added > MAX_PARTITIONS:
            text = f"a request is refused: no room for {added} partitions more, as groups may have {MAX_PARTITIONS}"
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, text, text)
        self._partitions += added

    def _count(self, wanted: int, replaced: int, known: Iterable[AnyMember], now_ms: int, code: ErrorCode) -> None:
        """Count `wanted` bytes, which replace others, or refuse with `code`. `known`: the members that keep them."""
        added = wanted - replaced
        if added <= 0:
            return
        sizes = [*map(_of_member, known)]
        is_no_more = wanted <= max(LITTLE_BYTES * len(sizes), sum(sizes))
        limit = 2 * MAX_KEPT_BYTES if is_no_more else MAX_KEPT_BYTES
        if not self._has_room(added, limit, now_ms):
            text = f"a request is refused: no room for its {wanted} bytes, as members keep {limit}, the most"
            raise RefusedError(code, text, text)

    def _has_room(self, added: int, limit: int, now_ms: int) -> bool:
        if self._at_most + added > limit:
            self._measure(now_ms)
        is_full = self._at_most + added > limit
        if not is_full:
            self._at_most += added
        return not is_full

    def _with_agents(self, group: AnyGroup) -> int:
        agents = len(group.roster.members) if isinstance(group, ConsumerGroup) else 0
        return _of_group(group) + self._agent_bytes * agents

    def _measure(self, now_ms: int) -> None:
        """Measure all groups again, unless that was a short time ago."""
        if now_ms >= self._measured_ms + MEASURE_INTERVAL_MS:
            self._measured_ms = now_ms
            self._at_most = sum(map(self._with_agents, self._groups()))
            self._partitions = sum(map(_partitions_of, self._groups()))


def _wanted(request: OneGroup, client_id: str, members: Mapping[str, AnyMember]) -> int:
    match request:
        case JoinGroupRequest():
            return MEMBER_BYTES + _of_protocols(request.protocols) + _of_texts(_ids(request, client_id))
        case SyncGroupRequest():
            return sum(len(one.assignment) for one in request.assignments if one.member_id in members)
        case ConsumerGroupHeartbeatRequest(member_epoch=epoch) if epoch >= JOIN_EPOCH:
            ids = (request.member_id, request.instance_id, client_id)
            texts = (*ids, request.rack_id, request.subscribed_topic_regex, *(request.subscribed_topic_names or ()))
            return MEMBER_BYTES + _of_texts(texts, TWICE)
    return 0


def _ids(request: JoinGroupRequest, client_id: str) -> tuple[str | None, ...]:
    """Return a member's ids; one that has none yet gets one that begins with another of them."""
    instance_id = request.group_instance_id
    return (request.member_id or instance_id or client_id, instance_id, client_id)


def _known(request: OneGroup, group: AnyGroup | None) -> list[AnyMember]:
    """Return the members that would keep this instead of what they have."""
    if group is None:
        return []
    member: AnyMember | None = None
    match request:
        case SyncGroupRequest():
            return list(group.roster.members.values())
        case JoinGroupRequest():
            member = _member(group, request.member_id, request.group_instance_id)
        case ConsumerGroupHeartbeatRequest():
            member = _member(group, request.member_id, request.instance_id)
    return [] if member is None else [member]


def _replaced(request: OneGroup, member: AnyMember) -> int:
    """Return how much of what a member has would be replaced."""
    if isinstance(request, SyncGroupRequest):
        return len(member.assignment) if isinstance(member, ClassicMember) else 0
    if isinstance(member, ClassicMember):
        return _of_member(member) - len(member.assignment)
    ids = (member.member_id, member.instance_id, member.client_id)
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        rack = None if request.rack_id is None else member.rack_id
        regex = None if request.subscribed_topic_regex is None else member.topic_regex
        names = () if request.subscribed_topic_names is None else member.topic_names
        return MEMBER_BYTES + _of_texts((*ids, rack, regex, *names), TWICE)
    return MEMBER_BYTES + _of_texts(ids) + (0 if member.classic is None else _of_protocols(member.classic.protocols))


def _member(group: AnyGroup, member_id: str, instance_id: str | None) -> AnyMember | None:
    """Return a member, or the former self of a static one."""
    if member_id in group.roster.members or instance_id is None:
        return group.roster.members.get(member_id)
    if isinstance(group, ConsumerGroup):
        return group.roster.static_member(instance_id)
    return group.roster.members.get(group.roster.static_member_id(instance_id) or "")


def _of_group(group: AnyGroup) -> int:
    members: Mapping[str, AnyMember] = group.roster.members
    pending: Iterable[str] = group.roster.pending if isinstance(group, ClassicGroup) else ()
    return _of_name(group.group_id) + sum(map(_of_member, members.values())) + _of_texts(pending)


def _partitions_of(group: AnyGroup) -> int:
    """Return how many partitions the topics of a KIP-848 group have; assignments of others count as bytes."""
    return _of_topics(group.seen.values()) if isinstance(group, ConsumerGroup) else 0


def _of_topics(topics: Iterable[Topic | StoredTopic]) -> int:
    return sum(topic.partition_count for topic in topics)


def _of_name(group_id: str) -> int:
    return _of_texts((group_id,), TWICE)  # its node has the name, too


def _of_member(member: AnyMember | StoredConsumerMember) -> int:
    if isinstance(member, ClassicMember):
        texts = (member.member_id, member.group_instance_id, member.client_id)
        return MEMBER_BYTES + _of_protocols(member.protocols) + _of_texts(texts) + len(member.assignment)
    names = (member.rack_id, member.topic_regex, *member.topic_names)
    of_classic = 0 if member.classic is None else _of_protocols(member.classic.protocols, TWICE)
    of_ids = _of_texts((member.member_id, member.instance_id, member.client_id), TWICE)
    return MEMBER_BYTES + of_classic + of_ids + _of_texts(names, TWICE)


def _of_protocols(protocols: Iterable[JoinGroupProtocol], copies: int = 1) -> int:
    return sum(ENTRY_BYTES + copies * (len(one.name) + len(one.metadata)) for one in protocols)


def _of_texts(texts: Iterable[str | None], copies: int = 1) -> int:
    return sum(ENTRY_BYTES + copies * len(one) for one in texts if one)
