"""Where the lines of a run are, and which of them were rejected: the tables `blocks` and `rejects`, to be continued.

The rules are those of `ingest.blocks`, `ingest.rejects` and `align.find_clocks`, which look at a whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zkrebalancer.observe.hosts import REBOOTED_US, ClockNames
from zkrebalancer.pipeline.schema import NOT_JSON, REJECTED

BLOCKS, REJECTS = "blocks", "rejects"
SCHEMAS = {
    BLOCKS: "run string, file string, block bigint, row bigint, lines bigint, events bigint, kinds array<string>, "
    "began_us bigint, ended_us bigint, clocks array<struct<host: string, boot: string, nearby: bigint>>",
    REJECTS: "run string, file string, line bigint, reason string, text string, is_torn boolean",
}
COLUMNS = ("file", "block", "row", "mono_us", "ts_us", "host", "boot")
CLOCK = ("host", "boot", "nearby")
Clock = tuple[str | None, str | None, int | None]  # host, boot and about the distance to the wall clock
Block = tuple[str, int]  # file and block


class LineOrderError(Exception):
    """A line came before others of its file that were read earlier."""


@dataclass(slots=True)
class _Lines:
    """What is known of the lines of a block."""

    row: int
    lines: int = 0
    events: int = 0
    kinds: set[str] = field(default_factory=set)
    times: list[int] = field(default_factory=list)  # the first and the last one
    clocks: set[Clock] = field(default_factory=set)
    first: int | None = None  # its first line, when the number of a rejected one was told


class Places:
    """The lines of a run so far."""

    def __init__(self, run: str) -> None:
        """Begin before the first line."""
        self._run = run
        self._blocks: dict[Block, _Lines] = {}
        self._lines = Counter[str]()  # by file
        self._walls: dict[Clock, int | None] = {}
        self._rejected: list[tuple[str, int, int, str, str]] = []  # may be torn: file, block, row, reason and text
        self.rejected = 0  # without those
        self.began_us: int | None = None  # the time of the first event

    @property
    def has_several_clocks(self) -> bool:
        """Whether the events are of several hosts, or of several boots of one."""
        return self.names().count > 1

    def names(self) -> ClockNames:
        """Return the names of the clocks so far."""
        names = ClockNames()
        for host, boot, nearby in sorted(self._walls, key=nulls_first):
            names.note({"host": host, "boot": boot, "ts_us": self._walls[host, boot, nearby], "mono_us": 0})
        return names

    def add(self, kind: str, lines: pa.Table) -> None:
        """Add lines of a kind, with COLUMNS, rejected ones also with `flaw` and `text`.

        Raises:
            LineOrderError: tables that are complete would change.

        """
        wall_us = pc.subtract(lines["ts_us"], lines["mono_us"])
        counted = lines.select(COLUMNS).append_column("wall_us", wall_us).append_column("nearby", nearby_of(lines))
        keys = ["file", "block", "host", "boot", "nearby"]
        groups = counted.group_by(keys)
        sums = groups.aggregate(
            [("row", "min"), ("row", "count"), ("mono_us", "min"), ("mono_us", "max"), ("wall_us", "min")]
        )
        for alike in sums.to_pylist():
            self._add(kind, alike)
        if kind == REJECTED:
            names = ("file", "block", "row", "flaw", "text")
            self._rejected += zip(*(lines[name].to_pylist() for name in names), strict=True)

    def note_clocks(self, lines: pa.Table) -> None:
        """Look only at the clocks of lines, with COLUMNS."""
        timed = lines.filter(pc.is_valid(lines["mono_us"]))
        chosen = timed.select(["host", "boot"]).append_column("nearby", nearby_of(timed))
        chosen = chosen.append_column("wall_us", pc.subtract(timed["ts_us"], timed["mono_us"]))
        for alike in chosen.group_by([*CLOCK]).aggregate([("wall_us", "min")]).to_pylist():
            self._note_clock(alike)

    def _note_clock(self, alike: dict[str, Any]) -> Clock:
        clock = (alike["host"], alike["boot"], alike["nearby"])
        known = [each for each in (self._walls.get(clock), alike["wall_us_min"]) if each is not None]
        self._walls[clock] = min(known, default=None)
        return clock

    def _add(self, kind: str, alike: dict[str, Any]) -> None:
        name = (alike["file"], alike["block"])
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Lines(alike["row_min"])
        elif block.first is not None and alike["row_min"] < block.first:
            raise LineOrderError
        block.row = min(block.row, alike["row_min"])
        block.lines += alike["row_count"]
        self._lines[alike["file"]] += alike["row_count"]
        block.events += alike["row_count"] if kind != REJECTED else 0
        block.kinds.add(kind)
        if alike["mono_us_min"] is None:
            return
        ends = [*block.times, alike["mono_us_min"], alike["mono_us_max"]]
        block.times = [min(ends), max(ends)]
        self.began_us = block.times[0] if self.began_us is None else min(self.began_us, block.times[0])
        block.clocks.add(self._note_clock(alike))

    def blocks(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of `blocks`."""
        for (file, number), block in self._blocks.items():
            clocks = [dict(zip(CLOCK, each, strict=True)) for each in sorted(block.clocks, key=nulls_first)]
            counts = (block.row, block.lines, block.events, sorted(block.kinds))
            yield self._run, file, number, *counts, *(block.times or (None, None)), clocks

    def rejects(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of `rejects` that can no longer change, and forget these."""
        waiting = []
        for each in self._rejected:
            row = self._reject(each)
            if each[3] == NOT_JSON and row[2] >= self._lines[each[0]]:
                waiting.append(each)
            else:
                self.rejected += 1
                block = self._blocks[each[0], each[1]]
                block.first = block.row
                yield row
        self._rejected = waiting

    def last_rejects(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the other rows of `rejects`."""
        return map(self._reject, self._rejected)

    def _reject(self, rejected: tuple[str, int, int, str, str]) -> tuple[Any, ...]:
        file, number, row, flaw, text = rejected
        earlier = (
            0
            if not number
            else sum(
                block.lines for (of_file, other), block in self._blocks.items() if of_file == file and other < number
            )
        )
        line = row - self._blocks[file, number].row + earlier + 1
        return self._run, file, line, flaw, text, line == self._lines[file] and flaw == NOT_JSON


def nearby_of(lines: pa.Table) -> pa.ChunkedArray[Any]:
    """Return for each line what tells the boots of a host apart that it does not name, as `ingest.blocks` does."""
    wall_us = pc.cast(pc.subtract(lines["ts_us"], lines["mono_us"]), pa.float64())
    return pc.cast(pc.floor(pc.divide(wall_us, float(REBOOTED_US))), pa.int64())


def nulls_first(values: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """Return a key by which Spark sorts."""
    return [(value is not None, value) for value in values]
