"""The desk that every part of the core works at: calls with what to do with their answers, deadlines, effects.

A call is kept with the method that takes its answer, so that the code reads in the order in which things happen, and
what is awaited is plain data: (method, arguments).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from zkrebalancer.protocol.calls import Call, Reply
from zkrebalancer.rebalance.effects import Effect, Emit, EventField, Now, Request, Warn

_NAMESPACE = UUID("6f4c1f5e-4f0b-5d7e-9a53-4f3a6f1f2a0c")
Taker = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Awaited:
    """Who takes the answer to a call, and on whose behalf it was made."""

    owner: Hashable
    take: Taker
    arguments: tuple[Any, ...]


class Desk:
    """Collects effects, keeps what is awaited and when to wake. One per coordinator."""

    def __init__(self) -> None:
        """Start with nothing awaited."""
        self.now = Now(0, 0)
        self.effects: list[Effect] = []
        self.awaited: dict[int, Awaited] = {}
        self._last_call_id = 0
        self._id_seed = ""
        self._last_id = 0
        self._last_ticket = 0
        self._due: dict[tuple[Hashable, Hashable], tuple[int, Taker, tuple[Any, ...]]] = {}
        self._heap: list[tuple[int, int, tuple[Hashable, Hashable]]] = []
        self._heap_order = 0

    def ask(self, owner: Hashable, call: Call, take: Taker, *arguments: Any) -> None:  # noqa: ANN401  # passed on as they are
        """Make a call; `take(reply, *arguments)` gets the answer unless `forget(owner)` comes first."""
        self._last_call_id += 1
        self.awaited[self._last_call_id] = Awaited(owner, take, arguments)
        self.effects.append(Request(self._last_call_id, call))

    def answer(self, call_id: int, reply: Reply) -> None:
        """Hand an answer to whoever waits for it; an answer that nobody waits for any more is dropped."""
        awaited = self.awaited.pop(call_id, None)
        if awaited is not None:
            awaited.take(reply, *awaited.arguments)

    def forget(self, owner: Hashable) -> None:
        """Drop all answers and deadlines that `owner` waits for."""
        self.awaited = {call_id: awaited for call_id, awaited in self.awaited.items() if awaited.owner != owner}
        for key in [key for key in self._due if key[0] == owner]:
            del self._due[key]

    def forget_all(self) -> None:
        """Drop every answer and every deadline."""
        self.awaited.clear()
        self._due.clear()
        self._heap.clear()

    def wake(self, owner: Hashable, name: Hashable, at_us: int, take: Taker, *arguments: Any) -> None:  # noqa: ANN401
        """Call `take(*arguments)` once it is `at_us`; a second call with the same name moves the deadline."""
        key = (owner, name)
        self._due[key] = (at_us, take, arguments)
        self._heap_order += 1
        heapq.heappush(self._heap, (at_us, self._heap_order, key))

    def cancel_wake(self, owner: Hashable, name: Hashable) -> None:
        """Drop a deadline, if there is one."""
        self._due.pop((owner, name), None)

    def is_awake_planned(self, owner: Hashable, name: Hashable) -> bool:
        """Whether a deadline of that name is set."""
        return (owner, name) in self._due

    def next_deadline_us(self) -> int | None:
        """When `run_due` has something to do next."""
        while self._heap:
            at_us, _order, key = self._heap[0]
            due = self._due.get(key)
            if due is not None and due[0] == at_us:
                return at_us
            heapq.heappop(self._heap)
        return None

    def run_due(self) -> None:
        """Run every deadline that has come."""
        while (at_us := self.next_deadline_us()) is not None and at_us <= self.now.mono_us:
            _at_us, _order, key = heapq.heappop(self._heap)
            _at_us, take, arguments = self._due.pop(key)
            take(*arguments)

    def seed_ids(self, seed: str) -> None:
        """Make the ids of one leadership: unique because no two leaderships share `seed`."""
        self._id_seed = seed
        self._last_id = 0

    def new_id(self) -> str:
        """Return a fresh uuid, the same one whenever the same leadership is replayed."""
        self._last_id += 1
        return str(uuid5(_NAMESPACE, f"{self._id_seed}/{self._last_id}"))

    def new_ticket(self) -> int:
        """Return a number that no computation before it had, under this leadership or an earlier one."""
        self._last_ticket += 1
        return self._last_ticket

    def emit(
        self, kind: str, group: str | None, generation: int | None, cause_id: str | None, **fields: EventField
    ) -> None:
        """Write one telemetry event."""
        self.effects.append(Emit(kind, group, generation, cause_id, fields))

    def warn(self, text: str) -> None:
        """Write one log line."""
        self.effects.append(Warn(text))

    def take_effects(self) -> list[Effect]:
        """Return what has collected since the last time, in order."""
        effects, self.effects = self.effects, []
        return effects
