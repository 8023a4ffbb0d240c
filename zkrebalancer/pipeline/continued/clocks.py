"""The clocks of a run of several hosts, or boots: where its events so far put each of them, by the rules of `align`.

More causes and effects only make the bounds of two clocks tighter. So most events stay where they are; `Clocks.align`
finds out whether all of those do that are settled. Whatever changes otherwise, such as the clock to which all others
are related, makes it necessary to begin again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zkrebalancer.observe.clocks import BEFORE_ALL_US, Alignment, Bounds, align
from zkrebalancer.observe.hosts import SAMPLED, ClockNames, Witness
from zkrebalancer.observe.reading import Event
from zkrebalancer.pipeline.align import RECORDS, TIE_KEYS, TIES
from zkrebalancer.pipeline.continued.places import Clock, nearby_of
from zkrebalancer.pipeline.continued.records import NotContinuableError
from zkrebalancer.pipeline.continued.stored import Expression, Span
from zkrebalancer.pipeline.placing import WAYS, placed_by
from zkrebalancer.pipeline.schema import BOUNDS

RAW = "raw_us"  # the column with the time of the event's own clock
Boot = tuple[str | None, str | None]  # host and boot


class ClocksMovedError(Exception):
    """Settled events are elsewhere by what is known now."""

    def __init__(self, since_us: int | None) -> None:
        """`since_us`: from when on, by the run's clock; None: maybe all."""
        super().__init__(since_us)
        self.since_us = since_us


@dataclass(slots=True)
class _Ends:
    """The first and the last event of a clock: their times, by it and by the wall; and how many there are."""

    first: tuple[int, int | None]
    last: tuple[int, int | None]
    count: int = 0


@dataclass(slots=True)
class _Known:
    """The state of the clocks at one moment."""

    alignment: Alignment
    names: dict[Boot, str] = field(default_factory=dict)


