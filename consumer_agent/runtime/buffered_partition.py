"""What the buffer keeps of one partition. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from consumer_agent.membership.offset_books import NO_OFFSET

Messages = Sequence[Any]  # of Kafka's client; the buffer uses only their `offset()`


@dataclass(slots=True)
class Chunk:
    """Messages that came together."""

    messages: Messages
    size_bytes: int  # of the messages that are not taken yet
    taken: int = 0


@dataclass(slots=True)
class BufferedPartition:
    """Marks and messages of a partition."""

    generation: int
    returned: int
    finished: int
    next_offset: int  # the lowest offset that may still be put
    thread: int = 0  # its consumer thread
    emitting: bool = True
    wanted: bool = True  # False: paused by the application
    held_back: bool = False  # not fetched while it retains its share
    let_go: bool = False  # given up by the application: nothing more can be finished
    count: int = 0
    chunks: deque[Chunk] = field(default_factory=deque)

    @property
    def size_bytes(self) -> int:
        """The size of its messages."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    def go_to(self, position: int, *, keeps_copies: bool) -> None:
        """Continue here. Records finished further on count up to here, or not at all: they name no copy."""
        self.returned = self.next_offset = position
        if position < self.finished:
            self.finished = NO_OFFSET if keeps_copies else position

    def finish(self, taken: tuple[int, int] | None) -> None:
        """Mark what was returned as finished, but nothing from what a poll has taken: its generation and offset."""
        if taken is None or taken[0] != self.generation:
            self.finished = self.returned
        else:  # `seek` may have finished more since
            self.finished = max(self.finished, min(self.returned, taken[1]))

    def clear(self) -> None:
        """Drop its messages."""
        self.count = 0
        self.chunks.clear()

    def take(self, count: int) -> tuple[Messages, int]:
        """Return its first `count` messages, which it must have, and their size."""
        self.count -= count
        taken: list[Messages] = []
        taken_bytes = 0
        while count:
            chunk = self.chunks[0]
            left = len(chunk.messages) - chunk.taken
            if count >= left:
                part, part_bytes = chunk.messages[chunk.taken :] if chunk.taken else chunk.messages, chunk.size_bytes
                self.chunks.popleft()
            else:
                part = chunk.messages[chunk.taken : chunk.taken + count]
                part_bytes = chunk.size_bytes * count // left  # as if all sizes were equal
                chunk.size_bytes -= part_bytes
                chunk.taken += count
            taken_bytes += part_bytes
            taken.append(part)
            count -= len(part)
        return taken[0] if len(taken) == 1 else list(chain.from_iterable(taken)), taken_bytes
