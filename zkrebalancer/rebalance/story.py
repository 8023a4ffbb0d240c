"""The state of a group, how long it has lasted, and what led to it."""

from __future__ import annotations

from zkrebalancer.rebalance.states import TRANSITIONS, GroupState, InvalidTransitionError

MAX_STORY_LINES = 50


class Story:
    """The state of one group, and the last transitions with their times and reasons."""

    def __init__(self, group: str) -> None:
        """Start in LOADING."""
        self._group = group
        self.state = GroupState.LOADING
        self.since_us = 0  # when it came into this state
        self._lines: list[str] = []  # at most MAX_STORY_LINES; an empty deque has room for 64

    def go(self, state: GroupState, at_us: int, reason: str) -> None:
        """Change the state.

        Raises:
            InvalidTransitionError: the table has no such transition.

        """
        self._lines.append(f"{at_us / 1e6:.6f} {self.state.value} -> {state.value}: {reason}")
        del self._lines[:-MAX_STORY_LINES]
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"group {self._group}:\n" + "\n".join(self._lines))
        if state is not self.state or not self.since_us:
            self.since_us = at_us
        self.state = state

    def lines(self) -> list[str]:
        """Return the last transitions, oldest first."""
        return list(self._lines)
