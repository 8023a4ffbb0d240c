"""The list of all groups: counted in slices by one greenlet for all readers, then searched and cut into pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages.group_view import cut
from zkrebalancer.rebalance.census import Figures
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.runtime import clock

GROUPS_PER_PAGE = 50
SNAPSHOT_INTERVAL_S = 1.0
MAX_SHARE_OF_TIME = 10  # after a slow count, the pause is at least this many times as long
COUNT_WAIT_S = 10.0  # then a reader gets what was counted last; the count goes on
MAX_SEARCH = 200  # characters
MAX_KEPT = 20  # pages that are kept for others who ask for the same
MAX_OUT_SHOWN = 20  # groups that are not served
LOUD = frozenset(GroupState) - {GroupState.IDLE, GroupState.FROZEN}


@dataclass(frozen=True, slots=True)
class Listed:
    """All groups at about one moment. `problems`: group -> why it backs off; `out`: the same, if it is not served.

    `unread`: how many groups wait to be read; `interval_s`: until the next count, None if this is none.
    """

    figures: tuple[Figures, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    out: Mapping[str, str] = field(default_factory=dict)
    unread: int = 0
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which groups to list: names that contain `search`, of one state (None: of any), and which page of them."""

    search: str = ""
    state: str | None = None
    page: int = 1


class Overview:
    """Counts the groups while somebody looks at them."""

    def __init__(self, monitor: Monitor) -> None:
        """Count nothing yet."""
        self._monitor = monitor
        self._listed = Listed()
        self._counting: Event | None = None  # set when the count that is under way ends
        self._next_us = 0  # when they are counted again, at the earliest
        self._led: object = None  # the leaderships under which they were counted last

    def look(self) -> Listed:
        """Return all groups as they were counted last, or count them; blocks this greenlet only, for COUNT_WAIT_S."""
        led = self._monitor.epoch, self._monitor.led
        if clock.steady_us() < self._next_us and led == self._led:
            return self._listed
        if self._counting is None:
            self._counting, self._led = Event(), led
            gevent.spawn(self._count, self._counting)
        self._counting.wait(COUNT_WAIT_S)
        return self._listed

    def _count(self, counting: Event) -> None:
        began_us = clock.steady_us()
        pause_us = int(SNAPSHOT_INTERVAL_S * 1e6)
        try:
            figures = tuple(self._monitor.figures())
            problems: dict[str, str] = {}
            out: dict[str, str] = {}
            for one in self._monitor.shards.machines:
                problems |= one.scheduler.backing_off
                out |= one.quarantine.out
            pause_us = max(pause_us, MAX_SHARE_OF_TIME * (clock.steady_us() - began_us))
            self._listed = Listed(figures, problems, out, self._monitor.unread_count(), pause_us / 1e6)
        finally:
            self._next_us = clock.steady_us() + pause_us
            self._counting = None
            counting.set()


class Rendered:
    """Pages that were made of one count: kept for others who ask for the same, until there is another count."""

    def __init__(self) -> None:
        """Have none."""
        self._listed, self._role = Listed(), dict[str, Any]()
        self._pages: dict[Wanted, bytes] = {}

    def find(self, listed: Listed, role: dict[str, Any], wanted: Wanted) -> bytes | None:
        """Return a page if it was made of this count by a coordinator in the same role."""
        return self._pages.get(wanted) if self._listed is listed and self._role == role else None

    def keep(self, listed: Listed, role: dict[str, Any], wanted: Wanted, page: bytes) -> None:
        """Keep a page, and forget those of other counts."""
        if self._listed is not listed or self._role != role:
            self._listed, self._role, self._pages = listed, role, {}
        elif len(self._pages) == MAX_KEPT:
            del self._pages[next(iter(self._pages))]
        self._pages[wanted] = page


def document(listed: Listed, wanted: Wanted, started_ms: int) -> dict[str, Any]:
    """Return one page of the matching groups, and sums over all; groups at work or without an owner come first.

    `started_ms`: the epoch time of the clock that `Figures.since_us` counts by.
    """
    search = wanted.search.lower()
    matching = [
        one
        for one in listed.figures
        if search in one.group.lower() and (wanted.state is None or one.state.value == wanted.state)
    ]
    matching.sort(key=lambda one: (not _is_loud(one, listed.problems), one.group))
    page, pages, shown = cut(matching, wanted.page, GROUPS_PER_PAGE)
    out = sorted(name for name in listed.out if search in name.lower())
    return {
        "interval_s": listed.interval_s,
        "unread": listed.unread,
        "out_count": len(out),
        "out": [{"group": name, "problem": listed.out[name]} for name in out[:MAX_OUT_SHOWN]],
        "totals": _totals(listed.figures),
        "matching": len(matching),
        "page": page,
        "pages": pages,
        "groups": [_line(one, listed.problems, started_ms) for one in shown],
    }


def _is_loud(one: Figures, problems: Mapping[str, str]) -> bool:
    return one.state in LOUD or one.unowned > 0 or one.group in problems


def _totals(figures: Sequence[Figures]) -> dict[str, Any]:
    states = Counter(one.state.value for one in figures)
    return {
        "groups": len(figures),
        "states": {state.value: states[state.value] for state in GroupState if states[state.value]},
        "members": sum(one.members for one in figures),
        "partitions": sum(one.partitions for one in figures),
        "unowned": sum(one.unowned for one in figures),
        "pending_commands": sum(one.pending_commands for one in figures),
    }


def _line(one: Figures, problems: Mapping[str, str], started_ms: int) -> dict[str, Any]:
    return {
        "group": one.group,
        "state": one.state.value,
        "since_ms": started_ms + one.since_us // 1_000,
        "generation": one.generation,
        "members": one.members,
        "partitions": one.partitions,
        "unowned": one.unowned,
        "pending_commands": one.pending_commands,
        "problem": problems.get(one.group),
    }
