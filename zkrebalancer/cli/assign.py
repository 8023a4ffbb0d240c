"""`zkrebalancer assign`: run one assignment strategy on a JSON document and show its decision."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zkrebalancer.assignment import STRATEGIES, decide, strategy
from zkrebalancer.assignment.balanced import place_balanced, plan_assignment, plan_problem
from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.assignment.balanced.plan import Plan
from zkrebalancer.assignment.balanced.report import objective, reasons_by_topic, unassigned
from zkrebalancer.assignment.document import InputError, partitions_of_member, printable, read_problem, write_result
from zkrebalancer.assignment.model import Assignment
from zkrebalancer.assignment.result import Summary, summarize
from zkrebalancer.cli import options
from zkrebalancer.protocol.fields import to_ranges

MAX_INPUT_BYTES = 256 * 1024 * 1024
BAR_WIDTH = 40


@click.command()
@click.option("--strategy", "strategy_name", required=True, metavar="NAME", help=f"One of {', '.join(STRATEGIES)}.")
@click.option("--input", "input_name", required=True, metavar="FILE|-", help="The JSON document; - for standard input.")
@click.option("--reasons", "with_reasons", is_flag=True, help="Explain each placement (balanced only).")
@options.json_option
@options.log_level_option
def assign(strategy_name: str, input_name: str, with_reasons: bool, as_json: bool) -> None:
    """Run one strategy on a group described in JSON; real groups are not affected.

    The document names at least the topics with their partition counts, and the members:

    \b
      {"topics": {"orders": 3}, "members": {"c1": {"topics": ["orders"]}, "c2": {"pattern": "^ord"}}}

    \b
    Example:
      zkrebalancer assign --strategy sticky --input group.json
    """
    is_balanced = strategy(strategy_name) is place_balanced
    if with_reasons and not is_balanced:
        raise InputError(f"--reasons works with balanced only, not with {strategy_name}")
    problem = read_problem(_read_input(input_name))
    read_options(problem.options)  # checked for every strategy, to find mistakes before a group uses them
    started = time.perf_counter()
    plan = plan_problem(problem) if is_balanced else None
    assignment = plan_assignment(plan) if plan else decide(strategy_name, problem)
    elapsed_ms = (time.perf_counter() - started) * 1_000
    summary = summarize(problem, assignment)
    if plan:
        summary = replace(summary, unassigned=unassigned(plan))
    if as_json:
        told = _facts(plan, with_reasons=with_reasons) if plan else {}
        click.echo(json.dumps(write_result(strategy_name, assignment, summary, elapsed_ms) | told))
        return
    _print_tables(assignment, summary, elapsed_ms)
    if plan:
        _print_facts(plan, with_reasons=with_reasons)


def _facts(plan: Plan, *, with_reasons: bool) -> dict[str, object]:
    return {"objective": objective(plan)} | ({"reasons": reasons_by_topic(plan)} if with_reasons else {})


def _print_facts(plan: Plan, *, with_reasons: bool) -> None:
    """Show the quality of a plan of `balanced` and, with `--reasons`, the reason for each placement."""
    console = Console(highlight=False)
    cost, bound = plan.cost, plan.bound
    console.print(f"highest load {cost.peak:.2f} of the mean, at least {bound.peak:.2f} in any plan")
    console.print(f"cost {cost.total:.3f}, at least {bound.total:.3f} in any plan; {plan.search_steps} search steps")
    for topic, of_topic in reasons_by_topic(plan).items() if with_reasons else ():
        for reason in sorted(set(of_topic)):
            shown = _shown([partition for partition, why in enumerate(of_topic) if why == reason])
            console.print(Text(f"{reason}: {printable(topic)} {shown}"))


def _read_input(name: str) -> bytes:
    if name == "-" and sys.stdin is None:
        raise InputError("--input -: standard input is closed")
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
    """Draw the number of partitions of each member as a bar."""
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
    """Write partitions as ranges: 0-2, 5."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in to_ranges(partitions))
