"""The lock of an agent's shared state: wherever a thread of the agent takes it, another one may have been quicker."""

from __future__ import annotations

from collections.abc import Callable


class SwitchingLock:
    """Stands for the lock and its conditions. No thread ever waits: `notify` rings, and entering may switch."""

    def __init__(self, on_enter: Callable[[], None], on_notify: Callable[[], None] | None = None) -> None:
        self._on_enter = on_enter
        self._on_notify = on_notify

    @property
    def lock(self) -> SwitchingLock:
        """The lock of a condition."""
        return self

    def __enter__(self) -> None:
        self._on_enter()

    def __exit__(self, *_error: object) -> None:
        pass

    def notify(self) -> None:
        if self._on_notify is not None:
            self._on_notify()
