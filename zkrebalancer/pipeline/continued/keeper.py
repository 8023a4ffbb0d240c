"""Keeps what is known of each run between refreshes, in memory, and decides which runs are looked at as a whole.

A run that is not known here, as after a restart, is read from its beginning, in slices of time. So is one that got an
event that is too late. Runs with several clocks stay with Spark: each new event may move all others in time (`align`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zkrebalancer.pipeline.commits import Commits
from zkrebalancer.pipeline.continued import run as one_run
from zkrebalancer.pipeline.continued.look_back import look_back
from zkrebalancer.pipeline.continued.records import NotContinuableError
from zkrebalancer.pipeline.continued.run import ContinuedRun, LateEventError
from zkrebalancer.pipeline.continued.stored import TOLD, Events, Span, StoredEvents
from zkrebalancer.pipeline.continued.tables import Parts, RunTables
from zkrebalancer.pipeline.facts.deliveries import BUCKET_US

MAX_RUNS = 1_000  # that are remembered
MAX_WAITING = 200_000  # events that are not settled, of a run and of all together; Spark reads more of them sooner
MAX_PATIENCE_US = 600_000_000  # an event that is later makes its run anew, each time
SLICE_EVENTS = 200_000  # of a run that are handled at once

_log = logging.getLogger(__name__)


class Keeper:
    """What is known of runs."""

    def __init__(self) -> None:
        """Know no run."""
        self._runs: OrderedDict[str, ContinuedRun] = OrderedDict()  # the one that was touched last is the last one
        self._whole: set[str] = set()  # runs that have to be looked at as a whole
        self._dropped: set[str] = set()  # runs that got events last time, and for which there was no room

    def refresh(
        self, commits: Commits, parts: Parts, events: tuple[list[Path], Path], number: int
    ) -> tuple[int, int, list[str]]:
        """Bring the tables of the runs of micro-batch `number` up to date.

        `events`: the folders with all events, and that of the micro-batch's among them. Return how many lines and runs
        are new, and the runs that have to be looked at as a whole.
        """
        folders, added = events
        lines, whole, new = 0, list[str](), StoredEvents([added]).by_run()
        handled: list[str] = []
        for name, of_run in new.items():
            lines += sum(table.num_rows for table in of_run.values())
            tables = RunTables(commits, parts, name, number)
            stored = StoredEvents([added] if tables.is_new else folders)
            if name in self._whole or not self._refresh(name, of_run, stored, tables):
                self._whole.add(name)
                whole.append(name)
            handled.append(name)
            self._make_room(new, handled)
        self._dropped -= self._runs.keys()
        return lines, len(new), whole

    def _refresh(self, name: str, new: Events, stored: StoredEvents, tables: RunTables) -> bool:
        """Bring the tables of a run up to date; return whether that was possible."""
        back = partial(look_back, name, stored, tables.settled)
        try:
            run = self._continued(name, new, stored, tables)
            if run.has_several_clocks:
                return False
            for until_us in _limits(run, run.times()):
                tables.settle(run.settle(until_us, back))
            _require_few(run.waiting)
            tables.end(run.rest(back))
        except NotContinuableError as reason:
            if str(reason):
                _log.warning("run %s: %s, so it is made whole each time", name, reason)
            return False
        except pa.ArrowException:  # of one run, of data that Spark may be able to read: the others go on
            _log.exception("run %s cannot be continued, so it is made whole each time", name)
            return False
        self._runs[name] = run
        return True

    def _make_room(self, new: Collection[str], handled: Collection[str]) -> None:
        """Forget runs while there are too many: first those that are not among the `new`, then some of the `handled`.

        One that gets events all the time would be read from its beginning each time, so Spark makes it whole instead.
        """
        for name in [each for each in self._runs if each not in new]:
            if not self._are_too_many():
                return
            del self._runs[name]
        while self._are_too_many() and (kept := [each for each in handled if each in self._runs]):
            name = max(kept, key=lambda each: (each in self._dropped, self._runs[each].waiting))
            del self._runs[name]
            if name in self._dropped:
                _log.warning(
                    "run %s: no room for it beside others with new events, so it is made whole each time", name
                )
                self._whole.add(name)
            self._dropped.add(name)

    def _are_too_many(self) -> bool:
        runs = self._runs.values()
        return len(runs) > 1 and (len(runs) > MAX_RUNS or sum(run.waiting for run in runs) > MAX_WAITING)

    def _continued(self, name: str, new: Events, stored: StoredEvents, tables: RunTables) -> ContinuedRun:
        """Return the run with the new events, which may wait."""
        run = self._runs.pop(name, None)
        patience_us = one_run.LATE_US
        if run is not None:
            try:
                _take(run, new)
            except LateEventError as late:
                patience_us = run.patience_us
                if late.at_us is not None:
                    late_us = (run.latest_us or 0) - late.at_us
                    patience_us = max(run.patience_us, min(2 * late_us, MAX_PATIENCE_US))
                    text = (
                        "run %s: an event came %.1f s late, so its tables are made again; from now on, it waits %.1f s"
                    )
                    _log.warning(text, name, late_us / 1e6, patience_us / 1e6)
            else:
                return run
        run = ContinuedRun(name, patience_us)
        if tables.is_new:
            _take(run, new)
        else:
            tables.clear()
            _read(run, name, stored, tables)
        return run


def _take(run: ContinuedRun, events: Events) -> None:
    for kind, lines in events.items():
        run.see(kind, lines)
    run.take(events)


def _read(run: ContinuedRun, name: str, stored: StoredEvents, tables: RunTables) -> None:
    """Read a run from its beginning."""
    for kind, lines in stored.portions(name):
        run.see(kind, lines)
    if run.has_several_clocks:
        return
    back, last = partial(look_back, name, stored, tables.settled), None
    times, limit_us = stored.times(name), run.limit_us()
    _require_few(len(times) if limit_us is None else int(np.count_nonzero(times >= limit_us)))
    for end_us in _limits(run, times):
        run.take(stored.of(name, Span(last, end_us)))
        tables.settle(run.settle(end_us, back))
        last = end_us
    run.take(stored.of(name, Span(last, None)))
    run.take(stored.of(name, Span(None, None), TOLD))


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
