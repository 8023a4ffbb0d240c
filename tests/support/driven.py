"""An `AsyncConsumer` for tests that are written for a `Consumer`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from consumer_agent.aio import AsyncConsumer


class Driven:
    """Has the methods of a `Consumer`; `drive` runs a coroutine to its end, and returns its result."""

    def __init__(self, consumer: AsyncConsumer, drive: Callable[[Coroutine[Any, Any, Any]], object]) -> None:
        self.consumer = consumer
        self._drive = drive

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.consumer, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *arguments, **named: self._drive(method(*arguments, **named))
