"""Tables of measured figures: computed from the published runs, they stand between marks of their pages.

A mark is `<!-- table NAME -->`, and `<!-- end of table -->` ends it. `python -m tests.docs` fills them.
"""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.style.sources import ROOT
from zkrebalancer.observe.measures import BEFORE, REST
from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.compare import Comparison, compare, comparison_table
from zkrebalancer.pipeline.report.folders import find_runs
from zkrebalancer.pipeline.report.frontier import draw, frontiers
from zkrebalancer.pipeline.report.pictures import colours
from zkrebalancer.pipeline.report.sentences import CAUGHT_UP

DATA = ROOT / "docs" / "data"
SETTLED = "settled_ms"
FIRST = "first_record_ms"
OF_EACH_CHANGE = (SETTLED, FIRST)  # pooled: other measures are those of whole runs
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

    A time to settled or to the first record without `change` is that of each change, pooled. `unit` is how many of the
    measure's units the page's has.
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


def values(column: Column, row: Row) -> list[float]:
    """Return the figures from which a cell follows, one of each run or of each change."""
    wanted = (column.protocol, row.settings or column.settings, row.scenario, row.members)
    found: list[float | None] = []
    for run in (run for run in results(row.file) if _key(run) == wanted):
        if row.change or row.measure in OF_EACH_CHANGE:
            found += [_of(step, row) for step in run["steps"] if step["name"] == row.change or _any(row, step)]
        else:
            found.append(run["measures"][row.measure])
    return [value for value in found if value is not None]


def _of(step: Mapping[str, Any], row: Row) -> float | None:
    """Return a change's figure; a group that did not catch up counts with its whole time, as in `results`."""
    figure: float | None = step[row.measure]
    return len(step["delivered_per_s"]) * 1_000.0 if figure is None and row.measure == CAUGHT_UP else figure


def _any(row: Row, step: Mapping[str, Any]) -> bool:
    return not row.change and step["name"] not in {BEFORE, REST}


def _key(run: Mapping[str, Any]) -> tuple[object, ...]:
    return run["protocol"], run["settings"], run["scenario"], run["members"]


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


@cache
def compared(file: str) -> Comparison:
    """Return the comparison of the runs of a published file, as `experiment compare` makes it."""
    return compare(None, find_runs([DATA / file]), [], out=DATA)  # without events, nothing is written


@cache
def comparison_csv(file: str) -> str:
    """Return the table of every comparison in a published file."""
    return comparison_table(compared(file)).to_csv(index=False)


@cache
def _comparisons(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(comparison_csv(file))))


def rendered_differences(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return by how much each protocol exceeds this project in the median pair of runs: interval, or p if not shown."""
    cells = [[_difference(column, row) for column in columns] for row in rows]
    return _markdown([column.title for column in columns], zip((row.title for row in rows), cells, strict=True))


def _difference(column: Column, row: Row) -> str:
    wanted = (column.protocol, column.settings, row.scenario, str(row.members), row.measure)
    for found in _comparisons(row.file):
        key = tuple(found[name] for name in ("protocol", "settings", "scenario", "members", "measure"))
        if key == wanted and found["outcome"]:
            if not found["p"]:
                return "too few runs"
            if found["outcome"] not in SHOWN:
                return f"not shown (p = {float(found['p']):.2f})"
            ends = (float(found[end]) / row.unit for end in ("difference_low", "difference_high"))
            return " to ".join(f"{end:+,.{row.digits}f}" for end in ends)
    return NONE


# ---- pictures


def frontier_picture(file: str, scenario: str) -> str:
    """Return an SVG of how soon each protocol settles, beside what it costs at rest, for each heartbeat interval."""
    found = compared(file)
    drawn = {setting.scenario: frontier for setting, frontier in frontiers(found.counted, found.measures).items()}
    return _svg(draw(drawn[scenario], colours(drawn[scenario])))


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context(page.STYLE):
        figure.savefig(text, format="svg", facecolor="white", metadata={"Date": None})
    return text.getvalue()


# ---- pages


def filled(text: str, content: Callable[[str], str]) -> str:
    """Return a page with the content of each of its marked tables, by their names."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{content(found[2])}\n\n{found[3]}", text)
