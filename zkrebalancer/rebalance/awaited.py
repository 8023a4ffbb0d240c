"""What is kept with a call until its reply arrives, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from zkrebalancer.protocol.calls import Call, ReadEach, Refusal

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


class AwaitedEach(NamedTuple):
    """Reads in flight that were asked for together."""

    owner: str
    first_id: int
    reads: ReadEach
    handle: Handler  # of some replies: gets them, `of_one`, and the names of their nodes
    handle_alone: Handler  # of one: gets it, `of_one`, and the name
    of_one: Handler
    expected: frozenset[Refusal]

    @property
    def end_id(self) -> int:
        """The id after the last one."""
        return self.first_id + len(self.reads.names)

    def alone(self, call_id: int) -> Awaited:
        """Return one of the reads."""
        place = call_id - self.first_id
        name = self.reads.names[place]
        return Awaited(self.owner, self.reads.read(place), self.handle_alone, (self.of_one, name), self.expected)
