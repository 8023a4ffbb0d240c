"""Prints the report at the end of a campaign."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from tests.campaign.records import Outcome
from zkrebalancer.experiments.demo.report import verdict_line

PLAIN_WIDTH = 200  # without a terminal, nothing is cut off
HEADINGS = ("fault", "times", "not reached", "without owner: median", "max", "to settle: median", "max")


def print_report(outcome: Outcome) -> None:
    """Print everything to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    console.print(summary_table(outcome))
    console.print()
    console.print(
        "Each row counts the rounds with this fault, together with the other faults of those rounds. A partition is "
        "without owner from a stop, kill or suspension to the next start; the time to settle begins with the repair.",
        style="dim",
    )
    for line in facts(outcome):
        console.print(line, markup=False)
    if outcome.verdict is not None:
        style = "bold red" if outcome.problems else "bold green"
        console.print(verdict_line(outcome.verdict), style=style, markup=False)


def summary_table(outcome: Outcome) -> Table:
    """Return a row for each kind of fault."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "fault" else "right", no_wrap=True)
    for row in outcome.record.summaries():
        times = (row.without_owner_s_median, row.without_owner_s_max, row.settled_s_median, row.settled_s_max)
        table.add_row(row.title, str(row.count), str(row.not_reached or "-"), *(f"{value:.1f} s" for value in times))
    return table


def facts(outcome: Outcome) -> list[str]:
    """Return lines about the whole campaign."""
    record = outcome.record
    faults = sum(len(each.faults) for each in record.rounds)
    rebalances = len(outcome.verdict.rebalances) if outcome.verdict else 0
    versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    counts = f"rounds {len(record.rounds)}, faults {faults}, rebalances {rebalances}"
    lines = [f"{versions}, seed {outcome.seed}, {outcome.elapsed_s / 60:.1f} minutes: {counts}"]
    lines += [f"skipped: {kind}: {reason}" for kind, reason in outcome.left_out.items()]
    if outcome.folder is not None:
        lines.append(f"events and logs: {outcome.folder}")
    return lines
