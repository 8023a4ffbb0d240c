"""Frees large containers in portions, one per step, because freeing ten thousand entries takes milliseconds."""

from __future__ import annotations

from collections import deque
from typing import Any

from zkrebalancer.rebalance.scheduler import Scheduler

OWNER = "/rubbish"  # no group has such a name
ENTRIES_PER_SLICE = 200
WORK_OF_A_SLICE = 100  # units of `scheduler.MAX_WORK_PER_STEP`

Container = dict[Any, Any] | list[Any] | deque[Any]


class Rubbish:
    """Containers that nothing else refers to."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Start with nothing to free."""
        self._own = scheduler.part(OWNER)
        self._containers: list[Container] = []

    def __bool__(self) -> bool:
        """Whether there is something to free."""
        return bool(self._containers)

    def add(self, *containers: Container) -> None:
        """Free these containers, in this step and the following ones."""
        self._containers.extend(containers)
        self._free()

    def _free(self) -> None:
        while self._containers and self._own.has_time:
            self._own.spend(WORK_OF_A_SLICE)
            container = self._containers[-1]
            remove = container.popitem if isinstance(container, dict) else container.pop
            for _ in range(min(len(container), ENTRIES_PER_SLICE)):
                remove()
            if not container:
                self._containers.pop()
        if self._containers:
            self._own.wake_soon("free", self._free)
