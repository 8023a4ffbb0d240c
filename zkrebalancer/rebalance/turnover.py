"""The last changes of owners, for people who look at a leader: which member got and lost which partitions, and when.

They are kept in memory only, because no decision needs them: a new leader starts without any. All groups share one
limit, and the oldest changes are dropped first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord

MAX_CHANGES = 20_000  # of all groups
MAX_PARTITIONS = 200_000  # in them: 20 MB


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A change of what one member owns. `at_ms`: when the leader saw it, since the epoch."""

    at_ms: int
    member: str
    gained: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]

    @property
    def size(self) -> int:
        """The number of partitions in it."""
        return len(self.gained) + len(self.lost)


@dataclass(slots=True)
class GroupTurnover:
    """The changes of one group, oldest first; `since_ms`: it has all changes since then."""

    since_ms: int
    changes: deque[OwnerChange] = field(default_factory=deque)


class Turnover:
    """The last changes of owners in all groups of a leader."""

    def __init__(self, max_changes: int = MAX_CHANGES, max_partitions: int = MAX_PARTITIONS) -> None:
        """Keep nothing before `is_kept`."""
        self.is_kept = False
        self._max_changes = max_changes
        self._max_partitions = max_partitions
        self._groups: dict[str, GroupTurnover] = {}
        self._order: deque[GroupTurnover] = deque()  # for each change, in order, its group
        self._partitions = 0

    def begin(self, group: str, now_ms: int) -> None:
        """Begin a group anew, because it was read again and former changes say nothing about the present owners."""
        if self.is_kept:
            self._groups[group] = GroupTurnover(now_ms)

    def note(
        self, group: str, now_ms: int, member: str, before: OwnersRecord | None, after: OwnersRecord | None
    ) -> None:
        """Note a member's former and present record; None: there was, or is, none."""
        known = self._groups.get(group)
        if known is None:
            return
        had = before.partitions.keys() if before is not None else frozenset()
        has = after.partitions.keys() if after is not None else frozenset()
        if had == has:
            return
        change = OwnerChange(now_ms, member, frozenset(has - had), frozenset(had - has))
        known.changes.append(change)
        self._order.append(known)
        self._partitions += change.size
        while len(self._order) > self._max_changes or self._partitions > self._max_partitions:
            self._drop_oldest()

    def of(self, group: str) -> GroupTurnover | None:
        """Return the changes of a group, None if there are none of it."""
        return self._groups.get(group)

    def forget(self, group: str) -> None:
        """Forget a group that was deleted; its changes leave in their turn."""
        self._groups.pop(group, None)

    def clear(self) -> tuple[deque[Any], dict[str, Any]]:
        """Forget all; return the containers, which the caller frees."""
        order, groups = self._order, self._groups
        self._order, self._groups, self._partitions = deque(), {}, 0
        return order, groups

    def _drop_oldest(self) -> None:
        oldest = self._order.popleft()
        change = oldest.changes.popleft()
        oldest.since_ms = change.at_ms
        self._partitions -= change.size
