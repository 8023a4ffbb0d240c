"""A dictionary that detects iterations over all entries."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Watched(dict[Key, Value]):
    """Counts iterations over all entries."""

    looks = 0

    def __iter__(self) -> Iterator[Key]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> ItemsView[Key, Value]:  # type: ignore[override]
        self.looks += 1
        return super().items()
