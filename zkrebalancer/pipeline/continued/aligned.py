"""A run with several clocks, up to a moment: what is new is put on one clock before it is handled as of other runs.

Where the clocks put an event may change until it is settled. So all events that wait are placed anew whenever there
are new ones, and everything that depends on times of events is made of placed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zkrebalancer.pipeline.align import ALIGNED, TIE_KEYS
from zkrebalancer.pipeline.continued.clocks import Clocks
from zkrebalancer.pipeline.continued.places import CLOCK, Block, Clock, LineOrderError, nearby_of, nulls_first
from zkrebalancer.pipeline.continued.records import Rows
from zkrebalancer.pipeline.continued.run import ContinuedRun, LateEventError, LookBack
from zkrebalancer.pipeline.continued.stored import (
    ALL,
    TIMED,
    TOLD,
    Events,
    Expression,
    Span,
    StoredEvents,
    joined,
    rows,
)
from zkrebalancer.pipeline.continued.tables import Parts

_LOOKED_AT = tuple(name for name in TIE_KEYS if name in ALL)
Portions = Callable[[], Iterable[tuple[str, pa.Table]]]


class AlignedEvents(StoredEvents):
    """Stored events of a run at times of one clock."""

    def __init__(self, stored: StoredEvents, clocks: Clocks) -> None:
        """`clocks`: of the run."""
        super().__init__(stored.folders)
        self._clocks = clocks

    def of(self, run: str, span: Span, kinds: Sequence[str] | None = None, where: Expression | None = None) -> Events:
        """Return the events of a run within a span, of all kinds by default, with ALL columns."""
        wanted: Expression = ~pc.field("mono_us").is_null()
        for limit in (self._clocks.within(span), where):
            wanted = wanted if limit is None else wanted & limit
        return {kind: self._clocks.place(table) for kind, table in self.lines(run, kinds, wanted).items()}

    def times(self, run: str, since_us: int | None = None) -> npt.NDArray[np.int64]:
        """Return the times of a run's events."""
        found = [np.zeros(0, np.int64)]
        for kind, lines in self.portions(run, where=self._clocks.within(Span(since_us, None))):
            if kind in TIMED:
                found.append(self._clocks.place(lines)["mono_us"].to_numpy())
        return np.concatenate(found)


