"""`zkrebalancer assign`: run one assignment strategy on a JSON document, to see what it would decide."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zkrebalancer.assignment import STRATEGIES, strategy
from zkrebalancer.assignment.document import InputError, partitions_of_member, printable, read_problem, write_result
from zkrebalancer.assignment.model import Assignment
from zkrebalancer.assignment.result import Summary, summarize
from zkrebalancer.protocol.fields import to_ranges

MAX_INPUT_BYTES = 256 * 1024 * 1024
BAR_WIDTH = 40


@click.command()
@click.option("--strategy", "strategy_name", required=True, metavar="NAME", help=f"One of {', '.join(STRATEGIES)}.")
@click.option("--input", "input_name", required=True, metavar="FILE|-", help="The JSON document; - is standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def assign(strategy_name: str, input_name: str, as_json: bool) -> None:
    """Run one strategy on topics, members and what they own, without touching any group.

    \b
    Example:
      zkrebalancer assign --strategy sticky --input problem.json
    """
    decide = strategy(strategy_name)
    problem = read_problem(_read_input(input_name))
    started = time.perf_counter()
    assignment = decide(problem)
    elapsed_ms = (time.perf_counter() - started) * 1_000
    summary = summarize(problem, assignment)
    if as_json:
        click.echo(json.dumps(write_result(strategy_name, assignment, summary, elapsed_ms)))
    else:
        _print_tables(assignment, summary, elapsed_ms)


def _read_input(name: str) -> bytes:
    try:
        if name == "-":
            content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise InputError(f"--input {name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > MAX_INPUT_BYTES:
        raise InputError(f"--input {name}: more than {MAX_INPUT_BYTES} bytes")
    return content


def _print_tables(assignment: Assignment, summary: Summary, elapsed_ms: float) -> None:
    table = Table("member", "topic", "partitions", "count")
    for consumer, threads in assignment.items():
        for topic, partitions in partitions_of_member(threads).items() or [("-", [])]:
            table.add_row(Text(printable(consumer)), Text(printable(topic)), _shown(partitions), str(len(partitions)))
    console = Console(highlight=False)
    console.print(table)
    _print_bars(console, assignment)
    for topic, missing in summary.unassigned.items():
        for reason in sorted({reason for _, reason in missing}):
            shown = _shown([partition for partition, why in missing if why == reason])
            console.print(Text(f"unassigned: {printable(topic)} {shown} ({reason})"))
    console.print(f"kept {summary.kept}, moved {summary.moved}, decided in {elapsed_ms:.1f} ms")


def _print_bars(console: Console, assignment: Assignment) -> None:
    """Show beside each other how many partitions every member has."""
    counts = {
        consumer: sum(map(len, partitions_of_member(threads).values())) for consumer, threads in assignment.items()
    }
    most = max(counts.values(), default=0)
    bars = Table.grid(padding=(0, 1))
    bars.add_column(no_wrap=True)
    bars.add_column(justify="right")
    bars.add_column(no_wrap=True)
    for consumer, count in counts.items():
        bars.add_row(Text(printable(consumer)), str(count), "█" * round(BAR_WIDTH * count / most) if count else "")
    console.print(bars)


def _shown(partitions: list[int]) -> str:
    """Write partitions as people do: 0-2, 5."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in to_ranges(partitions))
