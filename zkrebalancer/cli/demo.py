"""`zkrebalancer demo`: watch groups being rebalanced on real servers, with a verdict at the end."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from zkrebalancer.cli import options
from zkrebalancer.cli.interrupts import interrupts_end_here
from zkrebalancer.experiments.demo import run as experiment
from zkrebalancer.experiments.demo.report import print_report
from zkrebalancer.experiments.demo.run import DemoFailedError, DemoSettings, Outcome
from zkrebalancer.experiments.demo.script import MIN_MEMBERS
from zkrebalancer.experiments.demo.show import LiveShow, PlainShow, Show

MAX_MEMBERS = 50  # each is a process
MAX_PARTITIONS = 2_000
MAX_RECORDS_PER_S = 50_000


@click.command()
@click.option(
    "--seconds",
    type=options.FiniteRange(0, 86_400),
    default=40,
    show_default=True,
    help="Produce records for at least this long; the changes are spread over it.",
)
@click.option(
    "--members",
    type=click.IntRange(MIN_MEMBERS, MAX_MEMBERS),
    default=5,
    show_default=True,
    help="Consumers that join each group before the first one leaves.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, MAX_PARTITIONS),
    default=24,
    show_default=True,
    help="Partitions of the first topic, before it grows.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, MAX_RECORDS_PER_S),
    default=1_000,
    show_default=True,
    help="Records per second, spread over the first topic.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Determines which consumer is killed, suspended or leaves."
)
@click.option("--keep", is_flag=True, help="Keep the folder with all logs and events, and print its path.")
@options.events_option
@options.json_option
@options.log_level_option
def demo(
    *,
    seconds: float,
    members: int,
    partitions: int,
    rate: int,
    seed: int,
    keep: bool,
    events_directory: Path | None,
    as_json: bool,
) -> None:
    """Start ZooKeeper, Kafka, three coordinators and two consumer groups, inject faults, and judge the result.

    Consumers join, leave, are killed and are suspended; partitions and a topic are added; the leading coordinator is
    killed. The first group is rebalanced in incremental mode, the second in eager mode. Exit code 1 if a record was
    lost, delivered out of order, or delivered twice without a crash, or if a partition had two owners.

    \b
    Example:
      zkrebalancer demo --members 3 --seconds 60
    """
    if partitions < members:
        raise click.UsageError(
            f"--partitions {partitions} is less than --members {members}: some members would own nothing"
        )
    if events_directory is not None and any(events_directory.glob("*.jsonl")):
        raise click.UsageError(f"--events {events_directory} contains events of an earlier run; name an empty folder")
    settings = DemoSettings(seconds, members, partitions, rate, seed, events_directory, keep)
    with interrupts_end_here(), _show(settings, as_json) as show:
        outcome = experiment.run(settings, show)
    if as_json:
        click.echo(json.dumps(outcome.document()))
    else:
        print_report(outcome)
    _judge(outcome)


def _show(settings: DemoSettings, as_json: bool) -> Show:
    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        return PlainShow(to_stderr=as_json)
    return LiveShow(console, experiment.count_steps(settings))


def _judge(outcome: Outcome) -> None:
    """Print each problem; raises DemoFailedError if there is one."""
    if outcome.verdict.ok:
        return
    for problem in outcome.verdict.problems:
        click.echo(f"problem: {problem}", err=True)
    raise DemoFailedError(f"a guarantee was violated; logs and events are in {outcome.directory}")
