"""The lock of an agent's shared state: whenever a thread acquires it, another thread may run first."""

from __future__ import annotations

from collections.abc import Callable


class SwitchingLock:
    """Replaces the lock and its conditions. No thread waits: `notify` calls back, and entering may switch threads."""

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
