"""A KIP-848 group that does not fit into one write: whoever made it larger is refused, and the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, from_stored
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.group_protocol.settings import FIRST_LIMIT_MS, LONGEST_LIMIT_MS
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredConsumerMember

if TYPE_CHECKING:
    from zkrebalancer.group_protocol.consumer_group import ConsumerGroup

LIMIT = "limit"  # a timer of the group
Key = tuple[str, str]


class SizeLimit:
    """How many members a group may have, so that its stored form fits into one write."""

    def __init__(self, group: ConsumerGroup) -> None:
        """Start with as many members as the settings allow."""
        self._group = group
        self._members: tuple[StoredConsumerMember, ...] = ()  # as last stored
        self._being_stored: tuple[StoredConsumerMember, ...] = ()
        self._max_size: int | None = None  # while the group admits no more than it had
        self._limit_ms = FIRST_LIMIT_MS

    @property
    def max_size(self) -> int:
        """Return the number of members that the group may have now."""
        usual = self._group.world.settings.consumer_group_max_size
        return usual if self._max_size is None else min(usual, self._max_size)

    def note_write(self, content: StoredConsumerGroup) -> StoredConsumerGroup:
        """Note what is being stored, and return it."""
        self._being_stored = content.members
        return content

    def note_stored(self) -> None:
        """Note that the last write succeeded."""
        self._members = self._being_stored

    def shrink(self) -> set[str]:
        """Remove newcomers of the write that failed; without any, take back what made members larger.

        Return the ids of these members; empty if no member has made the group larger.
        """
        group, roster = self._group, self._group.roster
        known = self._known()
        written = [roster.members[one.member_id] for one in self._being_stored if one.member_id in roster.members]
        newcomers = [member for member in written if _key(member) not in known]
        concerned = newcomers or [one for one in written if _is_larger(one, known[_key(one)])]
        for member in concerned:
            if group.central is not None:
                group.central.refuse(member.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            if newcomers:
                group.remove(member)
            else:
                self._take_back(member, known[_key(member)])
        if concerned:
            self._max_size = max(1, len(roster.members))
            group.scheduler.start_timer((group.group_id, LIMIT, ""), self._limit_ms, self._end_limit)
            self._limit_ms = min(2 * self._limit_ms, LONGEST_LIMIT_MS)
        return {member.member_id for member in concerned}

    def check(self, member: ConsumerMember) -> None:
        """Take back a change that makes a member larger, if the group was too large a short time ago.

        Raises:
            RefusedError: it was taken back.

        """
        if self._max_size is None:
            return
        former = self._known().get(_key(member))
        if former is not None and _is_larger(member, former):
            self._take_back(member, former)
            raise RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is too large for a longer subscription.")

    def _known(self) -> dict[Key, StoredConsumerMember]:
        return {_key(one): one for one in self._members}

    def _take_back(self, member: ConsumerMember, stored: StoredConsumerMember) -> None:
        former = from_stored(stored)
        member.topic_names, member.topic_regex = former.topic_names, former.topic_regex
        member.client_id = former.client_id
        member.rack_id, member.server_assignor = former.rack_id, former.server_assignor
        self._group.roster.set_classic(member, former.classic)

    def _end_limit(self) -> None:
        self._max_size = None


def _key(member: ConsumerMember | StoredConsumerMember) -> Key:
    """Return what stays the same when a static member returns under another id."""
    return ("dynamic", member.member_id) if member.instance_id is None else ("static", member.instance_id)


def _is_larger(member: ConsumerMember, former: StoredConsumerMember) -> bool:
    return _size(member) > _size(former)


def _size(member: ConsumerMember | StoredConsumerMember) -> int:
    """Return the length of what a client chooses.

    What a group gives to its members is not their fault, nor is the address from which they come.
    """
    texts = (member.topic_regex, member.client_id, member.rack_id, member.server_assignor)
    return sum(len(text or "") for text in (*texts, *member.topic_names)) + len(member.topic_names)
