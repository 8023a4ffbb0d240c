"""`zkrebalancer cluster up|status|down`: a local ZooKeeper and Kafka that stay up until they are told to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.localcluster import processes, standing
from zkrebalancer.localcluster.cluster import BROKER_KINDS, ENSEMBLE_SIZES, BrokerKind
from zkrebalancer.localcluster.state import ClusterState

_Folder = click.Path(file_okay=False, path_type=Path)


@click.group()
def cluster() -> None:
    """Run ZooKeeper and a Kafka broker on this machine.

    \b
    Example:
      zkrebalancer cluster up
    """


@cluster.command()
@click.option("--zookeepers", type=click.Choice([str(size) for size in ENSEMBLE_SIZES]), default="1", show_default=True)
@click.option(
    "--broker",
    type=click.Choice(BROKER_KINDS),
    default="kafka-3.9",
    show_default=True,
    help="kafka-3.9 keeps its metadata in ZooKeeper, kafka-4 runs in KRaft mode with a topic mirror.",
)
@click.option("--chroot", default="", metavar="PATH", help="Path in ZooKeeper below which everything lives.")
@click.option("--cache", type=_Folder, help="Folder for the servers' jars instead of the user's cache folder.")
@click.option(
    "--kafka-home", type=_Folder, envvar="KAFKA_HOME", help="Kafka installation whose libs/ are used instead."
)
@options.json_option
@options.log_level_option
def up(
    *, zookeepers: str, broker: BrokerKind, chroot: str, cache: Path | None, kafka_home: Path | None, as_json: bool
) -> None:
    """Start the cluster and return when it answers; say what runs if it runs already.

    \b
    Example:
      zkrebalancer cluster up --zookeepers 3 --chroot /kafka
    """
    wish = standing.Wish(int(zookeepers), broker, chroot, cache, kafka_home)
    directory = standing.standing_directory()
    with _progress() as report:
        report("starting the cluster")
        state, is_new = standing.begin(directory, wish, report)
    if as_json:
        click.echo(json.dumps(_address(directory, state)))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("The cluster is up." if is_new else "The cluster runs already.")
    _print_state(console, directory, state)
    console.print(f"To use it:  export ZKREBALANCER_ZOOKEEPER={state.zookeeper}")
    console.print("To end it:  zkrebalancer cluster down")


@cluster.command()
@options.json_option
@options.log_level_option
def status(as_json: bool) -> None:
    """Say which servers run; exit code 1 if none does.

    \b
    Example:
      zkrebalancer cluster status --json
    """
    directory = standing.standing_directory()
    state = standing.look(directory)
    if as_json:
        click.echo(json.dumps({"running": False} if state is None else _full_status(directory, state)))
    elif state is None:
        click.echo("No cluster runs; start one with: zkrebalancer cluster up")
    else:
        _print_state(Console(highlight=False, soft_wrap=True), directory, state)
    if state is None:
        raise SystemExit(1)


@cluster.command()
@options.log_level_option
def down() -> None:
    """End every server of the cluster and remove its folder; fine if none runs.

    \b
    Example:
      zkrebalancer cluster down
    """
    with _progress() as report:
        ended_count = standing.finish(standing.standing_directory(), report)
    click.echo(f"The cluster is down ({ended_count} processes ended)." if ended_count else "No cluster was running.")


def _address(directory: Path, state: ClusterState) -> dict[str, str | None]:
    return {"zookeeper": state.zookeeper, "bootstrap": state.bootstrap or None, "directory": str(directory)}


def _full_status(directory: Path, state: ClusterState) -> dict[str, object]:
    servers = [
        {
            "name": server.name,
            "pid": server.process.pid,
            "port": server.port,
            "running": processes.is_alive(server.process),
            "log": server.log,
        }
        for server in state.servers
    ]
    return {"running": True, **_address(directory, state), "settings": state.settings, "servers": servers}


def _print_state(console: Console, directory: Path, state: ClusterState) -> None:
    table = Table("server", "state", "pid", "port", "log")
    for server in state.servers:
        condition = "running" if processes.is_alive(server.process) else "dead"
        port = "-" if server.port is None else str(server.port)
        table.add_row(server.name, condition, str(server.process.pid), port, Path(server.log).name)
    console.print(table)
    console.print(f"ZooKeeper:  {state.zookeeper}")
    console.print(f"Kafka:      {state.bootstrap or 'none'}")
    console.print(f"Folder:     {directory}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress on standard error: one changing line on a terminal, else the lines that say what begins."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda line: None if " of " in line else click.echo(line, err=True)
        return
    with console.status("") as shown:
        yield shown.update
