"""The tools of every part of the core: calls and the handlers of their replies, timers, telemetry, log lines.

A call is kept with the method that handles its reply, so that the code reads in the order in which things happen, and
what is awaited is plain data: (method, arguments). Four rules hold for all parts:
- A transaction made by `write` is fenced: it fails as a whole once another coordinator leads; then this one steps down.
- A reply that only reports a broken connection is dropped: everything is read again when the connection is back.
- A refusal that is no race with another client (a missing right, a quota) is logged once, with the path and the right.
- A call that is refused for a reason that its handler does not expect is retried at growing intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid5

from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    RepliedInRow,
    Reply,
)
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.protocol.shards import WHOLE, Shard
from zkrebalancer.rebalance.awaited import Awaited, AwaitedEach, Handler
from zkrebalancer.rebalance.effects import Effect, Emit, EventField, Now, Numbers, Request, RequestEach, Warn
from zkrebalancer.rebalance.refusals import Refusable, Refusals
from zkrebalancer.rebalance.timers import Timers, discard

_NAMESPACE = UUID("6f4c1f5e-4f0b-5d7e-9a53-4f3a6f1f2a0c")
Noted = TypeVar("Noted")

RACES = frozenset({Refusal.NO_NODE, Refusal.NODE_EXISTS, Refusal.BAD_VERSION, Refusal.NOT_EMPTY})
OF_A_ROOT = RACES - {Refusal.NO_NODE}  # for a node that must exist: while it is missing, the call is repeated
ANY = frozenset(Refusal)
FIRST_PAUSE_US = 100_000  # before a refused call is repeated; doubled each time
MAX_PAUSE_US = 30_000_000
MAX_WORK_PER_STEP = 1_000  # units of about 2 us; the rest is done in later steps, so that other events have their turn


@dataclass(frozen=True, slots=True)
class Waiting:
    """A plan that waits for approval: how many partitions it would move, in a group of this generation."""

    moves: int
    generation: int


class Scheduler(Timers):
    """Collects effects, and keeps awaited replies and timers. One per coordinator."""

    def __init__(
        self, limit: RequestLimit = DEFAULT_LIMIT, shard: Shard = WHOLE, numbers: Numbers | None = None
    ) -> None:
        """Start with nothing awaited. `limit`: of transactions; `shard`: whose leader's writes are fenced."""
        super().__init__()
        self._shard = shard
        self._numbers = numbers or Numbers()
        self.limit = limit
        self.now = Now(0, 0)
        self.effects: list[Effect] = []
        self.awaited: dict[int, Awaited | AwaitedEach] = {}
        self._calls_of: defaultdict[str, set[int]] = defaultdict(set)  # owner -> what it awaits
        self.refusals = Refusals()
        self.complaints = Complaints()
        self.backing_off: dict[str, str] = {}  # group -> why it backs off
        self.unapproved: dict[str, Waiting] = {}  # group -> its plan, which waits for an operator's approval
        self.is_news = False  # whether `refusals`, `backing_off` or `unapproved` have changed
        self.id_seed = ""
        self.last_id = 0
        self.fence = Check(shard.epoch, -1)
        self._step_down: Callable[[str], None] = _nothing_to_step_down_from
        self.work = 0  # of this step
        self.note_waiting: Callable[[str], None] = lambda _owner: None  # a call of this owner is repeated later
        self.contain: Callable[[str, Exception, str], None] | None = None  # (group, what its step has raised, the step)

    def begin_leadership(self, seed: str, epoch_version: int, step_down: Callable[[str], None]) -> None:
        """Fence every `write` from now on with this version of the epoch node, and start new ids.

        `seed`: different for every leadership. `step_down(reason)` is called when the fence has failed.
        """
        self.id_seed, self.last_id = seed, 0
        self.fence = Check(self._shard.epoch, epoch_version)
        self._step_down = step_down

    def part(self, owner: str, group: str | None = None) -> PartScheduler:
        """Return the scheduler of one part of the core; `group`: the group of its events and log lines."""
        return PartScheduler(self, owner, group)

    # Calls ----------------------------------------------------------------------------------------------------------

    def request(self, awaited: Awaited) -> None:
        """Make a call."""
        self._numbers.call_id = call_id = self._numbers.call_id + 1
        self.awaited[call_id] = awaited
        self._calls_of[awaited.owner].add(call_id)
        self.effects.append(Request(call_id, awaited.call))

    def request_each(
        self,
        owner: str,
        reads: ReadEach,
        handlers: tuple[Handler, Handler, Handler],
        expected: frozenset[Refusal],
    ) -> None:
        """Make reads of one owner, at least one: as `request` makes each, without a call of Python for each.

        `handlers`: as `AwaitedEach` has them.
        """
        request = RequestEach(self._numbers.call_id + 1, reads)
        self._numbers.call_id += len(reads.names)
        self.awaited.update(
            dict.fromkeys(request.ids, AwaitedEach(owner, request.first_id, reads, *handlers, expected))
        )
        self._calls_of[owner].update(request.ids)
        self.effects.append(request)

    def answer_all(self, row: Replied | RepliedInRow) -> None:
        """Handle replies to calls with consecutive ids: in one go those of reads that were asked for together."""
        if isinstance(row, Replied):
            self.answer(*row)
            return
        at_id, end_id = row.first_id, row.ids.stop
        while at_id < end_id:
            awaited = self.awaited.get(at_id)
            next_id = min(end_id, awaited.end_id) if isinstance(awaited, AwaitedEach) else at_id + 1
            replies = row.replies[at_id - row.first_id : next_id - row.first_id]
            ids = range(at_id, next_id)
            if not isinstance(awaited, AwaitedEach) or self.refusals.known or Refused in map(type, replies):
                for call_id, reply in zip(ids, replies, strict=True):
                    self.answer(call_id, reply)
            else:
                self._answer_some(awaited, ids, replies)
            at_id = next_id

    def _answer_some(self, awaited: AwaitedEach, ids: range, replies: Sequence[Reply]) -> None:
        for call_id in ids:
            del self.awaited[call_id]
        asked = self._calls_of[awaited.owner]
        asked.difference_update(ids)
        if not asked:
            del self._calls_of[awaited.owner]
        begin = ids.start - awaited.first_id
        names = awaited.reads.names[begin : begin + len(ids)]
        self.run(awaited.owner, awaited.handle, replies, awaited.of_one, names)

    def answer(self, call_id: int, reply: Reply) -> None:
        """Handle a reply; one that is no longer awaited is dropped."""
        awaited = self.awaited.pop(call_id, None)
        if awaited is None:
            return
        if isinstance(awaited, AwaitedEach):
            awaited = awaited.alone(call_id)
        discard(self._calls_of, awaited.owner, call_id)
        if isinstance(reply, Refused):
            if not self._is_to_be_handled(awaited, reply):
                return
        elif self.refusals.known:
            self._log_news(self.refusals.note_allowed(awaited.call))
        if awaited.is_fenced:
            reply = _behind_the_fence(reply)
        self.run(awaited.owner, awaited.handle, reply, *awaited.arguments)

    def _is_to_be_handled(self, awaited: Awaited, reply: Refused) -> bool:
        """Do what follows from a refusal for all parts; return whether the handler gets it."""
        if reply.outcome_unknown and not awaited.whatever_comes:
            return False
        if awaited.is_fenced and self._is_deposed(reply):
            self._step_down("another coordinator leads")
            return False
        is_expected = reply.refusal in awaited.expected
        if not is_expected or reply.refusal not in RACES:
            self._note_refused_call(awaited, reply)
        if not is_expected:
            self._repeat_later(awaited)
        return is_expected

    def _is_deposed(self, reply: Refused) -> bool:
        return reply.refusal in {Refusal.BAD_VERSION, Refusal.NO_NODE} and reply.index == 0

    def _note_refused_call(self, awaited: Awaited, reply: Refused) -> None:
        call = awaited.call
        if isinstance(call, Multi):  # the first one after the fence stands for all; the fence concerns no group
            self.note_refused(call.operations[awaited.is_fenced if reply.index is None else reply.index], reply.refusal)
        elif isinstance(call, Get | ListChildren):
            self.note_refused(call, reply.refusal)

    def _repeat_later(self, awaited: Awaited) -> None:
        """Repeat a refused call after a pause; a read that will be repeated already, for the same handler, only once.

        Otherwise each event that asks for a refused node would add a call that is repeated for ever.
        """
        again = awaited._replace(tries=awaited.tries + 1)
        self._numbers.call_id += 1
        name = ("refused", self._numbers.call_id if isinstance(awaited.call, Multi) else awaited.question)
        self.note_waiting(awaited.owner)
        if (awaited.owner, name) not in self.due:
            self.wake(awaited.owner, name, self.now.mono_us + pause_us(awaited.tries), self.request, (again,))

    def note_refused(self, refused: Refusable, refusal: Refusal) -> None:
        """Log a refusal once for each path and right."""
        text = self.refusals.note(refused, refusal, self.now.mono_us)
        self._log_news([] if text is None else [text])

    def _log_news(self, texts: Sequence[str]) -> None:
        self.is_news = self.is_news or bool(texts)
        self.effects += map(Warn, texts)

    def forget(self, owner: str) -> None:
        """Drop all replies and timers that `owner` waits for."""
        for call_id in self._calls_of.pop(owner, ()):
            del self.awaited[call_id]
        for name in self._timers_of.pop(owner, ()):
            del self.due[owner, name]

    def forget_all_but(self, owner: str) -> list[dict[Any, Any] | list[Any]]:
        """Drop all back-offs, and the replies and timers of all but one owner; return what has to be freed."""
        calls_of, timers_of, awaited, due = self._calls_of, self._timers_of, self.awaited, self.due
        rubbish: list[dict[Any, Any] | list[Any]] = [calls_of, timers_of, awaited, due]
        rubbish += [self._heap, self._in_heap, self.backing_off, self.unapproved]
        self._calls_of, self._timers_of, self.backing_off = defaultdict(set), defaultdict(set), {}
        self.unapproved = {}
        self._heap, self._in_heap = [], {}
        self.awaited = {call_id: awaited[call_id] for call_id in calls_of.get(owner, ())}
        self._calls_of[owner].update(self.awaited)
        self.due = {}
        for name in timers_of.get(owner, ()):
            self.wake(owner, name, *due[owner, name])
        return rubbish

    def run_next_due(self) -> None:
        """Run the first due timer; the others run in later steps."""
        at_us = self.next_deadline_us()
        if at_us is None or at_us > self.now.mono_us:
            return
        key = self._pop()
        if key is not None:
            _at_us, handle, arguments = self.due.pop(key)
            discard(self._timers_of, *key)
            self.run(key[0], handle, *arguments)

    def run(self, owner: str, step: Handler, *arguments: Any) -> None:  # noqa: ANN401  # passed on as they are
        """Run a step of a group, or of a part that serves all groups; `contain` gets what a group's step raises."""
        done_before = len(self.effects)
        try:
            step(*arguments)
        except MemoryError:
            raise  # it affects the whole process
        except Exception as error:
            if self.contain is None or owner.startswith("/"):
                raise
            del self.effects[done_before:]
            self.contain(owner, error, f"{step.__qualname__}{arguments!r}")

    def new_ticket(self) -> int:
        """Return a number that no earlier computation of this process had."""
        self._numbers.ticket += 1
        return self._numbers.ticket

    def take_effects(self) -> list[Effect]:
        """Return the effects collected since the last call, in order."""
        effects, self.effects = self.effects, []
        self.work = 0
        return effects


