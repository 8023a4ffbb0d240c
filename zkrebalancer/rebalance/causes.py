"""What has changed in a group since its last plan began: why it is rebalanced next, and when that may begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zkrebalancer.protocol.command import Cause
from zkrebalancer.protocol.history import MAX_NAME, MAX_REASONS, Reason
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView


@dataclass(slots=True)
class Request:
    """A requested rebalance. `reasons`: the first ones, of `count`."""

    cause: Cause
    requested_us: int
    requested_at_ms: int
    reasons: list[Reason] = field(default_factory=list)
    count: int = 0
    planning_us: int = 0  # when planning began

    def add(self, reason: Reason) -> None:
        """Add a further reason."""
        self.count += 1
        if len(self.reasons) < MAX_REASONS:
            named = None if reason.subject is None else reason.subject[:MAX_NAME]
            self.reasons.append(replace(reason, subject=named))


class Causes:
    """The request of one group that waits for the next plan, if there is one."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Start without a request."""
        self._scheduler = scheduler
        self._view = view
        self.pending: Request | None = None
        self.queue_at_us = 0  # when the debounce of `pending` is over
        self._last_change_us = -(10**12)

    def add(self, kind: str, subject: str | None, author: LastChange | None = None) -> None:
        """Note a change. Changes before the next plan are combined, and delay it up to a cap.

        `subject`: see `Reason`; `author`: who has asked, if that is known.
        """
        now = self._scheduler.now.mono_us
        debounce_us = self._view.settings.rebalance_debounce_ms * 1_000
        was_quiet = now >= self._last_change_us + debounce_us
        self._last_change_us = now
        if self.pending is None:
            self.begin(kind, subject, author)
            self.queue_at_us = now if was_quiet else now + debounce_us
            return
        self.pending.add(_reason(kind, subject, author))
        cap_us = self._view.settings.rebalance_debounce_cap_ms * 1_000
        self.queue_at_us = max(self.queue_at_us, min(now + debounce_us, self.pending.requested_us + cap_us))

    def begin(self, kind: str, subject: str | None = None, author: LastChange | None = None) -> None:
        """Request a rebalance."""
        now = self._scheduler.now
        request = self.pending = Request(Cause(self._scheduler.new_id(), kind), now.mono_us, now.epoch_ms)
        request.add(_reason(kind, subject, author))
        self._scheduler.emit("rebalance_requested", self._view.generation, request.cause.id, trigger=kind)

    def take(self) -> Request:
        """Return the request, because its plan begins now."""
        request, self.pending = self.pending, None
        if request is None:
            raise AssertionError(f"group {self._view.group} is planned without a cause")
        request.planning_us = self._scheduler.now.mono_us
        return request

    def put_back(self, dropped: Request) -> None:
        """Give the next plan also the reasons of a plan that was dropped, and the time of its request."""
        later, self.pending = self.pending, dropped
        if later is not None:
            for reason in later.reasons:
                dropped.add(reason)
            dropped.count += later.count - len(later.reasons)


def _reason(kind: str, subject: str | None, author: LastChange | None) -> Reason:
    return Reason(kind, subject) if author is None else Reason(kind, subject or author.what, author.by)
