"""The machine's scheduler: effects of this step, and timers and writes with the method that each of them wakes."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

from zkrebalancer.group_protocol.answers import Answer
from zkrebalancer.group_protocol.effects import Effect, Failed, Reply, Report, Reported, Standing, Store
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import refused
from zkrebalancer.group_protocol.requests import JoinGroupRequest, OneGroup, SyncGroupRequest
from zkrebalancer.group_protocol.stored import StoredContent

TimerKey = tuple[str, str, str]  # group, kind, member or ""
Contain = Callable[[str, Callable[[], None]], None]  # runs an action on a group, whatever it raises
SPARE_QUEUE_ENTRIES = 64  # entries of cancelled timers that the queue may have, beside one for each running timer


@dataclass(slots=True)
class _Timer:
    deadline_ms: int
    queued_ms: int  # time of its entry in the queue: the deadline, or earlier if that was postponed
    wake: Callable[[], None]


class Scheduler:
    """Time, effects, timers and writes of one machine. `now_ms`: of a clock that never jumps."""

    def __init__(self, contain: Contain = lambda _group_id, action: action()) -> None:
        """Start at 0; `contain` runs what timers and writes wake."""
        self.now_ms = 0
        self._contain = contain
        self._effects: list[Effect] = []
        self._timers: dict[TimerKey, _Timer] = {}
        self._queue: list[tuple[int, TimerKey]] = []
        self._writes: dict[int, tuple[str, Callable[[ErrorCode], None]]] = {}  # id -> group, callback
        self._unanswered: dict[int, OneGroup] = {}  # ticket -> a request for one group
        self._last_write_id = 0

    def take_effects(self) -> list[Effect]:
        """Remove and return the effects of this step."""
        effects, self._effects = self._effects, []
        return effects

    def note_request(self, ticket: int, request: OneGroup) -> None:
        """Note a request, which is refused if its group fails; it may wait for long, so its content is not kept."""
        if isinstance(request, JoinGroupRequest):
            request = replace(request, protocols=(), reason=None)
        elif isinstance(request, SyncGroupRequest):
            request = replace(request, assignments=())
        self._unanswered[ticket] = request

    def reply(self, ticket: int, answer: Answer) -> None:
        """Send an answer."""
        self._unanswered.pop(ticket, None)
        self._effects.append(Reply(ticket, answer))

    def report(self, group_id: str, text: str, client_host: str = "") -> None:
        """Log one line; see `Report`."""
        self._effects.append(Report(group_id, text, client_host))

    def report_members(self, group_id: str, members: tuple[Standing, ...]) -> None:
        """Report the members of a central group."""
        self._effects.append(Reported(group_id, members))

    def store(self, group_id: str, content: StoredContent | None, when_stored: Callable[[ErrorCode], None]) -> None:
        """Write a group, or delete it; `when_stored` gets the result."""
        self._last_write_id += 1
        self._writes[self._last_write_id] = group_id, when_stored
        self._effects.append(Store(self._last_write_id, group_id, content))

    def stored(self, write_id: int, error_code: ErrorCode) -> None:
        """Pass on the result of a write; unknown writes are ignored."""
        found = self._writes.pop(write_id, None)
        if found is not None:
            group_id, when_stored = found
            self._contain(group_id, lambda: when_stored(error_code))

    def fail(self, group_id: str, error: str, text: str, *, is_stored: bool) -> None:
        """Forget the timers and writes of a group that has failed, and refuse its unanswered requests."""
        for key in [key for key in self._timers if key[0] == group_id]:
            del self._timers[key]
        for write_id in [number for number, (other, _wake) in self._writes.items() if other == group_id]:
            del self._writes[write_id]
        for ticket, request in [one for one in self._unanswered.items() if one[1].group_id == group_id]:
            self.reply(ticket, refused(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        kept = [one for one in self._effects if not (isinstance(one, Store) and one.group_id == group_id)]
        self._effects = [*kept, Failed(group_id, error, text, is_stored)]  # what is half changed is not stored

    def start_timer(self, key: TimerKey, delay_ms: int, wake: Callable[[], None]) -> None:
        """Start a timer, or postpone it. Postponing, as each heartbeat does, adds no entry to the queue.

        It is due in a later step, whatever the delay: a timer that starts itself again would keep `wake_due` for ever.
        """
        deadline_ms = self.now_ms + max(1, delay_ms)
        timer = self._timers.get(key)
        if timer is not None and timer.queued_ms <= deadline_ms:
            timer.deadline_ms = deadline_ms
            timer.wake = wake
            return
        self._timers[key] = _Timer(deadline_ms, deadline_ms, wake)
        self._push(deadline_ms, key)

    def cancel_timer(self, key: TimerKey) -> None:
        """Stop a timer if it runs."""
        self._timers.pop(key, None)

    def has_timer(self, key: TimerKey) -> bool:
        """Whether this timer runs."""
        return key in self._timers

    def next_deadline_ms(self) -> int | None:
        """Return when `wake_due` is due; None: never."""
        return self._queue[0][0] if self._queue else None

    def wake_due(self) -> None:
        """Wake all due timers."""
        while self._queue and self._queue[0][0] <= self.now_ms:
            queued_ms, key = heapq.heappop(self._queue)
            timer = self._timers.get(key)
            if timer is None or timer.queued_ms != queued_ms:
                continue
            if timer.deadline_ms > self.now_ms:
                timer.queued_ms = timer.deadline_ms
                self._push(timer.deadline_ms, key)
                continue
            del self._timers[key]
            self._contain(key[0], timer.wake)

    def _push(self, queued_ms: int, key: TimerKey) -> None:
        if len(self._queue) > 2 * len(self._timers) + SPARE_QUEUE_ENTRIES:
            self._queue = [(timer.queued_ms, other) for other, timer in self._timers.items() if other != key]
            heapq.heapify(self._queue)
        heapq.heappush(self._queue, (queued_ms, key))
