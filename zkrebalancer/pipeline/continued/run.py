"""One run up to a moment: everything before is settled, and is not looked at again.

What is new is handled in order of time, up to LATE_US before the newest event; the rows that it completes are settled.
The rest is handled by a copy that is thrown away, so its rows are as if the run had ended. An event that comes later
than that, and is older than what is settled, makes it necessary to begin again; after that, the run waits twice as long
as that event was late.
"""

from __future__ import annotations

import pickle  # only of what this process made
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zkrebalancer.observe.holdings import Held, Judged
from zkrebalancer.observe.hosts import ClockNames
from zkrebalancer.observe.measures import END
from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.pipeline.continued.places import BLOCKS, REJECTS, LineOrderError, Places
from zkrebalancer.pipeline.continued.records import BookKey, Committed, Delivered, Records, Rows
from zkrebalancer.pipeline.continued.stored import (
    TIMED,
    TOLD,
    Events,
    Span,
    StoredEvents,
    joined,
    ordered,
    rows,
    values,
)
from zkrebalancer.pipeline.facts.by_run import KINDS
from zkrebalancer.pipeline.facts.deliveries import BUCKET_US
from zkrebalancer.pipeline.facts.fates import COUNTS, DELIVERY
from zkrebalancer.pipeline.facts.of_run import Key, RunFacts
from zkrebalancer.pipeline.facts.reduced import reduce
from zkrebalancer.pipeline.facts.runs import RUNS, RunRow
from zkrebalancer.pipeline.schema import ORDER, PARTITION

WINDOWS = "windows"
SCHEMAS = {
    WINDOWS: "run string, step bigint, name string, target string, cause_id string, from_us bigint, to_us bigint, "
    "unsettled_ms bigint"
}
LATE_US = 10_000_000  # how long a run waits for events of other files before it settles what it has

LookBack = Callable[[dict[BookKey, RangeSet]], Rows]  # from what was delivered again to rows about earlier deliveries


class LateEventError(Exception):
    """An event is older than what is settled."""

    def __init__(self, at_us: int | None) -> None:
        """`at_us`: of that event; None: it is none of those that wait, so to wait longer is of no use."""
        super().__init__(at_us)
        self.at_us = at_us


class _Facts(RunFacts):
    """Also keeps the intervals that were judged."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.judged: list[tuple[Key, Held]] = []

    def _judge(self, key: Key, judged: Iterable[Judged]) -> None:
        found = list(judged)
        self.judged += [(key, each.held) for each in found]
        super()._judge(key, found)

    def take_judged(self) -> list[tuple[Key, Held]]:
        """Return the intervals that were judged since the last call."""
        found, self.judged = self.judged, []
        return found


class _Checked:
    """What is known of a run from its events in order of time, up to a moment."""

    def __init__(self, run: str) -> None:
        self.overlaps: dict[Key, bool] = {}  # whether one is certain
        self._facts, self._records = _Facts(run), Records(run)
        self._steps: list[dict[str, Any]] = []
        self._run = run

    def advance(self, events: Events, began_us: int, look_back: LookBack) -> Rows:
        """Handle the events of the next part of the run; return the rows that are complete."""
        self._steps = ordered([*self._steps, *rows(events, ["step"])])
        for event in ordered([*rows(events, KINDS), *self._reduced(events, began_us)]):
            self._facts.apply({"early_us": 0, "late_us": 0, **event})
        judged = self._facts.take_judged()
        names = ("topic", "partition", "mono_us", "first_offset", "last_offset")
        for topic, partition, at_us, first, last in values(events, "produced", *names):
            self._records.produce(topic, partition, self._facts.era(topic, at_us), first, last + 1)
        held = [*judged, *self._facts.unjudged()]
        back = self._records.advance(held, self._deliveries(events), _commits(events))
        self._records.judge(judged)
        found = self._taken()
        if back:
            for name, of_table in look_back(back).items():
                found[name] += of_table
        return found

    def finish(self) -> Rows:
        """Return the rows that depend on the run's end."""
        self._facts.finish()
        self._records.judge(self._facts.take_judged())
        self._records.finish()
        found = self._taken()
        found[WINDOWS] += self._windows()
        return found

    def era(self, topic: str, at_us: int) -> int:
        """Return how often a topic had been deleted before a time."""
        return self._facts.era(topic, at_us)

    def _taken(self) -> Rows:
        found: Rows = defaultdict(list)
        for given in (self._facts.rows, self._records.rows):
            for name, of_table in given.items():
                found[name] += of_table
                of_table.clear()
        for _run, group, topic, partition, *_others, is_certain in found["overlaps"]:
            key = (group, topic, partition)
            self.overlaps[key] = self.overlaps.get(key, False) or is_certain
        return found

    def _deliveries(self, events: Events) -> list[tuple[Delivered, int]]:
        found = []
        names = ("mono_us", "block", "row", "group", "topic", "partition", "member", "first_offset", "last_offset")
        for at_us, block, row, group, topic, partition, member, first, last in values(events, "delivered", *names):
            delivery = Delivered(at_us, block, row, (group, topic, partition), member, first, last + 1)
            found.append((delivery, self._facts.era(topic, at_us)))
        return sorted(found, key=lambda each: each[0][:3])

    def _reduced(self, events: Events, began_us: int) -> Iterator[dict[str, Any]]:
        """Iterate over the few events that `reduced.reduce` makes of deliveries."""
        if "delivered" not in events:
            return
        table = events["delivered"]
        steps = pa.array(self._step_of(table["mono_us"].to_numpy()), pa.int64())
        table = table.append_column("step", steps)
        table = table.append_column("began_us", pa.array(np.full(table.num_rows, began_us), pa.int64()))
        for batch in reduce(iter(table.to_batches())):
            yield from batch.to_pylist()

    def _step_of(self, times: Any) -> list[int | None]:  # noqa: ANN401  # an array of numpy
        if not self._steps:
            return [None] * len(times)
        begins = [step["mono_us"] for step in self._steps]
        numbers = [None if step["name"] == END else step["number"] for step in self._steps]
        return [numbers[place - 1] if (place := bisect_right(begins, at)) else None for at in times.tolist()]

    def _windows(self) -> Iterator[tuple[Any, ...]]:
        for number, step in enumerate(self._steps, 1):
            after = self._steps[number] if number < len(self._steps) else None
            if step["name"] != END:
                named = (step["number"], step["name"], step["target"], step["cause_id"], step["mono_us"])
                ends = (None, None) if after is None else (after["mono_us"], after["unsettled_ms"])
                yield self._run, *named, *ends