class Clocks:
    """The clocks of a run."""

    def __init__(self, names: ClockNames) -> None:
        """Know no event yet."""
        self._witness, self._bounds = Witness(names), Bounds()
        self._ends: dict[Clock, _Ends] = {}
        self._known: _Known | None = None
        self._settled: dict[str, int] = {}  # by clock: its time up to which all is settled
        self._change: tuple[Alignment, dict[tuple[str, str], int]] | None = None  # the last one: from, and since when

    @property
    def remembered(self) -> int:
        """How much is remembered of events."""
        return self._witness.remembered

    def name(self, names: ClockNames) -> None:
        """Take the names of clocks, when all new events were noted there.

        Raises:
            NotContinuableError: later events may name the clocks of earlier ones anew.
            ClocksMovedError: that has happened.

        """
        if names.depend_on_walls:
            raise NotContinuableError("only wall clocks tell the boots of a host apart")
        self._witness.names = names
        known = {} if self._known is None else self._known.names
        if any(names.of(_event(*boot)) != name for boot, name in known.items()):
            raise ClocksMovedError(None)

    def see(self, kind: str, lines: pa.Table) -> None:
        """Look at lines of a kind; after that of all new ones, `align` has to be called."""
        lines = lines.filter(pc.is_valid(lines["mono_us"]))
        if not lines.num_rows:
            return
        chosen = lines.select(["host", "boot", "mono_us", "ts_us"]).append_column("nearby", nearby_of(lines))
        ordered = chosen.sort_by("mono_us")
        wanted: list[Any] = [(name, end) for name in ("mono_us", "ts_us") for end in ("first", "last")]
        groups = ordered.group_by(["host", "boot", "nearby"], use_threads=False)
        for each in groups.aggregate([*wanted, ("mono_us", "count")]).to_pylist():
            first, last = ((each[f"mono_us_{end}"], each[f"ts_us_{end}"]) for end in ("first", "last"))
            ends = self._ends.setdefault((each["host"], each["boot"], each["nearby"]), _Ends(first, last))
            ends.first = min(ends.first, first, key=lambda at: at[0])
            ends.last = max(ends.last, last, key=lambda at: at[0])
            ends.count += each["mono_us_count"]
        if kind in RECORDS:
            begins, ends_at = (lines[name].to_numpy() for name in ("first_offset", "last_offset"))
            lines = lines.filter(pa.array((begins // SAMPLED < ends_at // SAMPLED) | (begins % SAMPLED == 0)))
        if kind in RECORDS or kind in TIES:
            for row in lines.select([name for name in TIE_KEYS if name in lines.column_names]).to_pylist():
                self._witness.add({**row, "kind": kind}, 0)

    def align(self) -> None:
        """Find out where each clock is by now.

        Raises:
            ClocksMovedError: settled events are elsewhere now.

        """
        evidence = self._witness.evidence(self._end_events())
        since = self._bounds.add(evidence.pairs)
        names = {boot: self._witness.names.of(_event(*boot)) for boot in self._boots()}
        before, self._known = self._known, _Known(align(evidence, self._bounds), names)
        if self._witness.has_erred:
            raise ClocksMovedError(None)
        if before is not None:
            self._change = before.alignment, since
            self._require_same(before.alignment, since)

    @property
    def settled(self) -> dict[str, int]:
        """By clock, its time up to which all is settled."""
        return dict(self._settled)

    def go_back(self, settled: Mapping[str, int]) -> bool:
        """Have settled only what was before, if the last change has not moved that; return whether it has not."""
        if self._change is None or any(self._moved_since(*each, *self._change) for each in settled.items()):
            return False
        self._settled = dict(settled)
        return True

    def unsettled_before(self, until_us: int) -> Expression:
        """Return the condition on events as they were written that they are not settled, though before a moment."""
        found = []
        for boot in self._boots():
            times, last_us = self._times(boot), self._settled.get(self._of(*boot))
            limit = _is_of(*boot) & (pc.field("mono_us") < self._since(boot, times, until_us))
            found.append(limit if last_us is None else limit & (pc.field("mono_us") > last_us))
        return reduce(or_, found)

    def settle(self, lines: pa.Table) -> None:
        """Note that these lines are settled."""
        for host, boot, last_us in self._last(lines):
            clock = self._of(host, boot)
            self._settled[clock] = max(last_us, self._settled.get(clock, last_us))

    def place(self, lines: pa.Table) -> pa.Table:
        """Return lines, which have a time, at those of the run's clock, with BOUNDS and RAW."""
        raw_us = lines[RAW if RAW in lines.column_names else "mono_us"].combine_chunks()
        boots = list(zip(lines["host"].to_pylist(), lines["boot"].to_pylist(), strict=True))
        found = placed_by(boots, raw_us.to_numpy(), lambda boot: (self._alignment, self._of(*boot)))
        at = lines.column_names.index("mono_us")
        lines = lines.set_column(at, "mono_us", pa.array(found[0], pa.int64()))
        columns = {RAW: raw_us, **dict(zip(BOUNDS, (pa.array(each, pa.int64()) for each in found[1:]), strict=True))}
        kept = [name for name in lines.column_names if name not in columns]
        lines = lines.select(kept)
        for name, values in columns.items():
            lines = lines.append_column(name, values)
        return lines

    def within(self, span: Span) -> Expression | None:
        """Return the condition on events as they were written that they are within a span; None: all are."""
        if span == (None, None):
            return None
        found = []
        for boot in self._boots():
            times, limit = self._times(boot), _is_of(*boot)
            if span.begin_us is not None:
                limit &= pc.field("mono_us") >= self._since(boot, times, span.begin_us)
            if span.end_us is not None:
                limit &= pc.field("mono_us") < self._since(boot, times, span.end_us)
            found.append(limit)
        return reduce(or_, found)

    @property
    def _alignment(self) -> Alignment:
        if self._known is None:
            raise RuntimeError("not aligned yet")
        return self._known.alignment

    def _of(self, host: str | None, boot: str | None) -> str:
        return self._witness.names.of(_event(host, boot))

    def _times(self, boot: Boot) -> range:
        """Return from when to when there are events of a boot."""
        found = [ends for (host, boot_id, _nearby), ends in self._ends.items() if (host, boot_id) == boot]
        return range(min(each.first[0] for each in found), max(each.last[0] for each in found) + 1)

    def _boots(self) -> list[Boot]:
        return list(dict.fromkeys((host, boot) for host, boot, _nearby in self._ends))

    def _end_events(self) -> Iterator[tuple[Event, int]]:
        for (host, boot, _nearby), ends in self._ends.items():
            for mono_us, ts_us in (ends.first, ends.last):
                yield {**_event(host, boot), "mono_us": mono_us, "ts_us": ts_us, "kind": "end"}, ends.count

    def _since(self, boot: Boot, times: range, at_us: int) -> int:
        """Return the first time of a clock that is not before one of the run's clock."""
        clock, alignment = self._of(*boot), self._alignment
        return times.start + bisect_left(times, at_us, key=lambda time_us: alignment.place(clock, time_us).at_us)

    def _last(self, lines: pa.Table) -> Iterator[tuple[str | None, str | None, int]]:
        groups = lines.group_by(["host", "boot"]).aggregate([(RAW, "max")])
        return ((each["host"], each["boot"], each[f"{RAW}_max"]) for each in groups.to_pylist())

    # Whether settled events stay where they are ----------------------------------------------------------------------

    def _require_same(self, before: Alignment, since: Mapping[tuple[str, str], int]) -> None:
        """Raise ClocksMovedError if what is known now moves settled events; `since` is of `Bounds.add`."""
        now = self._alignment
        if self._settled and (now.reference, now.contradictions) != (before.reference, before.contradictions):
            raise ClocksMovedError(None)
        found = [at_us for each in self._settled.items() for at_us in self._moved_since(*each, before, since)]
        if found:
            raise ClocksMovedError(None if BEFORE_ALL_US in found else min(found))

    def _moved_since(
        self, clock: str, last_us: int, before: Alignment, since: Mapping[tuple[str, str], int]
    ) -> list[int]:
        """Return from when on events of a clock up to a time are elsewhere: BEFORE_ALL_US if unknown.

        A time goes from clock to clock, as in `Alignment.place`; an earlier one goes the same way, and stays earlier.
        """
        now, found, is_bound = self._alignment, list[int](), True
        for way in WAYS:
            at_clock, at_us = clock, last_us
            while at_clock != now.reference:
                relation, known = now.relations[at_clock], before.relations.get(at_clock)
                if known is None or relation.parent != known.parent:
                    return [BEFORE_ALL_US]
                first_us = since.get((relation.parent, at_clock))
                if first_us is not None and first_us <= at_us and (relation.upper.times or relation.lower.times):
                    found.append(self._run_us(at_clock, first_us))
                offset_us = way(relation).at(at_us)
                if offset_us is None:
                    is_bound = False
                    break
                at_clock, at_us = relation.parent, at_us - offset_us
        if is_bound:
            return found
        relation = now.relations[clock]
        is_guessed = not (relation.upper.times and relation.lower.times)
        if is_guessed and relation.guess_us != before.relations[clock].guess_us:
            return [BEFORE_ALL_US]
        return [*found, *self._moved_since(relation.parent, relation.guess(last_us), before, since)]

    def _run_us(self, clock: str, time_us: int) -> int:
        return BEFORE_ALL_US if time_us == BEFORE_ALL_US else self._alignment.place(clock, time_us).at_us


def _event(host: str | None, boot: str | None) -> Event:
    return {"host": host, "boot": boot}


def _is_of(host: str | None, boot: str | None) -> Expression:
    of_host, of_boot = (
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in (("host", host), ("boot", boot))
    )
    return of_host & of_boot
