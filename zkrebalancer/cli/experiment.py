"""`zkrebalancer experiment`: run the same scenarios with every protocol, on real servers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from zkrebalancer.cli import options, tables
from zkrebalancer.cli.compare import compare
from zkrebalancer.cli.interrupts import interrupts_end_here
from zkrebalancer.cli.progress import GridShow
from zkrebalancer.experiments import grid
from zkrebalancer.experiments.grid import Grid
from zkrebalancer.experiments.placement import MEMBERS_PER_PROCESS
from zkrebalancer.experiments.protocols import EVERY_BROKER, PROTOCOLS, SWEPT, TUNINGS
from zkrebalancer.experiments.run import Result
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.localcluster.cluster import BrokerKind
from zkrebalancer.protocol.errors import RebalancerError

ALL = "all"
WITH = "@"  # between the name of a protocol and its settings
HEARTBEATS = "heartbeats"  # all settings of SWEPT
MIN_MEMBERS = 2  # one fails, the other takes over
MAX_MEMBERS = 200
MAX_PARTITIONS = 5_000
MAX_REPEAT = 100
Named = TypeVar("Named")
COLUMNS = {  # heading -> figure
    "settled ms": "settled_ms",
    "first record ms": "first_record_ms",
    "unowned s": "unowned_partition_ms",
    "delay p99 ms": "delay_p99_ms",
    "max": "delay_max_ms",
    "moved": "moved",
    "least": "moved_least",
    "needless stops": "stopped_needlessly",
    "peak load": "load_peak",
    "lost": "lost",
    "doubled": "duplicated",
    "overlaps": "overlaps",
}


class ProtocolChoice(click.Choice[str]):
    """A protocol's name, also with its settings: `kip848@heartbeat-50`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is given."""
        name, separator, tuning = value.partition(WITH)
        super().convert(name, param, ctx)
        if separator and name == ALL:
            self.fail(f"{value}: name the protocol, or give --settings", param, ctx)
        if separator and tuning not in PROTOCOLS[name].settings:
            self.fail(f"{value}: {name} has the settings {', '.join(PROTOCOLS[name].settings)}", param, ctx)
        return value


class ExperimentFailedError(RebalancerError):
    """Some runs did not finish."""


@click.group()
def experiment() -> None:
    """Compare this rebalancer with client-side protocols, on real servers.

    \b
    Example:
      zkrebalancer experiment run --protocol all --scenario scale-out
    """


experiment.add_command(compare)


@experiment.command("list")
@options.json_option
@options.log_level_option
def list_everything(*, as_json: bool) -> None:
    """List the protocols and the scenarios.

    \b
    Example:
      zkrebalancer experiment list
    """
    protocols = {protocol.name: protocol.about for protocol in PROTOCOLS.values()}
    scenarios = {scenario.name: scenario.about for scenario in SCENARIOS.values()}
    if as_json:
        click.echo(json.dumps({"protocols": protocols, "scenarios": scenarios}))
        return
    for heading, entries in (("protocol", protocols), ("scenario", scenarios)):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        table.add_column(heading, no_wrap=True)
        table.add_column("")
        for entry in entries.items():
            table.add_row(*entry)
        tables.console().print(table)


@experiment.command("run")
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    required=True,
    type=ProtocolChoice([*PROTOCOLS, ALL]),
    help="Repeatable. PROTOCOL@SETTINGS (kip848@heartbeat-50) adds one with settings of its own to those that have "
    "--settings.",
)
@click.option(
    "--scenario", "scenarios", multiple=True, required=True, type=click.Choice([*SCENARIOS, ALL]), help="Repeatable."
)
@click.option("--members", type=click.IntRange(MIN_MEMBERS, MAX_MEMBERS), default=20, show_default=True)
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), default=240, show_default=True)
@click.option(
    "--settings",
    "tunings",
    multiple=True,
    type=click.Choice([*TUNINGS, HEARTBEATS]),
    default=["default"],
    show_default=True,
    help="default: each protocol's own defaults. tuned: quicker ones, heartbeats of 500 ms. heartbeat-N: tuned, with "
    "heartbeats every N ms; heartbeats: those from 50 ms on. Repeatable.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Determines which members are hit.")
