"""Keeps what is known of each run between refreshes, in memory, and decides which runs are looked at as a whole.

A run that is not known here, as after a restart, is read from its beginning, in slices of time. So is one that got an
event that is too late. If clocks are known better, so that settled events of a run are elsewhere, it goes back to a
mark before these events, or to its beginning; if it has to do that too often, Spark looks at it as a whole for a while.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zkrebalancer.pipeline.commits import Commits
from zkrebalancer.pipeline.continued import run as one_run
from zkrebalancer.pipeline.continued.aligned import AlignedRun
from zkrebalancer.pipeline.continued.clocks import ClocksMovedError
from zkrebalancer.pipeline.continued.look_back import look_back
from zkrebalancer.pipeline.continued.records import NotContinuableError
from zkrebalancer.pipeline.continued.run import ContinuedRun, LateEventError
from zkrebalancer.pipeline.continued.stored import Events, Span, StoredEvents
from zkrebalancer.pipeline.continued.tables import Parts, RunTables
from zkrebalancer.pipeline.facts.deliveries import BUCKET_US

MAX_RUNS = 1_000  # that are remembered
MAX_WAITING = 200_000  # events that are not settled, of a run and of all together; Spark reads more of them sooner
MAX_REMEMBERED = 1_000_000  # records and commands that tie clocks, of all runs together
MAX_MARKED_BYTES = 256 * 1024 * 1024  # of the states of all runs to which they may go back
MAX_PATIENCE_US = 600_000_000  # an event that is later makes its run anew, each time
MAX_CLOCK_PATIENCE_US = 60_000_000  # what clocks move later is handled again, which costs less than waiting events
MAX_PAUSE = 64  # refreshes in which Spark looks at a run whose clocks move settled events
SLICE_EVENTS = 200_000  # of a run that are handled at once

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pause:
    """How long a run is left to Spark, in refreshes."""

    length: int = 0  # a run that was continued as often until its clocks moved settled events is continued again
    left: int = 0


class Keeper:
    """What is known of runs."""

    def __init__(self) -> None:
        """Know no run."""
        self._runs: OrderedDict[str, ContinuedRun] = OrderedDict()  # the one that was touched last is the last one
        self._sizes: dict[str, tuple[int, int]] = {}  # of these: how many events wait, and how much is remembered
        self._waiting = self._remembered = 0  # of all together
        self._whole: set[str] = set()  # runs that have to be looked at as a whole
        self._dropped: set[str] = set()  # runs for which there was no room when they last got events
        self._pauses: OrderedDict[str, _Pause] = OrderedDict()  # of runs whose clocks moved settled events

    def refresh(
        self, commits: Commits, parts: Parts, events: tuple[list[Path], Path], number: int
    ) -> tuple[int, int, list[str]]:
        """Bring the tables of the runs of micro-batch `number` up to date.

        `events`: the folders with all events, and that of the micro-batch's among them. Return how many lines and runs
        are new, and the runs that have to be looked at as a whole.
        """
        folders, added = events
        fresh = StoredEvents([added])
        lines, whole, new = 0, list[str](), fresh.by_run()
        handled: list[str] = []
        for name, of_run in new.items():
            lines += sum(table.num_rows for table in of_run.values())
            tables = RunTables(commits, parts, name, number)
            stored = fresh if tables.is_new else StoredEvents(folders)
            if name in self._whole or self._is_paused(name) or not self._refresh(name, of_run, (fresh, stored), tables):
                whole.append(name)
            handled.append(name)
            self._make_room(new, handled)
        self._dropped -= self._runs.keys()
        self._forget_marks()
        return lines, len(new), whole

    def _refresh(self, name: str, new: Events, read: tuple[StoredEvents, StoredEvents], tables: RunTables) -> bool:
        """Bring the tables of a run up to date; return whether that was possible. `read`: what is new, and all."""
        try:
            run = self._continued(name, new, read, tables)
            if run is None:
                return False
            back = partial(look_back, name, run.reading(read[1]), tables.settled)
            for until_us in _limits(run, run.times()):
                tables.settle(run.settle(until_us, back))
            _require_few(run.waiting)
            tables.end(run.rest(back))
        except NotContinuableError as reason:
            if str(reason):
                _log.warning("run %s: %s, so it is made whole each time", name, reason)
            self._whole.add(name)
            return False
        except pa.ArrowException:  # of one run, of data that Spark may be able to read: the others go on
            _log.exception("run %s cannot be continued, so it is made whole each time", name)
            self._whole.add(name)
            return False
        run.refreshes += 1
        self._keep(name, run)
        if isinstance(run, AlignedRun):
            run.mark(tables.marked())
        return True

    def _make_room(self, new: Collection[str], handled: Collection[str]) -> None:
        """Forget runs while there are too many: first those that are not among the `new`, then some of the `handled`.

        One that gets events all the time would be read from its beginning each time, so Spark makes it whole instead.
        """
        if not self._are_too_many():
            return
        for name in [each for each in self._runs if each not in new]:
            self._take(name)
            if not self._are_too_many():
                return
        while self._are_too_many() and (kept := [each for each in handled if each in self._runs]):
            name = max(kept, key=lambda each: (each in self._dropped, sum(self._sizes[each])))
            self._take(name)
            if name in self._dropped:
                _log.warning(
                    "run %s: no room for it beside others with new events, so it is made whole each time", name
                )
                self._whole.add(name)
            self._dropped.add(name)

    def _are_too_many(self) -> bool:
        is_too_much = self._waiting > MAX_WAITING or self._remembered > MAX_REMEMBERED
        return len(self._runs) > 1 and (len(self._runs) > MAX_RUNS or is_too_much)

    def _keep(self, name: str, run: ContinuedRun) -> None:
        self._runs[name] = run
        waiting, remembered = self._sizes[name] = run.waiting, run.remembered
        self._waiting += waiting
        self._remembered += remembered

    def _take(self, name: str) -> ContinuedRun | None:
        """Return a run, which may change now; it is not kept until it is given back."""
        waiting, remembered = self._sizes.pop(name, (0, 0))
        self._waiting -= waiting
        self._remembered -= remembered
        return self._runs.pop(name, None)

    def _forget_marks(self) -> None:
        """Forget the marks of runs that were touched least recently, until the others are not too large."""
        size = sum(run.marked_bytes for run in self._aligned())
        for run in self._aligned():
            if size > MAX_MARKED_BYTES:
                size -= run.marked_bytes
                run.forget_marks()

    def marked_folders(self) -> set[str]:
        """Return the folders to which runs may go back, besides those of the commit."""
        return {folder for run in self._aligned() for folder in run.marked_folders()}

    def _aligned(self) -> Iterator[AlignedRun]:
        return (run for run in self._runs.values() if isinstance(run, AlignedRun))

    def _continued(
        self, name: str, new: Events, read: tuple[StoredEvents, StoredEvents], tables: RunTables
    ) -> ContinuedRun | None:
        """Return the run with the new events, which may wait; None: it is left to Spark for a while."""
        run = self._take(name)
        patience_us = one_run.LATE_US
        if run is not None:
            try:
                run.take_new(new, read[0])
            except LateEventError as late:
                patience_us = _patience(name, run, late)
            except ClocksMovedError as moved:
                patience_us = _patience_with_clocks(name, run, moved)
                if moved.since_us is not None and _goes_back(run, name, read, tables):
                    run.patience_us = patience_us
                    return run
                if self._pause(name, run):
                    return None
            else:
                if isinstance(run, AlignedRun) or not run.has_several_clocks:
                    return run
                patience_us = run.patience_us
        return _anew(name, patience_us, new, read, tables)

    def _is_paused(self, name: str) -> bool:
        pause = self._pauses.get(name)
        if pause is None or not pause.left:
            return False
        pause.left -= 1
        return True

    def _pause(self, name: str, run: ContinuedRun) -> bool:
        """Leave a run to Spark if its clocks moved settled events soon after it was read; return whether they did."""
        pause = self._pauses.setdefault(name, _Pause())
        self._pauses.move_to_end(name)
        if len(self._pauses) > MAX_RUNS:
            self._pauses.popitem(last=False)
        if run.refreshes > pause.length:
            pause.length = max(1, pause.length // 2)
            return False
        pause.length = min(2 * pause.length, MAX_PAUSE)
        pause.left = pause.length - 1
        _log.warning("run %s: that came soon, so Spark makes its tables in %d refreshes", name, pause.length)
        return True


def _anew(
    name: str, patience_us: int, new: Events, read: tuple[StoredEvents, StoredEvents], tables: RunTables
) -> ContinuedRun:
    """Return a run that is read from its beginning."""
    fresh, stored = read
    run = ContinuedRun(name, patience_us)
    if tables.is_new:
        run.take_new(new, fresh)
        if not run.has_several_clocks:
            return run
    else:
        tables.clear()
        run.see_all(stored)
    if run.has_several_clocks:
        run = AlignedRun(name, patience_us, run)
        run.see_all(stored)
    _read(run, name, stored, tables)
    return run


def _patience(name: str, run: ContinuedRun, late: LateEventError) -> int:
    """Return how long a run waits after an event was late."""
    if late.at_us is None:
        return run.patience_us
    late_us = (run.latest_us or 0) - late.at_us
    patience_us = max(run.patience_us, min(2 * late_us, MAX_PATIENCE_US))
    _log.warning(
        "run %s: an event came %.1f s late, so its tables are made again; from now on, it waits %.1f s",
        name,
        late_us / 1e6,
        patience_us / 1e6,
    )
    return patience_us


def _patience_with_clocks(name: str, run: ContinuedRun, moved: ClocksMovedError) -> int:
    """Return how long a run waits after its clocks moved settled events; they may do so hours later: it is no use."""
    patience_us = run.patience_us
    if moved.since_us is not None and 2 * ((run.latest_us or 0) - moved.since_us) <= MAX_CLOCK_PATIENCE_US:
        patience_us = max(patience_us, 2 * ((run.latest_us or 0) - moved.since_us))
    _log.warning(
        "run %s: its clocks are known better, which moves settled events: these are handled again; it waits %.1f s",
        name,
        patience_us / 1e6,
    )
    return patience_us


def _goes_back(run: ContinuedRun, name: str, read: tuple[StoredEvents, StoredEvents], tables: RunTables) -> bool:
    """Go back to where settled events have not moved, and on from there; return whether that was possible."""
    fresh, stored = read
    marked = run.go_back(fresh, stored) if isinstance(run, AlignedRun) else None
    if marked is None:
        return False
    tables.go_back(marked)
    _take_all(run, name, stored, tables)
    run.take_told(fresh)
    return True


def _read(run: ContinuedRun, name: str, stored: StoredEvents, tables: RunTables) -> None:
    """Take the events of a run from its beginning; all were seen."""
    _take_all(run, name, stored, tables)
    run.take_told(stored)


def _take_all(run: ContinuedRun, name: str, stored: StoredEvents, tables: RunTables) -> None:
    """Take the events of a run that are not settled, from its beginning or from a mark on; all were seen."""
    reading, last = run.reading(stored), run.settled_us
    back = partial(look_back, name, reading, tables.settled)
    times, limit_us = reading.times(name, last), run.limit_us()
    _require_few(len(times) if limit_us is None else int(np.count_nonzero(times >= limit_us)))
    for end_us in _limits(run, times):
        run.take(reading.of(name, Span(last, end_us)))
        tables.settle(run.settle(end_us, back))
        last = end_us
    run.take(reading.of(name, Span(last, None)))


def _require_few(waiting: int) -> None:
    if waiting > MAX_WAITING:
        raise NotContinuableError(f"more than {MAX_WAITING} events wait for late ones")


def _limits(run: ContinuedRun, times: npt.NDArray[np.int64]) -> Iterator[int]:
    """Iterate over the ends of slices of about SLICE_EVENTS events, until all is settled that can be."""
    until_us = run.limit_us()
    if until_us is None:
        return
    last = run.settled_us or 0
    for at_us in np.sort(times)[SLICE_EVENTS::SLICE_EVENTS].tolist():
        end_us = at_us // BUCKET_US * BUCKET_US
        if last < end_us < until_us:
            yield end_us
            last = end_us
    yield until_us
