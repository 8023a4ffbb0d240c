"""Tables and lines for `zkrebalancer events DIR`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from zkrebalancer.cli.tables import utc
from zkrebalancer.observe.overview import Overview
from zkrebalancer.observe.rebalances import Rebalance

SHOWN_REBALANCES = 50
UNKNOWN = "unknown"
COLUMNS = (
    *("group", "generation", "mode", "cause", "members", "partitions", "moved"),
    *("settled_ms", "pause_ms_max", "outcome"),
)


def show_overview(found: Overview) -> Iterator[RenderableType]:
    """Yield what to print: the rebalances, their causes, the verdict."""
    span = f"{_at(found.began_us)} to {_at(found.ended_us)}"
    yield f"{found.kinds.total():,} events, {span}{_clocks(found)}"
    if not found.kinds["rebalance_planned"]:
        yield "rebalances: unknown, no coordinator recorded any"
    else:
        yield from _rebalances(found)
    if found.silent_members:
        missing = f"members without events: {found.silent_members:,}"
        yield f"{missing}; so what became of records, and who owned partitions, is unknown"
    for fault in found.verdict.faults:
        yield f"fault after {fault.at_s} s: {fault.name} {fault.target}"
    figures = found.figures()
    converged = figures.pop("converged")
    yield "records: " + ", ".join(f"{name} {_number(figures[name])}" for name in figures if name != "overlaps")
    yield f"partitions that two members owned at once: {_number(figures['overlaps'])}"
    yield f"at the end, each partition had one owner: {UNKNOWN if converged is None else 'yes' if converged else 'no'}"
    problems, unclear = len(found.verdict.problems), len(found.verdict.unclear)
    told = [f"{count} {what}" for count, what in ((problems, "problems"), (unclear, "unclear")) if count]
    yield f"verdict: {' and '.join(told) or 'no problem found'}"


def _rebalances(found: Overview) -> Iterator[RenderableType]:
    shown = found.rebalances[-SHOWN_REBALANCES:]
    if len(shown) < len(found.rebalances):
        yield f"the last {len(shown)} of {len(found.rebalances):,} rebalances; --json prints all"
    table = Table("planned at (UTC)", *COLUMNS)
    for at_us, each in shown:
        table.add_row(_at(at_us), *_cells(each))
    yield table
    causes = Table("group", "cause", "rebalances", "moved", "pause_ms_max")
    for cause in found.causes():
        pause = _number(cause.pause_ms_max)
        causes.add_row(cause.group, cause.cause, str(cause.rebalances), str(cause.moved), pause)
    yield causes


def _cells(rebalance: Rebalance) -> Iterator[str]:
    for name in COLUMNS:
        value = getattr(rebalance, name)
        yield value if isinstance(value, str) else _number(value)


def _clocks(found: Overview) -> str:
    if found.clocks == 1:
        return ""
    error = "without a bound" if found.error_us is None else f"within {found.error_us / 1_000:,.1f} ms"
    return f", {found.clocks} clocks aligned {error}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _at(at_us: int | None) -> str:
    try:
        return UNKNOWN if at_us is None else utc(at_us // 1_000)
    except (ValueError, OverflowError, OSError):  # no clock shows such a time
        return f"{at_us} us"