@click.option(
    "--repeat",
    type=click.IntRange(1, MAX_REPEAT),
    default=1,
    show_default=True,
    help="Run everything this many times, with consecutive seeds.",
)
@click.option(
    "--broker",
    type=click.Choice(EVERY_BROKER),
    help="Use this broker instead of each protocol's default; `--protocol all` then means all that run on it.",
)
@click.option(
    "--members-per-process",
    type=click.IntRange(1, MAX_MEMBERS),
    default=MEMBERS_PER_PROCESS,
    show_default=True,
    help="Members to be killed or suspended always get a separate process.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("experiments"),
    show_default=True,
    help="Folder of all runs. Runs with a complete result there are skipped.",
)
@click.option(
    "--events",
    "events_directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also copy the events of each finished run here, under the same names as in --out.",
)
@options.json_option
@options.log_level_option
def run_grid(
    *,
    protocols: Sequence[str],
    scenarios: Sequence[str],
    members: int,
    partitions: int,
    tunings: Sequence[str],
    seed: int,
    repeat: int,
    broker: BrokerKind | None,
    members_per_process: int,
    out: Path,
    events_directory: Path | None,
    as_json: bool,
) -> None:
    """Run scenarios with protocols, each on fresh servers.

    Each run leaves its events and its result in --out.

    \b
    Example:
      zkrebalancer experiment run --protocol all --scenario all --members 20 --partitions 240 --repeat 3
      zkrebalancer experiment run --protocol central-incremental --protocol kip848 --protocol kip848@heartbeat-50 \\
          --settings tuned --scenario crash
    """
    if partitions < members:
        raise click.UsageError(
            f"--partitions {partitions} is less than --members {members}: some members would own nothing"
        )
    chosen = _chosen([name for name in protocols if WITH not in name], PROTOCOLS)
    given = [name.split(WITH) for name in dict.fromkeys(protocols) if WITH in name]
    if ALL in protocols and broker is not None:
        chosen = [protocol for protocol in chosen if broker in protocol.brokers]
    plans = Grid(
        chosen,
        _chosen(scenarios, SCENARIOS),
        list(dict.fromkeys(name for given in tunings for name in (SWEPT if given == HEARTBEATS else [given]))),
        members,
        partitions,
        range(seed, seed + repeat),
        broker,
        members_per_process,
        [(PROTOCOLS[name], tuning) for name, tuning in given],
    ).plans()
    options.make_folder(out, "--out")
    if events_directory is not None:
        options.make_folder(events_directory, "--events")
        if events_directory.samefile(out):
            raise click.UsageError(f"--events and --out are the same folder, {out}: the copies would replace the runs")
    with interrupts_end_here(), GridShow(Console(stderr=True, highlight=False), len(plans)) as show:
        results, failures = grid.perform(plans, out, show, events_directory)
    if as_json:
        click.echo(json.dumps({"results": results, "failures": failures, "out": str(out)}))
    else:
        tables.console().print(_table(results))
    if failures:
        raise ExperimentFailedError(f"{len(failures)} of {len(plans)} runs failed: {failures[0]}")


def _chosen(names: Sequence[str], known: Mapping[str, Named]) -> list[Named]:
    wanted = known if ALL in names else dict.fromkeys(names)
    return [known[name] for name in wanted]


def _table(results: Iterable[Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in ("scenario", "protocol", "settings", "seed"):
        table.add_column(heading, no_wrap=True)
    for heading in (*COLUMNS, "trusted"):
        table.add_column(heading, justify="right")
    for result in sorted(results, key=lambda result: result["scenario"]):
        figures = [_text(heading, result["measures"].get(name)) for heading, name in COLUMNS.items()]
        run = (result["scenario"], result["protocol"], result["settings"], str(result["seed"]))
        table.add_row(*run, *figures, "yes" if result["trusted"] else "no")
    return table


def _text(heading: str, value: float | None) -> str:
    if value is None:
        return "-"
    if heading == "peak load":
        return f"{value:.2f}"
    return f"{value / 1_000:.1f}" if heading.endswith(" s") else f"{value:.0f}"
