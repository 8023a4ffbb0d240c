"""`rebalance_request_queue`: the groups that wait to be planned, each at most once, first come first served.

The legacy rule, `compare_and_set(False, True)` on "is being rebalanced", loses a change that comes while the group is
being rebalanced. Here a group that changes then is marked dirty (`Group.request`) and comes back into the queue.
"""

from __future__ import annotations


class RebalanceRequestQueue:
    """An ordered set of group names; bounded by the number of groups."""

    def __init__(self) -> None:
        """Start empty."""
        self._names: dict[str, None] = {}

    def put(self, group: str) -> None:
        """Add a group; one that waits already keeps its place."""
        self._names.setdefault(group)

    def take(self) -> str | None:
        """Take the group that has waited longest, None if nobody waits."""
        name = next(iter(self._names), None)
        if name is not None:
            del self._names[name]
        return name

    def discard(self, group: str) -> None:
        """Take out a group that no longer wants its turn."""
        self._names.pop(group, None)

    def __len__(self) -> int:
        """How many groups wait."""
        return len(self._names)
