"""Virtual time: one heap of future actions, which alone determines their order, so that a seed determines the run."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., object]
MAX_STORY_LINES = 200_000
MAX_STEPS = 500_000  # of one run, ten times the usual number


class RestlessError(Exception):
    """Actions repeat without end."""


class Schedule:
    """Future actions, in order of time; those of one moment, in the order in which they were scheduled."""

    def __init__(self, *, tells: bool = False) -> None:
        self.now_us = 0
        self.steps = 0
        self.tells = tells  # whether the story is kept
        self.story: list[str] = []
        self._heap: list[tuple[int, int, Action, tuple[Any, ...], int]] = []
        self._planned = 0
        self._current = 0  # number of the current step, the cause of what it schedules
        self._cause = 0  # number of the step that scheduled the current one

    def at(self, at_us: int, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule an action for a moment, or for now if that has passed."""
        self._planned += 1
        heapq.heappush(self._heap, (max(at_us, self.now_us), self._planned, action, arguments, self._current))

    def after(self, delay_us: int, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule an action after a delay."""
        self.at(self.now_us + delay_us, action, *arguments)

    def step(self) -> None:
        """Perform the next action."""
        self.now_us, self._current, action, arguments, self._cause = heapq.heappop(self._heap)
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise RestlessError(f"{MAX_STEPS} steps are not enough")
        action(*arguments)

    def run_until(self, at_us: int) -> None:
        """Perform all actions up to a moment."""
        heap = self._heap
        while heap and heap[0][0] <= at_us:
            self.step()
        self.now_us = max(self.now_us, at_us)

    def tell(self, who: str, text: str) -> None:
        """Write a line of the story: time, step, its cause, actor, action."""
        if self.tells and len(self.story) < MAX_STORY_LINES:
            moment = f"{self.now_us / 1e6:10.6f} #{self._current}<#{self._cause}"
            self.story.append(f"{moment:<32} {who:<14} {text}")
