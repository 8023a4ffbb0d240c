"""Reads that a client makes together, as `runtime/zk_reads.py` does: one request sets watches, one reads the nodes.

Between the two, and between two nodes of one request, other sessions may write. An event of a node that is being read
waits for the reply. In half of the runs, all reads are made one by one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from random import Random
from typing import Any

from tests.simulation.host import Host
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.protocol.calls import (
    ListChildren,
    Refusal,
    Refused,
    Replied,
    RepliedAll,
    RepliedInRow,
    Reply,
    Watched,
)
from zkrebalancer.runtime.zk import MAX_REPLIES
from zkrebalancer.runtime.zk_reads import MAX_READS, MAX_REQUESTS, MIN_READS, Read, Watch

TURNS_US = (60, 60, 5_000)  # of the process's hub, which may be busy
GAP_US = 400  # between two requests that are sent together
GAP_PROBABILITY = 0.3

Refuse = Callable[[Read], Refused | None]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of `runtime/zk_reads.py` in one run; with small ones, few reads suffice to reach them."""

    least: int
    most: int
    requests: int
    replies: int


def draw_limits(seed: int) -> ReadLimits | None:
    """Return the limits of a run, None if it makes all reads one by one."""
    draw = Random(f"{seed}/reads")
    small = draw.choice((2, 3, MIN_READS)), draw.choice((4, 8, MAX_READS)), draw.choice((1, 2, MAX_REQUESTS))
    return ReadLimits(*small, draw.choice((1, 2, 3, MAX_REPLIES))) if seed % 4 >= 2 else None


@dataclass(slots=True)
class Batch:
    """The reads of one request, and their replies so far."""

    many: Sequence[tuple[int, Read]]
    replies: list[Reply] = field(default_factory=list)

    def watches(self) -> list[Watch]:
        return [(read.path, isinstance(read, ListChildren)) for _, read in self.many if read.watch]


@dataclass(frozen=True, slots=True)
class SetWatches:
    """Sets watches; those on missing nodes fire at once."""

    batch: Batch

    def perform(self, session: Session, _zk: ZkModel, _refuse: Refuse) -> None:
        for path, children in self.batch.watches():
            if path in session.server.tree.nodes:
                (session.child_watches if children else session.content_watches).add(path)
            else:
                session.answer(Watched(path, children=children))


@dataclass(frozen=True, slots=True)
class ReadSome:
    """Reads some of the nodes of a request, whose answer follows the last one."""

    batch: Batch
    begin: int
    end: int

    def perform(self, session: Session, zk: ZkModel, refuse: Refuse) -> None:
        for _, read in self.batch.many[self.begin : self.end]:
            self.batch.replies.append(refuse(read) or zk._read(read, session.server.tree, session.session_id))
        if self.end == len(self.batch.many):
            answer: Any = self.batch  # in the order of events
            session.answer(answer)


class ReadsTogether:
    """A client's reads."""

    def __init__(self, host: Host, limits: ReadLimits, send: Callable[[int, Any, int], None], *, as_one: bool) -> None:
        """`send(call_id, request, pause_us)`; `as_one`: several replies are one event."""
        self._host = host
        self._limits = limits
        self._send = send
        self._as_one = as_one
        self._waiting: deque[tuple[int, Read]] = deque()
        self._under_way: list[Batch] = []
        self._is_planned = False
        self._being_set: Counter[Watch] = Counter()
        self._held: set[Watch] = set()

    def add(self, call_id: int, read: Read) -> None:
        self._waiting.append((call_id, read))
        if not self._is_planned:
            self._is_planned = True
            draw = self._host.random
            self._host.after(draw.randrange(draw.choice(TURNS_US)), self._planned)

    def _planned(self) -> None:
        self._is_planned = False
        self.send()

    def send(self) -> None:
        """Send what waits, as far as there may be more requests."""
        if len(self._waiting) < self._limits.least and not self._under_way:
            while self._waiting:
                self._send(*self._waiting.popleft(), 0)
        while self._waiting and len(self._under_way) < self._limits.requests:
            count = min(len(self._waiting), self._limits.most)
            self._send_some(Batch([self._waiting.popleft() for _ in range(count)]))

    def _send_some(self, batch: Batch) -> None:
        self._under_way.append(batch)
        self._being_set.update(batch.watches())
        pause_us = 0
        if batch.watches():
            self._send(0, SetWatches(batch), 0)
            pause_us = self._pause_us()
        middle = self._host.random.randrange(len(batch.many))
        if middle:
            self._send(0, ReadSome(batch, 0, middle), pause_us)
            pause_us = self._pause_us()
        self._send(0, ReadSome(batch, middle, len(batch.many)), pause_us)

    def _pause_us(self) -> int:
        draw = self._host.random
        return draw.randrange(GAP_US) if draw.random() < GAP_PROBABILITY else 0

    def holds(self, event: Watched) -> bool:
        """Whether an event waits for the reply to the read that sets its watch."""
        watch = event.path, event.children
        if watch in self._being_set:
            self._held.add(watch)
            return True
        return False

    def answered(self, batch: Batch) -> list[Replied | RepliedAll | Watched]:
        """Return the events that an answer becomes; send what has waited for it."""
        self._under_way.remove(batch)
        for watch in batch.watches():
            self._being_set[watch] -= 1
            if not self._being_set[watch]:
                del self._being_set[watch]
        events: list[Replied | RepliedAll | Watched] = []
        found: list[Replied] = []
        for (call_id, read), reply in zip(batch.many, batch.replies, strict=True):
            found.append(Replied(call_id, reply))
            watch = read.path, isinstance(read, ListChildren)
            if read.watch and watch not in self._being_set and watch in self._held:
                self._held.discard(watch)
                if not isinstance(reply, Refused):
                    events += [*self._events(found), Watched(read.path, children=watch[1])]
                    found = []
        events += self._events(found)
        self.send()
        return events

    def _events(self, replies: Sequence[Replied]) -> Iterator[Replied | RepliedAll]:
        if not self._as_one:
            yield from replies
            return
        for begin in range(0, len(replies), self._limits.replies):
            yield RepliedAll(tuple(_in_rows(replies[begin : begin + self._limits.replies])))

    def lost(self, call_ids: Sequence[int]) -> list[Replied | RepliedAll | Watched]:
        """Return the events by which calls in flight fail: reads that wait first, then the others in any order."""
        groups = [[call_id for call_id, _ in many] for many in (self._waiting, *(one.many for one in self._under_way))]
        together = {call_id for group in groups for call_id in group}
        first, *others = [list(self._events([_lost(call_id) for call_id in group])) for group in groups]
        alone: list[Replied | RepliedAll] = [_lost(call_id) for call_id in call_ids if call_id not in together]
        others.insert(self._host.random.randrange(len(others) + 1), alone)
        self._waiting.clear()
        self._under_way.clear()
        self._being_set.clear()
        self._held.clear()
        return [event for some in (first, *others) for event in some]


def _in_rows(replies: Sequence[Replied]) -> Iterator[RepliedInRow]:
    """Yield replies to calls with consecutive ids together."""
    for _, row in groupby(enumerate(replies), lambda placed: placed[1].call_id - placed[0]):
        of_row = [one for _place, one in row]
        yield RepliedInRow(of_row[0].call_id, [one.reply for one in of_row])


def _lost(call_id: int) -> Replied:
    return Replied(call_id, Refused(Refusal.CONNECTION_LOST))