def _commits(events: Events) -> list[Committed]:
    found = values(events, "committed", *ORDER, "group", "topic", "partition", "member", "offset")
    return [
        Committed(at_us, file, block, row, (group, topic, number), member, offset)
        for at_us, file, block, row, group, topic, number, member, offset in sorted(found)
    ]


def _loaded(dumped: bytes) -> _Checked:
    return cast("_Checked", pickle.loads(dumped))  # noqa: S301


class ContinuedRun:
    """The tables of a run, as settled and other rows."""

    def __init__(self, run: str, patience_us: int) -> None:
        """Begin before the first event; `patience_us`: how long to wait for late ones."""
        self.patience_us = patience_us
        self.settled_us: int | None = None  # all before is settled
        self.latest_us: int | None = None
        self.refreshes = 0  # in which it was continued
        self._run = run
        self._checked = _Checked(run)
        self._places = Places(run)
        self._pending: Events = {}  # not settled
        self._scenarios: list[dict[str, Any]] = []
        self._dropped: list[int] = []

    @property
    def has_several_clocks(self) -> bool:
        """Whether its times cannot be compared as they are."""
        return self._places.has_several_clocks

    def names(self) -> ClockNames:
        """Return the names of its clocks so far."""
        return self._places.names()

    @property
    def remembered(self) -> int:
        """How much is remembered of events that are settled, beyond what the tables need."""
        return 0

    @property
    def waiting(self) -> int:
        """How many events are not settled."""
        return sum(table.num_rows for table in self._pending.values())

    def times(self) -> npt.NDArray[np.int64]:
        """Return the times of events that are not settled."""
        return np.concatenate([np.zeros(0, np.int64), *(each["mono_us"].to_numpy() for each in self._pending.values())])

    def reading(self, stored: StoredEvents) -> StoredEvents:
        """Return what reads the stored events of the run."""
        return stored

    def see_all(self, stored: StoredEvents) -> None:
        """Look at all stored lines before any is taken."""
        for kind, lines in stored.portions(self._run):
            self.see(kind, lines)

    def take_new(self, events: Events, stored: StoredEvents) -> None:  # noqa: ARG002  # subclasses need it
        """Add the events of `stored`, which are new; they wait. If they have other clocks, only note these.

        Raises:
            LateEventError: an event is older than what is settled.

        """
        for lines in events.values():
            self._places.note_clocks(lines)
        if self.has_several_clocks:
            return  # a time of one clock says nothing about another one
        for kind, lines in events.items():
            self.see(kind, lines)
        self.take(events)

    def see(self, kind: str, lines: pa.Table) -> None:
        """Look at lines of a kind; all are seen before what they say is taken.

        Raises:
            LateEventError: an event is older than what is settled.

        """
        latest, earliest = self.latest_us, pc.min(lines["mono_us"]).as_py()
        began_us = self._places.began_us
        if self.settled_us is not None and earliest is not None:
            if kind in TIMED and earliest < self.settled_us:
                raise LateEventError(earliest)
            if began_us is not None and earliest < began_us:  # such as a rejected line, whose time may be anything
                raise LateEventError(None)
        try:
            self._places.add(kind, lines)
        except LineOrderError:
            raise LateEventError(self.settled_us or 0) from None
        if kind in TIMED:
            last = pc.max(lines["mono_us"]).as_py()
            self.latest_us = last if latest is None else max(last, latest)

    def take(self, events: Events) -> None:
        """Add events, which wait until they are settled."""
        self._pending = joined(self._pending, {kind: table for kind, table in events.items() if kind in TIMED})
        for row in rows(events, TOLD):
            if row["kind"] == "scenario":
                self._scenarios.append(row)
            else:
                self._dropped.append(row["dropped_count"])

    def take_told(self, stored: StoredEvents) -> None:
        """Add what counts whenever it was."""
        self.take(stored.of(self._run, Span(None, None), TOLD))

    def limit_us(self) -> int | None:
        """Return up to when to settle, a limit of time buckets; None: nothing yet."""
        if self.latest_us is None:
            return None
        limit_us = (self.latest_us - self.patience_us) // BUCKET_US * BUCKET_US
        if limit_us <= 0 or (self.settled_us is not None and limit_us <= self.settled_us):
            return None
        return limit_us

    def settle(self, until_us: int, look_back: LookBack) -> Rows:
        """Settle what waits, up to a limit; return rows that stay."""
        found = self._checked.advance(Span(None, until_us).of(self._pending), self._began_us, look_back)
        self._pending = Span(until_us, None).of(self._pending)
        self.settled_us = until_us
        found[REJECTS] += self._places.rejects()
        return found

    def rest(self, look_back: LookBack) -> Rows:
        """Return the rows that may change."""
        copy = _loaded(self._dumped())
        found = copy.advance(self._pending, self._began_us, look_back)
        for name, of_table in copy.finish().items():
            found[name] += of_table
        found[BLOCKS] += self._block_rows()
        found[REJECTS] += self._places.last_rejects()
        found[RUNS].append(self._row(found, copy.overlaps))
        return found

    def era(self, topic: str, at_us: int) -> int:
        """Return how often a topic had been deleted before a time that is settled."""
        return self._checked.era(topic, at_us)

    def _dumped(self) -> bytes:
        return pickle.dumps(self._checked, pickle.HIGHEST_PROTOCOL)

    def _restore(self, dumped: bytes, settled_us: int) -> None:
        """Be where the run was when this was dumped; nothing waits."""
        self._checked, self.settled_us, self._pending = _loaded(dumped), settled_us, {}

    @property
    def _began_us(self) -> int:
        return self._places.began_us or 0

    def _block_rows(self) -> Iterator[tuple[Any, ...]]:
        return self._places.blocks()

    def _row(self, found: Rows, overlaps: dict[Key, bool]) -> tuple[Any, ...]:
        row = RunRow(self._run)
        names = ("count", "kinds", "began_us", "ended_us")
        for *_place, _row, _lines, count, kinds, began_us, ended_us, _clocks in found[BLOCKS]:
            row.apply({"what": "block", **dict(zip(names, (count, kinds, began_us, ended_us), strict=True))})
        for scenario in self._scenarios:
            row.apply({"what": "event", **scenario})
        for count in self._dropped:
            row.apply({"what": "event", "kind": "events_dropped", "count": count})
        for _run, _group, _topic, _partition, *counts in found[DELIVERY]:
            row.apply({"what": "delivery", **dict(zip(COUNTS, counts, strict=True))})
        for key, is_certain in overlaps.items():
            place = dict(zip(PARTITION, (self._run, *key), strict=True))
            row.apply({"what": "overlap", **place, "is_certain": is_certain})
        row.apply({"what": "rejects", "is_torn": False, "count": self._places.rejected})
        for *_reject, is_torn in found[REJECTS]:
            row.apply({"what": "rejects", "is_torn": is_torn, "count": 1})
        row.finish()
        return row.rows[RUNS][0]
