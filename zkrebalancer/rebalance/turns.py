"""The queues in which groups wait for their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse


class Turns:
    """Groups that wait for their turn, each once, first come, first served, with the reason for each.

    A plain dictionary would scan all removed entries, and an ordered one takes long to fill.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._reasons: dict[str, str] = {}
        self._order: deque[str] = deque()  # may have groups that no longer wait
        self._in_order: set[str] = set()

    def __len__(self) -> int:
        """Return the number of waiting groups."""
        return len(self._reasons)

    def __contains__(self, group: str) -> bool:
        """Whether a group waits."""
        return group in self._reasons

    @property
    def reasons(self) -> Mapping[str, str]:
        """The waiting groups, and why each waits."""
        return self._reasons

    def add(self, group: str, reason: str, instead_of: str | None = None) -> None:
        """Add a group; if it waits already, its turn stays, and its reason, unless that is `instead_of`."""
        if self._reasons.get(group, instead_of) == instead_of:
            self._reasons[group] = reason
        if group not in self._in_order:
            self._in_order.add(group)
            self._order.append(group)

    def extend(self, groups: Sequence[str], reason: str) -> None:
        """Add many groups: as `add`, without a step of Python for each."""
        self._reasons = dict.fromkeys(groups, reason) | self._reasons
        self._order.extend(filterfalse(self._in_order.__contains__, groups))
        self._in_order.update(groups)

    def remove(self, group: str) -> None:
        """Remove a group."""
        self._reasons.pop(group, None)

    def next(self) -> tuple[str, str]:
        """Remove and return the next group and its reason; there has to be one."""
        while (group := self._order.popleft()) not in self._reasons:
            self._in_order.discard(group)
        self._in_order.discard(group)
        return group, self._reasons.pop(group)

    def become(self, groups: Iterable[str], reason: str) -> None:
        """Replace the waiting groups."""
        self._reasons = dict.fromkeys(groups, reason)
        self._order = deque(self._reasons)
        self._in_order = set(self._reasons)
