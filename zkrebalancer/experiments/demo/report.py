"""The demo's final report: every rebalance, a summary per group, and the verdict."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from zkrebalancer.experiments.demo.run import SESSION_TIMEOUT_MS, Outcome
from zkrebalancer.experiments.demo.screen import milliseconds, rebalance_table
from zkrebalancer.observe.checker import Verdict
from zkrebalancer.observe.rebalances import Rebalance

CRASH_NOTE = (
    "Times count from when a change is noticed. "
    f"A crash is noticed when the session expires, after {SESSION_TIMEOUT_MS / 1_000:g} s."
)
PLAIN_WIDTH = 200  # without a terminal, nothing is cut off


def print_report(outcome: Outcome) -> None:
    """Print the report to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    rebalances = sorted(outcome.verdict.rebalances, key=lambda rebalance: (rebalance.group, rebalance.generation))
    console.print(rebalance_table(rebalances))
    console.print()
    console.print(summary_table(rebalances))
    console.print()
    console.print(CRASH_NOTE, style="dim")
    console.print(verdict_line(outcome.verdict), style="bold green" if outcome.verdict.ok else "bold red")
    versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    console.print(f"{versions}, seed {outcome.seed}, {outcome.elapsed_s:.0f} s", style="dim")
    if outcome.directory is not None:
        console.print(f"logs and data: {outcome.directory}")
    if outcome.events is not None:
        console.print(f"events: {outcome.events}")


def summary_table(rebalances: Iterable[Rebalance]) -> Table:
    """Return one row for each group and mode; the rebalances must be sorted by group."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in ("group", "mode", "rebalances", "moved", "median settled", "longest pause"):
        table.add_column(heading, justify="left" if heading in {"group", "mode"} else "right", no_wrap=True)
    for (group, mode), these in itertools.groupby(rebalances, key=lambda rebalance: (rebalance.group, rebalance.mode)):
        rows = list(these)
        settled = [row.settled_ms for row in rows if row.settled_ms is not None]
        pauses = [row.pause_ms_max for row in rows if row.pause_ms_max is not None]
        median_ms = statistics.median(settled) if settled else None
        moved = str(sum(row.moved for row in rows))
        table.add_row(
            group, mode, str(len(rows)), moved, milliseconds(median_ms), milliseconds(max(pauses, default=None))
        )
    return table


def verdict_line(verdict: Verdict) -> str:
    """Return the counts of records, and of partitions that two consumers owned at once."""
    excused = verdict.duplicated - verdict.duplicated_outside_crash
    return (
        f"records: produced {verdict.produced}, delivered {verdict.delivered}, lost {verdict.lost}, "
        f"duplicated {verdict.duplicated} ({excused} after a crash), out of order {verdict.out_of_order}; "
        f"overlaps {verdict.overlaps}"
    )