class PartScheduler:
    """The scheduler on behalf of one owner: a group, or a part that serves all groups."""

    def __init__(self, scheduler: Scheduler, owner: str, group: str | None) -> None:
        """See `Scheduler.part`."""
        self._scheduler = scheduler
        self._owner = owner
        self._group = group

    @property
    def now(self) -> Now:
        """The time of the event being handled."""
        return self._scheduler.now

    def ask(
        self,
        call: Call,
        handle: Handler,
        *arguments: Any,  # noqa: ANN401  # passed on as they are
        expected: frozenset[Refusal] = RACES,
        whatever_comes: bool = False,
    ) -> None:
        """Make a call; `handle(reply, *arguments)` gets the reply unless `forget` comes first.

        `expected`: refusals that `handle` accepts; after any other, the call is retried at growing intervals.
        `whatever_comes`: whether it also gets a reply that only reports a broken connection.
        """
        awaited = Awaited(self._owner, call, handle, arguments, expected, whatever_comes=whatever_comes)
        self._scheduler.request(awaited)

    def ask_each(
        self, reads: ReadEach, handlers: tuple[Handler, Handler, Handler], expected: frozenset[Refusal]
    ) -> None:
        """Make reads, in order, as `ask` makes each; see `Scheduler.request_each`."""
        self._scheduler.request_each(self._owner, reads, handlers, expected)

    def write(
        self,
        operations: Iterable[Operation],
        handle: Handler,
        *arguments: Any,  # noqa: ANN401
        expected: frozenset[Refusal] = RACES,
    ) -> None:
        """Make a fenced transaction; `handle` gets its reply, with results and `index` of these operations.

        Only the failure of the fence deposes the leader; then `handle` is not called.
        """
        call = Multi((self._scheduler.fence, *operations))
        self._scheduler.request(Awaited(self._owner, call, handle, arguments, expected, is_fenced=True))

    def note_refused(self, refused: Refusable, refusal: Refusal) -> None:
        """See `Scheduler.note_refused`."""
        self._scheduler.note_refused(refused, refusal)

    def note_backing_off(self, reason: str | None) -> None:
        """Note why the group backs off; None: it does not."""
        self._note(self._scheduler.backing_off, reason)

    def note_unapproved(self, waiting: Waiting | None, limit: int | None = None) -> None:
        """Note the plan that waits for an operator, as it moves more than `limit`; None: none. Log a new one."""
        known = self._scheduler.unapproved.get(self._owner)
        is_news = known is None or waiting is None or known.moves != waiting.moves
        if self._note(self._scheduler.unapproved, waiting) and waiting is not None and is_news:
            self.warn(
                f"a plan would move {waiting.moves} partitions, more than {limit} (approve_moves_above):"
                f" it waits for `zkrebalancer groups resume {self._owner}`"
            )

    def _note(self, known: dict[str, Noted], value: Noted | None) -> bool:
        if known.get(self._owner) == value:
            return False
        self._scheduler.is_news = True
        if value is None:
            del known[self._owner]
        else:
            known[self._owner] = value
        return True

    @property
    def limit(self) -> RequestLimit:
        """The limit of transactions."""
        return self._scheduler.limit

    def room(self, operations: Iterable[Operation] = ()) -> int:
        """Return how many bytes are left in a `write` that has these operations."""
        return self.limit.max_bytes - self.limit.size((self._scheduler.fence, *operations))

    def fitting(self, operations: Sequence[Operation]) -> int:
        """Return how many of these operations, in order, one `write` takes."""
        return self.limit.fitting(operations, (self._scheduler.fence,))

    def do(self, effect: Effect) -> None:
        """Add an effect; its outcome, if any, returns as an event."""
        self._scheduler.effects.append(effect)

    def forget(self) -> None:
        """Drop all replies and timers that the owner waits for."""
        self._scheduler.forget(self._owner)

    def wake(self, name: Hashable, at_us: int, handle: Handler, *arguments: Any) -> None:  # noqa: ANN401
        """Call `handle(*arguments)` at `at_us`; a second call with the same name moves the timer."""
        self._scheduler.wake(self._owner, name, at_us, handle, arguments)

    def wake_soon(self, name: Hashable, handle: Handler, *arguments: Any) -> None:  # noqa: ANN401
        """Continue in a separate step, so that other groups have their turn."""
        self.wake(name, self.now.mono_us + 1, handle, *arguments)

    @property
    def has_time(self) -> bool:
        """Whether this step may do more work that can wait."""
        return self._scheduler.work < MAX_WORK_PER_STEP

    def spend(self, units: int) -> None:
        """Count work of this step, in units of MAX_WORK_PER_STEP."""
        self._scheduler.work += units

    def cancel_wake(self, name: Hashable) -> None:
        """Drop a timer, if there is one."""
        self._scheduler.cancel_wake(self._owner, name)

    def has_timer(self, name: Hashable) -> bool:
        """Whether a timer of that name is set."""
        return (self._owner, name) in self._scheduler.due

    def new_id(self) -> str:
        """Return a fresh uuid, the same one whenever the same leadership is replayed."""
        self._scheduler.last_id += 1
        return str(uuid5(_NAMESPACE, f"{self._scheduler.id_seed}/{self._scheduler.last_id}"))

    def new_ticket(self) -> int:
        """See `Scheduler.new_ticket`."""
        return self._scheduler.new_ticket()

    def emit(self, kind: str, generation: int | None, cause_id: str | None, **fields: EventField) -> None:
        """Write one telemetry event."""
        self.do(Emit(kind, self._group, generation, cause_id, fields))

    def complain(self, path: str, text: str) -> None:
        """Write a log line about a node, or count it for a later one if the node had the same fault just now."""
        said = self._scheduler.complaints.text(path, text, self.now.mono_us / 1e6)
        if said is not None:
            self.warn(said)

    def warn(self, text: str) -> None:
        """Write one log line."""
        self.do(Warn(text if self._group is None else f"group {self._group}: {text}"))


def pause_us(tries: int) -> int:
    """Return how long to wait before retrying a refused call."""
    return min(MAX_PAUSE_US, FIRST_PAUSE_US << min(tries, 10))


def _behind_the_fence(reply: Reply) -> Reply:
    """Return the reply to a fenced transaction as if the fence had not been part of it; if it is refused, no index."""
    if isinstance(reply, Done):
        return Done(reply.results[1:])
    if isinstance(reply, Refused) and reply.index is not None:
        return Refused(reply.refusal, reply.index - 1 if reply.index else None)
    return reply


def _nothing_to_step_down_from(reason: str) -> None:
    raise AssertionError(f"deposed without leading: {reason}")
