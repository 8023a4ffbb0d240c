"""Confines a bug to the group in whose step it shows.

An exception in a step would end the process, and then every standby that takes over and reaches the same step. In a
group's step, the cause is in that group. So the group is dropped with all that it waits for, and read from ZooKeeper
again at growing intervals, while other groups continue. `Scheduler.run` catches the exception and drops the effects of
the step, so that the group's state, which may be half changed, has no effect.

An exception outside of any group's step (in the election, the topic listener, the scheduler) still ends the process:
then no group can rely on the shared state, and only a new process starts with a correct one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zkrebalancer.protocol.complaints import LineRate
from zkrebalancer.rebalance.scheduler import MAX_PAUSE_US, Scheduler, pause_us

OWNER = "/quarantine"  # no group has such a name
MAX_SHOWN = 4_000  # characters of each part of a report


@dataclass(slots=True)
class Entry:
    """A group whose step has failed."""

    reported: str  # the last error that was logged
    tries: int
    until_us: int


class Quarantine:
    """The groups that have failed under this leadership."""

    def __init__(
        self, scheduler: Scheduler, drop: Callable[[str], list[str]], serve_again: Callable[[str], None]
    ) -> None:
        """`drop(group)` forgets a group and returns the lines of its story; `serve_again(group)` loads it anew."""
        self.event: object = None  # the event being handled
        self.entries: dict[str, Entry] = {}  # at most one for each existing group
        self.out: dict[str, str] = {}  # groups that are not served now -> the error
        self.failures = 0
        self._scheduler = scheduler
        self._own = scheduler.part(OWNER)
        self._reports = LineRate()  # one has up to 24,000 characters, and a bug may show in all groups
        self._drop = drop
        self._serve_again = serve_again

    def contain(self, group: str, error: Exception, step: str) -> None:
        """Drop a group whose step has failed, until its pause is over."""
        story = self._drop(group)
        now_us = self._scheduler.now.mono_us
        before = self.entries.get(group)
        is_again = before is not None and now_us < before.until_us + 2 * MAX_PAUSE_US
        tries = before.tries + 1 if before is not None and is_again else 1
        text = f"{type(error).__name__}: {error}"[:MAX_SHOWN]
        until_us = now_us + pause_us(tries - 1)
        self.failures += 1
        entry = self.entries[group] = Entry("" if before is None else before.reported, tries, until_us)
        self.out[group] = text
        self._scheduler.is_news = True
        self._scheduler.part(OWNER, group).emit("group_quarantined", None, None, reason=text, tries=tries)
        is_new = entry.reported != text  # one that was left out is due when the group fails again
        if is_new and self._scheduler.complaints.text(f"{OWNER}/{group}", text, now_us / 1e6, self._reports):
            self._own.warn(_report(group, text, step, repr(self.event), error, story))
            entry.reported = text
        self._own.wake(group, until_us, self._let_in, group)

    def _let_in(self, group: str) -> None:
        self.out.pop(group, None)
        self._scheduler.is_news = True
        self._serve_again(group)

    def is_out(self, group: str) -> bool:
        """Whether the group is not served now."""
        return group in self.out

    def forget(self, group: str) -> None:
        """Forget a group that was deleted."""
        if self.entries.pop(group, None) is not None:
            self.out.pop(group, None)
            self._own.cancel_wake(group)

    def clear(self) -> list[dict[str, Any]]:
        """Forget all groups, because the leadership is over; return what has to be freed."""
        rubbish: list[dict[str, Any]] = [self.entries, self.out]
        self.entries, self.out = {}, {}
        return rubbish


def _report(group: str, text: str, step: str, event: str, error: Exception, story: list[str]) -> str:
    """Return what is needed to reproduce a failure, within bounds."""
    trace = "".join(traceback.format_tb(error.__traceback__))[-MAX_SHOWN:]
    head = f"group {group} is in quarantine, and is retried at growing intervals; this is a bug: {text}"
    notes = [f"note: {note:.{MAX_SHOWN}}" for note in getattr(error, "__notes__", ())]
    asked = [f"step: {step:.{MAX_SHOWN}}", f"event: {event:.{MAX_SHOWN}}"]
    return "\n".join([head, *notes, *asked, "story of the group:", *story, trace])
