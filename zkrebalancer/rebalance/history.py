"""Records the rebalances of a group in its node `history`, after their end and apart from them.

The node is read and written at most once in DELAY_US. What is not written yet is lost with the leader. Content that is
not a history is replaced; a node of a newer version stays as it is.
"""

from __future__ import annotations

from zkrebalancer.protocol import history, paths
from zkrebalancer.protocol.calls import Content, Create, Done, Get, Operation, Refused, Reply, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.history import MAX_LATE, MAX_REBALANCES, Phases, Rebalanced
from zkrebalancer.rebalance.causes import Request
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

DELAY_US = 1_000_000  # so that rebalances that follow one another share a write


class History:
    """The history of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, epoch: int) -> None:
        """Start with nothing to write."""
        self._scheduler = scheduler
        self._view = view
        self._epoch = epoch
        self._waiting: list[Rebalanced] = []  # the last MAX_REBALANCES that have ended and are not written yet
        self._is_busy = False  # the node is being read or written
        self._tries = 0  # writes in a row that failed because another client wrote first

    def ended(self, plan: Plan, request: Request, outcome: str) -> None:
        """Record a rebalance that has ended."""
        self._waiting.append(self._recorded(plan, request, outcome))
        del self._waiting[:-MAX_REBALANCES]
        self.look()

    def reset(self, *, is_new_group: bool) -> None:
        """Forget what is being read or written, because the group is read again; `look` continues afterwards."""
        self._is_busy = False
        if is_new_group:
            self._waiting.clear()  # these rebalances were those of the deleted group

    def look(self) -> None:
        """Schedule the next write, if there is something to write."""
        if self._waiting and not self._is_busy and not self._scheduler.has_timer("history"):
            at_us = self._scheduler.now.mono_us + max(DELAY_US, pause_us(self._tries))
            self._scheduler.wake("history", at_us, self._read)

    def _read(self) -> None:
        self._is_busy = True
        self._scheduler.ask(Get(paths.history(self._view.group)), self._write)

    def _write(self, reply: Reply) -> None:
        path = paths.history(self._view.group)
        before: list[dict[str, object]] = []
        if isinstance(reply, Content):
            try:
                before = history.entries(reply.content)
            except NodeContentError as error:
                if history.is_newer(reply.content):
                    self._scheduler.complain(path, f"{error}; nothing is added to it")
                    self._is_busy = False
                    self._waiting.clear()
                    return
                self._scheduler.complain(path, f"{error}; it is replaced")
        written = list(self._waiting)
        content = history.extended(before, written)
        write: Operation = (
            SetContent(path, content, reply.stat.version) if isinstance(reply, Content) else Create(path, content)
        )
        self._scheduler.write([write], self._written, written)

    def _written(self, reply: Reply, written: list[Rebalanced]) -> None:
        self._is_busy = False
        if isinstance(reply, Done):
            self._tries = 0
            keys = {one.key for one in written}
            self._waiting = [one for one in self._waiting if one.key not in keys]
        elif isinstance(reply, Refused):
            self._tries += 1
        self.look()

    def _recorded(self, plan: Plan, request: Request, outcome: str) -> Rebalanced:
        now_us, timing = self._scheduler.now.mono_us, plan.timing
        late = sorted(plan.late_members)
        return Rebalanced(
            id=plan.cause.id,
            epoch=self._epoch,
            generation=plan.generation,
            mode=plan.mode,
            requested_at_ms=request.requested_at_ms,
            reasons=tuple(request.reasons),
            reason_count=request.count,
            members=len(self._view.members),
            partitions=plan.transition.assigned_count,
            moved=plan.moved_count,
            outcome=outcome,
            settled_ms=(now_us - request.requested_us) / 1_000,
            pause_ms_max=plan.pause_us_max / 1_000,
            phases_ms=Phases(
                wait=(request.planning_us - request.requested_us) / 1_000,
                plan=(plan.made_us - request.planning_us) / 1_000,
                stop=timing.span_ms(of_stops=True),
                start=timing.span_ms(of_stops=False),
            ),
            late=tuple(late[:MAX_LATE]),
            late_count=len(late),
            slowest=timing.slowest,
        )
