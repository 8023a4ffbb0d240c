"""What is kept because making it again takes time: bounded by its number, and by its size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Values by their keys; the oldest ones go if there are too many, or if all together are too large."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        """Start without values. One value alone may be larger."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._values: dict[Hashable, tuple[Value, int]] = {}  # with its size
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return a value; None: it is not kept."""
        known = self._values.get(key)
        return None if known is None else known[0]

    def keep(self, key: Hashable, value: Value, size_bytes: int) -> None:
        """Keep a new value, or note the present size of a known one, which becomes the newest."""
        self.size_bytes += size_bytes - self._values.pop(key, (value, 0))[1]
        self._values[key] = value, size_bytes
        while len(self._values) > 1 and (len(self) > self._max_count or self.size_bytes > self._max_bytes):
            _oldest, size_bytes = self._values.pop(next(iter(self._values)))
            self.size_bytes -= size_bytes

    def clear(self) -> dict[Any, Any]:
        """Forget everything; return what has to be freed."""
        values, self._values, self.size_bytes = self._values, {}, 0
        return values
