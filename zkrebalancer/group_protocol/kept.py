"""The memory that metadata, subscriptions and assignments of all members may use together.

Each request has its limit, and each group. But anybody may form groups, so that many small ones could use up a
gateway's memory. Beyond the limit newcomers are refused, and so is a member that would keep more than before, unless
that is little. Members of groups that work go on, up to twice the limit: a member reports what it was given, so that
metadata and assignments could grow by each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_roster import ClassicMember
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OneGroup,
    SyncGroupRequest,
)

MAX_KEPT_BYTES = 256 << 20  # of all members: metadata, subscriptions and assignments
LITTLE_BYTES = 16 << 10  # of one member that is known, which it may keep beyond the limit
ENTRY_BYTES = 64  # that a name in a list uses, or a protocol, besides its text
MEASURE_INTERVAL_MS = 1_000  # measuring looks at every member
AnyGroup = ClassicGroup | ConsumerGroup
AnyMember = ClassicMember | ConsumerMember


class Kept:
    """How much is kept, at most: what comes is counted, until all members are measured again at the limit."""

    def __init__(self, groups: Callable[[], Iterable[AnyGroup]]) -> None:
        """Start with nothing; `groups` returns all groups."""
        self._groups = groups
        self._at_most = 0
        self._measured_ms = -MEASURE_INTERVAL_MS

    def check(self, request: OneGroup, group: AnyGroup | None, now_ms: int) -> None:
        """Count what a request lets its member, or all members of its group, keep.

        Raises:
            RefusedError: that is too much.

        """
        wanted = _wanted(request, {} if group is None else group.roster.members)
        if not wanted:
            return
        known = _known(request, group)
        added = wanted - sum(_replaced(request, member) for member in known)
        if added <= 0:
            return
        is_no_more = wanted <= max(LITTLE_BYTES * len(known), sum(map(_of_member, known)))
        limit = 2 * MAX_KEPT_BYTES if is_no_more else MAX_KEPT_BYTES
        if not self._has_room(added, limit, now_ms):
            text = f"a request is refused: no room for its {wanted} bytes, as members keep {limit}, the most"
            is_sync = isinstance(request, SyncGroupRequest)  # there may be room soon, and all wait for its leader
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_sync else ErrorCode.GROUP_MAX_SIZE_REACHED
            raise RefusedError(code, text, text)

    def add(self, group: AnyGroup) -> None:
        """Count a group that was read, which stays, however much it is."""
        self._at_most += _of_group(group)

    def _has_room(self, added: int, limit: int, now_ms: int) -> bool:
        is_full = self._at_most + added > limit
        if is_full and now_ms >= self._measured_ms + MEASURE_INTERVAL_MS:
            self._measured_ms = now_ms
            self._at_most = sum(map(_of_group, self._groups()))
            is_full = self._at_most + added > limit
        if not is_full:
            self._at_most += added
        return not is_full


def _wanted(request: OneGroup, members: Mapping[str, AnyMember]) -> int:
    match request:
        case JoinGroupRequest():
            return _of_protocols(request.protocols)
        case SyncGroupRequest():
            return sum(len(one.assignment) for one in request.assignments if one.member_id in members)
        case ConsumerGroupHeartbeatRequest():
            return _of_texts(request.subscribed_topic_names or ()) + len(request.subscribed_topic_regex or "")
    return 0


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
    match request, member:
        case SyncGroupRequest(), _:
            return len(member.assignment) if isinstance(member, ClassicMember) else 0
        case ConsumerGroupHeartbeatRequest(), ConsumerMember():
            names = () if request.subscribed_topic_names is None else member.topic_names
            return _of_texts(names) + (0 if request.subscribed_topic_regex is None else len(member.topic_regex))
    if isinstance(member, ClassicMember):
        return _of_protocols(member.protocols)
    return 0 if member.classic is None else _of_protocols(member.classic.protocols)


def _member(group: AnyGroup, member_id: str, instance_id: str | None) -> AnyMember | None:
    """Return a member, or the former self of a static one."""
    if member_id in group.roster.members or instance_id is None:
        return group.roster.members.get(member_id)
    if isinstance(group, ConsumerGroup):
        return group.roster.static_member(instance_id)
    return group.roster.members.get(group.roster.static_member_id(instance_id) or "")


def _of_group(group: AnyGroup) -> int:
    members: Mapping[str, AnyMember] = group.roster.members
    return sum(map(_of_member, members.values()))


def _of_member(member: AnyMember) -> int:
    if isinstance(member, ClassicMember):
        return _of_protocols(member.protocols) + len(member.assignment)
    of_classic = 0 if member.classic is None else _of_protocols(member.classic.protocols)
    return of_classic + _of_texts(member.topic_names) + len(member.topic_regex)


def _of_protocols(protocols: Iterable[JoinGroupProtocol]) -> int:
    return sum(ENTRY_BYTES + len(one.name) + len(one.metadata) for one in protocols)


def _of_texts(texts: Iterable[str]) -> int:
    return sum(ENTRY_BYTES + len(one) for one in texts)
