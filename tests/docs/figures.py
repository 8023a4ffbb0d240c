"""Tables of measured figures: computed from the published runs, they stand between marks of their pages.

A mark is `<!-- table NAME -->`, and `<!-- end of table -->` ends it. `python -m tests.docs` fills them.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

from tests.style.sources import ROOT
from zkrebalancer.observe.measures import BEFORE, REST
from zkrebalancer.pipeline.report.sentences import CAUGHT_UP

DATA = ROOT / "docs" / "data"
SETTLED = "settled_ms"
SHOWN = ("wins", "loses")
NONE = "-"
_MARKED = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def late(values: Sequence[float]) -> float:
    """Return the 95th percentile (nearest rank)."""
    return sorted(values)[ceil(0.95 * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class Column:
    """A protocol with its settings."""

    title: str
    protocol: str
    settings: str = "tuned"


@dataclass(frozen=True, slots=True)
class Row:
    """A measure of the runs of one scenario in one file: of whole runs, or of one of their changes.

    A time to settled without `change` is that of each change. `unit` is how many of the measure's units the page's has.
    """

    title: str
    measure: str
    file: str
    scenario: str
    change: str = ""
    members: int = 10
    settings: str = ""  # instead of the column's
    summary: Callable[[Sequence[float]], float] = statistics.median
    unit: int = 1
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows and columns; `turned` makes rows of the columns, `bold` marks the lowest figure of each measure."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    turned: bool = False
    bold: bool = True


@cache
def results(file: str) -> list[dict[str, Any]]:
    """Return the trusted runs of a published file."""
    runs = [json.loads(line) for line in (DATA / file).read_text().splitlines()]
    return [run for run in runs if run["trusted"]]


@cache
def _rows(file: str) -> list[dict[str, str]]:
    with (DATA / file).open() as lines:
        return list(csv.DictReader(lines))


@cache
def _table_of_runs(file: str) -> dict[tuple[object, ...], dict[str, str]]:
    """Return the table of the same runs that `experiment compare` made: older results have no costs at rest."""
    return {_key(run): run for run in _rows(file.replace(".jsonl", "-runs.csv"))}


def values(column: Column, row: Row) -> list[float]:
    """Return the figures from which a cell follows, one of each run or of each change."""
    wanted = (column.protocol, row.settings or column.settings, row.scenario, row.members)
    found: list[float | None] = []
    for run in (run for run in results(row.file) if _key(run)[:-1] == wanted):
        if row.change or row.measure == SETTLED:
            found += [_of(step, row) for step in run["steps"] if step["name"] == row.change or _any(row, step)]
        elif row.measure in run["measures"]:
            found.append(run["measures"][row.measure])
        else:
            found.append(float(_table_of_runs(row.file)[_key(run)][row.measure]))
    return [value for value in found if value is not None]


def _of(step: Mapping[str, Any], row: Row) -> float | None:
    """Return a change's figure; a group that did not catch up counts with its whole time, as in `results`."""
    figure: float | None = step[row.measure]
    return len(step["delivered_per_s"]) * 1_000.0 if figure is None and row.measure == CAUGHT_UP else figure


def _any(row: Row, step: Mapping[str, Any]) -> bool:
    return not row.change and step["name"] not in {BEFORE, REST}


def _key(run: Mapping[str, Any]) -> tuple[object, ...]:
    return run["protocol"], run["settings"], run["scenario"], int(run["members"]), int(run["seed"])


def figure(column: Column, row: Row) -> str:
    """Return a cell's figure, or NONE without runs."""
    found = values(column, row)
    return f"{row.summary(found) / row.unit:,.{row.digits}f}" if found else NONE


def rendered(table: Table) -> str:
    """Return a table as markdown."""
    cells = [[figure(column, row) for column in table.columns] for row in table.rows]
    if table.bold:
        cells = [[*_marked(of_row)] for of_row in cells]
    columns, rows = [column.title for column in table.columns], [row.title for row in table.rows]
    if table.turned:
        columns, rows, cells = rows, columns, [list(of) for of in zip(*cells, strict=True)]
    return _markdown(columns, zip(rows, cells, strict=True))


def _marked(cells: Sequence[str]) -> Iterable[str]:
    lowest = min((_number(cell) for cell in cells if cell != NONE), default=None)
    return (f"**{cell}**" if cell != NONE and _number(cell) == lowest else cell for cell in cells)


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _markdown(columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join([*lines, *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows)])


# ---- differences


def rendered_differences(columns: Sequence[Column], rows: Sequence[Row], comparison: str) -> str:
    """Return by how much each protocol exceeds this project in the median pair of runs: interval, or p if not shown.

    `comparison`: the published file that says it.
    """
    cells = [[_difference(column, row, comparison) for column in columns] for row in rows]
    return _markdown([column.title for column in columns], zip((row.title for row in rows), cells, strict=True))


def _difference(column: Column, row: Row, comparison: str) -> str:
    wanted = (column.protocol, column.settings, row.scenario, str(row.members), row.measure)
    for found in _rows(comparison):
        key = tuple(found[name] for name in ("protocol", "settings", "scenario", "members", "measure"))
        if key == wanted and found["outcome"]:
            if not found["p"]:
                return "too few runs"
            if found["outcome"] not in SHOWN:
                return f"not shown (p = {float(found['p']):.2f})"
            ends = (float(found[end]) / row.unit for end in ("difference_low", "difference_high"))
            return " to ".join(f"{end:+,.{row.digits}f}" for end in ends)
    return NONE


# ---- pages


def filled(text: str, content: Callable[[str], str]) -> str:
    """Return a page with the content of each of its marked tables, by their names."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{content(found[2])}\n\n{found[3]}", text)
