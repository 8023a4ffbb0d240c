"""What is kept with a call until its reply arrives, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from zkrebalancer.protocol.calls import Call, Refusal

Handler = Callable[..., None]


class Awaited(NamedTuple):
    """A call in flight: the handler of its reply, and the owner who made it."""

    owner: str
    call: Call
    handle: Handler
    arguments: tuple[Any, ...]
    expected: frozenset[Refusal]
    tries: int = 0
    is_fenced: bool = False
    whatever_comes: bool = False

    @property
    def question(self) -> Hashable:
        """A key: equal for two reads whose replies have the same effect."""
        known = tuple(each if isinstance(each, str | int) else id(each) for each in self.arguments)
        return self.call, self.handle, known