@dataclass(slots=True)
class _Times:
    """When the lines of a block were: the first and the last time, and which clocks they have."""

    ends: list[int] = field(default_factory=list)
    clocks: set[Clock] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a run was at an earlier moment, to go back to."""

    settled_us: int
    checked: bytes
    blocks: dict[Block, _Times]
    clocks: dict[str, int]
    parts: Parts


class AlignedRun(ContinuedRun):
    """The tables of such a run, as settled and other rows."""

    def __init__(self, run: str, patience_us: int, of_one_clock: ContinuedRun) -> None:
        """Begin before the first event; `of_one_clock` has seen lines of several clocks."""
        super().__init__(run, patience_us)
        self._clocks = Clocks(of_one_clock.names())
        self._blocks: dict[Block, _Times] = {}  # of settled lines
        self._told: Events = {}  # scenarios as they were written
        self._marks: list[_Mark] = []  # older ones are farther apart
        self._checked_then = b""  # at the last look at the rest

    @property
    def remembered(self) -> int:
        """How much is remembered of events that are settled."""
        return self._clocks.remembered

    @property
    def marked_bytes(self) -> int:
        """How large its marks are."""
        return sum(len(mark.checked) for mark in self._marks)

    def mark(self, parts: Parts) -> None:
        """Remember where the run is; `parts`: of `RunTables.marked`."""
        if self.settled_us is None or (self._marks and self._marks[-1].settled_us == self.settled_us):
            return
        blocks = _copied(self._blocks)
        self._marks.append(_Mark(self.settled_us, self._checked_then, blocks, self._clocks.settled, parts))
        ages = [(self.latest_us or 0) - mark.settled_us for mark in self._marks]
        spare = [n for n in range(1, len(ages) - 1) if ages[n - 1] <= 2 * ages[n + 1]]
        if spare:
            del self._marks[spare[0]]

    def forget_marks(self) -> None:
        """Never go back to where the run is now, or was."""
        self._marks.clear()

    def marked_folders(self) -> Iterator[str]:
        """Iterate over the folders to which it may go back."""
        return (folder for mark in self._marks for parts in mark.parts.values() for folder in parts.values())

    def go_back(self, fresh: StoredEvents, stored: StoredEvents) -> Parts | None:
        """Go back to the last mark whose events have not moved; return the parts of it, None if there is no such mark.

        All events after it have to be taken again.
        """
        while self._marks:
            mark = self._marks[-1]
            if self._clocks.go_back(mark.clocks):
                moved = stored.lines(self._run, where=self._clocks.unsettled_before(mark.settled_us))
                if not moved and not self.reading(fresh).of(self._run, Span(None, mark.settled_us), fresh.kinds):
                    self._restore(mark.checked, mark.settled_us)
                    self._blocks = _copied(mark.blocks)
                    self.latest_us = int(self.reading(stored).times(self._run, mark.settled_us).max())
                    return mark.parts
            self._marks.pop()
        return None

    def reading(self, stored: StoredEvents) -> StoredEvents:
        """Return what reads the stored events of the run."""
        return AlignedEvents(stored, self._clocks)

    def see_all(self, stored: StoredEvents) -> None:
        """Look at all stored lines before any is taken; raises NotContinuableError if clocks cannot be told apart."""
        self._see(lambda: stored.portions(self._run, *_LOOKED_AT))
        times = self.reading(stored).times(self._run)
        self.latest_us = int(times.max()) if len(times) else None

    def take_new(self, events: Events, stored: StoredEvents) -> None:  # noqa: ARG002  # these lack columns
        """Add the events of `stored`, which are new; they wait.

        Raises:
            LateEventError: an event is older than what is settled.
            ClocksMovedError: settled events are elsewhere by what is known now.
            NotContinuableError: clocks cannot be told apart.

        """
        lines = stored.lines(self._run)
        self._see(lines.items)
        self._pending = {kind: self._clocks.place(table) for kind, table in self._pending.items()}
        timed = {kind: table.filter(pc.is_valid(table["mono_us"])) for kind, table in lines.items()}
        placed = {kind: self._clocks.place(table) for kind, table in timed.items() if table.num_rows}
        if self.settled_us is not None:
            self._require_in_time(placed, self.settled_us)
        self.take(placed)
        self._tell(lines)

    def take(self, events: Events) -> None:
        """Add placed events, which wait until they are settled."""
        self._pending = joined(self._pending, events)
        latest = [pc.max(table["mono_us"]).as_py() for kind, table in self._pending.items() if kind in TIMED]
        self.latest_us = max(latest, default=self.latest_us)

    def take_told(self, stored: StoredEvents) -> None:
        """Add what counts whenever it was."""
        self._tell(stored.lines(self._run, TOLD))

    def settle(self, until_us: int, look_back: LookBack) -> Rows:
        """Settle what waits, up to a limit; return rows that stay."""
        settled = Span(None, until_us).of(self._pending)
        for lines in settled.values():
            self._clocks.settle(lines)
        found = super().settle(until_us, look_back)  # it still needs the time of the first event
        _note(self._blocks, settled)
        found[ALIGNED] += _of_kinds(settled)
        return found

    def rest(self, look_back: LookBack) -> Rows:
        """Return the rows that may change."""
        self._scenarios = list(rows({kind: self._clocks.place(lines) for kind, lines in self._told.items()}, TOLD))
        found = super().rest(look_back)
        found[ALIGNED] += _of_kinds(self._pending)
        return found

    def _dumped(self) -> bytes:
        self._checked_then = super()._dumped()
        return self._checked_then

    def _see(self, portions: Portions) -> None:
        try:
            for kind, lines in portions():
                self._places.add(kind, lines)
        except LineOrderError:
            raise LateEventError(self.settled_us or 0) from None
        self._clocks.name(self.names())
        for kind, lines in portions():
            self._clocks.see(kind, lines)
        self._clocks.align()

    def _tell(self, lines: Events) -> None:
        self._dropped += [row["dropped_count"] for row in rows(lines, ["events_dropped"])]
        self._told = joined(self._told, {kind: table for kind, table in lines.items() if kind == "scenario"})

    def _require_in_time(self, placed: Events, settled_us: int) -> None:
        for kind, lines in placed.items():
            earliest_us = pc.min(lines["mono_us"]).as_py()
            if kind in TIMED and earliest_us < settled_us:
                raise LateEventError(earliest_us)
            if earliest_us < self._began_us:  # such as a rejected line, whose time may be anything
                raise LateEventError(None)
            if earliest_us < settled_us:
                self._marks.clear()  # they lack this line

    @property
    def _began_us(self) -> int:
        times = [each.ends[0] for each in self._blocks.values()]
        times += [pc.min(lines["mono_us"]).as_py() for lines in self._pending.values()]
        return min(times, default=0)

    def _block_rows(self) -> Iterator[tuple[Any, ...]]:
        times = _copied(self._blocks)
        _note(times, self._pending)
        for run, file, number, *counts, _began_us, _ended_us, _clocks in super()._block_rows():
            each = times.get((file, number), _Times())
            clocks = [dict(zip(CLOCK, clock, strict=True)) for clock in sorted(each.clocks, key=nulls_first)]
            yield run, file, number, *counts, *(each.ends or (None, None)), clocks


def _copied(blocks: dict[Block, _Times]) -> dict[Block, _Times]:
    return {block: _Times(list(each.ends), set(each.clocks)) for block, each in blocks.items()}


def _note(blocks: dict[Block, _Times], events: Events) -> None:
    """Note when placed lines were."""
    for lines in events.values():
        chosen = lines.select(["file", "block", "host", "boot", "mono_us"]).append_column("nearby", nearby_of(lines))
        groups = chosen.group_by(["file", "block", *CLOCK])
        for each in groups.aggregate([("mono_us", "min"), ("mono_us", "max")]).to_pylist():
            found = blocks.setdefault((each["file"], each["block"]), _Times())
            ends = (*found.ends, each["mono_us_min"], each["mono_us_max"])
            found.ends = [min(ends), max(ends)]
            found.clocks.add((each["host"], each["boot"], each["nearby"]))


def _of_kinds(events: Events) -> list[pa.Table]:
    """Return the lines of each kind, with the column `kind`."""
    return [lines.append_column("kind", pa.repeat(kind, lines.num_rows)) for kind, lines in events.items()]
