"""The members of a classic group: their ids, protocols, leader and waiting requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import JoinGroupProtocol
from zkrebalancer.group_protocol.stored import StoredMember

MIN_REBALANCE_MS = 1_000  # clients may ask for 0; static members of which none joins are waited for again and again


@dataclass(slots=True)
class ClassicMember:
    """One member; the tickets are those of its waiting requests."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None
    is_new: bool = False

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for this protocol; empty if it does not support it."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the member's first choice among the protocols that all members support."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    @property
    def is_excused(self) -> bool:
        """Whether no heartbeat is expected: the member waits for an answer, and is not new."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)


class ClassicRoster:
    """The members of one group. What a single join needs costs the same for any number of members."""

    def __init__(self) -> None:
        self.members: dict[str, ClassicMember] = {}
        self.pending: set[str] = set()  # ids that were given out; their joins are expected
        self.pending_sync: set[str] = set()
        self.leader_id: str | None = None
        self.protocol_type: str | None = None
        self.joining_count = 0  # members whose JoinGroup waits
        self._static: dict[str, str] = {}
        self._support: Counter[str] = Counter()

    def add(self, member: ClassicMember) -> None:
        """Add a member; the first one becomes the leader and determines the group's protocol type."""
        protocols = member.protocols
        self.members[member.member_id] = member
        self._support.update(_names(protocols))
        self.pending.discard(member.member_id)
        self.joining_count += member.join_ticket is not None
        self.leader_id = self.leader_id or member.member_id
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member that has no waiting request, or an id that was given out."""
        self.pending.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._withdraw_support(member)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give another id to a static member that has no waiting request."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self.members[member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member_id

    def set_protocols(self, member: ClassicMember, protocols: tuple[JoinGroupProtocol, ...]) -> None:
        """Replace the protocols that a member supports."""
        self._withdraw_support(member)
        member.protocols = protocols
        self._support.update(_names(protocols))

    def set_join_ticket(self, member: ClassicMember, ticket: int | None) -> None:
        """Set the ticket of the member's waiting JoinGroup; None if none waits."""
        self.joining_count += (ticket is not None) - (member.join_ticket is not None)
        member.join_ticket = ticket

    def _withdraw_support(self, member: ClassicMember) -> None:
        for name in _names(member.protocols):
            self._support[name] -= 1
            if self._support[name] == 0:
                del self._support[name]

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Return the id of the member with this instance id."""
        return self._static.get(group_instance_id)

    def check(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE if this is a member, else the error; a static member that was replaced is fenced."""
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols fits in with the present members."""
        return self.protocol_type == protocol_type and any(self._support[name] == len(self.members) for name in names)

    def have_all_joined(self) -> bool:
        """Whether all expected members have joined."""
        return self.joining_count == len(self.members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Make a member with a waiting join the leader; return False if there is none."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_ticket is None:
            joined = (member.member_id for member in self.members.values() if member.join_ticket is not None)
            chosen = next(joined, None)
            if chosen is None:
                return False
            self.leader_id = chosen
        return True

    def chosen_protocol(self) -> str:
        """Return the protocol with the most votes among those that all support; the earlier vote breaks a tie."""
        candidates = {name for name, count in self._support.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """Return the longest time that any member may take to join again."""
        return max((MIN_REBALANCE_MS, *(member.rebalance_timeout_ms for member in self.members.values())))


def _names(protocols: Iterable[JoinGroupProtocol]) -> set[str]:
    """Return the names of a member's protocols; one that it lists twice counts once."""
    return {protocol.name for protocol in protocols}


# ---- the stored form


def to_stored(member: ClassicMember, assignment: bytes) -> StoredMember:
    """Return a member in its stored form, with an assignment that it may not have yet."""
    return StoredMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.protocols,
        assignment,
    )


def from_stored(stored: StoredMember) -> ClassicMember:
    """Return the member that was stored."""
    return ClassicMember(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout_ms,
        stored.rebalance_timeout_ms,
        stored.protocols,
        stored.assignment,
    )
