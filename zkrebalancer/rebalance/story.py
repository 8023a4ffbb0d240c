"""The state of a group, how long it has lasted, and what led to it."""

from __future__ import annotations

from zkrebalancer.rebalance.states import TRANSITIONS, GroupState, InvalidTransitionError

MAX_STORY_LINES = 50
ON_THE_WAY = frozenset({GroupState.LOADING, GroupState.QUEUED, GroupState.PLANNING})  # to what a reading leads to


class Story:
    """The state of one group, and the last transitions with their times and reasons."""

    def __init__(self, group: str) -> None:
        """Start in LOADING."""
        self._group = group
        self.state = GroupState.LOADING
        self.since_us = 0  # when it came into this state
        self._reread: tuple[GroupState, int] | None = None  # the same of the state in which the group is read again
        self._lines: list[str] = []  # at most MAX_STORY_LINES; an empty deque has room for 64

    def go(self, state: GroupState, at_us: int, reason: str, *, is_reread: bool = False) -> None:
        """Change the state.

        `is_reread`: whether it is only because the group is reconciled; if that leads back to the former state, the
        former state has lasted on.

        Raises:
            InvalidTransitionError: the table has no such transition.

        """
        self._lines.append(f"{at_us / 1e6:.6f} {self.state.value} -> {state.value}: {reason}")
        del self._lines[:-MAX_STORY_LINES]
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"group {self._group}:\n" + "\n".join(self._lines))
        since_us = self.since_us if state is self.state and self.since_us else at_us
        if is_reread and state is GroupState.LOADING:
            self._reread = self.state, self.since_us
        elif self._reread is not None and self._reread[0] is state:
            since_us, self._reread = self._reread[1], None
        elif state not in ON_THE_WAY:
            self._reread = None
        self.since_us = since_us
        self.state = state

    def lines(self) -> list[str]:
        """Return the last transitions, oldest first."""
        return list(self._lines)
