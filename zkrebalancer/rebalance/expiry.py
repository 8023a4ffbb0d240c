"""Ends settings of a group that last for a limited time: a freeze, and a pause of starts that nothing renews.

The leader's clocks decide. While it leads, it measures the time that is left with its monotonic clock, so that a step
of the wall clock changes nothing; the next leader measures anew. An operation on offsets renews its pause with every
transaction, by changing `paused_by`. After the end of the pause, its writes fail, because they check the version of the
settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Content, Done, Get, Reply, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

PAUSE_LIMIT_US = 60_000_000  # a reset asks Kafka for 30 s at most between two renewals


@dataclass(frozen=True, slots=True)
class Expiring:
    """A setting that ends.

    `mark`: what identifies it while it is in force, None otherwise; with a new mark, its time starts again. `left_us`:
    how long it lasts from now. `ended`: the node's content without it.
    """

    name: str
    mark: Callable[[GroupSettings], str | int | None]
    left_us: Callable[[GroupSettings, Now], int]
    ended: Callable[[bytes], bytes]
    line: str


# Functions with names, because a group at rest can be copied, as tests do.
def _freeze(known: GroupSettings) -> int | None:
    return known.frozen_until_ms if known.thaws else None


def _freeze_left_us(known: GroupSettings, now: Now) -> int:
    return max(0, known.frozen_until_ms - now.epoch_ms) * 1_000


def _pause(known: GroupSettings) -> str | None:
    return known.paused_by if known.starts_paused else None


def _pause_left_us(_known: GroupSettings, _now: Now) -> int:
    return PAUSE_LIMIT_US


FREEZE = Expiring("freeze", _freeze, _freeze_left_us, settings.thawed, "the freeze has ended at its set time")
PAUSE = Expiring(
    "pause",
    _pause,
    _pause_left_us,
    settings.resumed,
    f"starts were paused by an operation that has made no progress for {PAUSE_LIMIT_US // 10**6} s",
)


class Expiry:
    """Watches one such setting of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, what: Expiring) -> None:
        """Start with none in force."""
        self._scheduler = scheduler
        self._view = view
        self._what = what
        self._mark: str | int | None = None  # of the one that is waited for
        self._until_us = 0  # kept when the group is read anew

    def look(self) -> None:
        """After the settings were read, wait until it is over."""
        known, now = self._view.settings, self._scheduler.now
        mark = self._what.mark(known)
        if mark is None:
            self._mark = None
            self._scheduler.cancel_wake(self._what.name)
            return
        if mark != self._mark:
            self._mark, self._until_us = mark, now.mono_us + self._what.left_us(known, now)
        self._scheduler.wake(self._what.name, self._until_us, self._read)

    def _read(self) -> None:
        self._scheduler.ask(Get(paths.group(self._view.group)), self._end)

    def _end(self, reply: Reply) -> None:
        """End it, unless the settings have changed meanwhile: then they are read and checked again."""
        if not isinstance(reply, Content):
            return
        try:
            known = settings.decode(reply.content)
        except NodeContentError:
            return  # logged when it was read; a change makes it readable
        if self._mark is not None and self._what.mark(known) == self._mark:
            write = SetContent(paths.group(self._view.group), self._what.ended(reply.content), reply.stat.version)
            self._scheduler.write([write], self._ended)

    def _ended(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self._scheduler.warn(self._what.line)


class Expiries:
    """Watches a group's freeze and its pause of starts."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Start with none of them in force."""
        self._each = tuple(Expiry(scheduler, view, what) for what in (FREEZE, PAUSE))

    def look(self) -> None:
        """After the settings were read, wait for the ends."""
        for each in self._each:
            each.look()
