"""`zkrebalancer cluster up|status|down`: local ZooKeeper and Kafka, or Docker hosts, until `cluster down`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.localcluster import processes, standing
from zkrebalancer.localcluster.cluster import BROKER_KINDS, ENSEMBLE_SIZES, MAX_BROKERS, BrokerKind, LocalCluster
from zkrebalancer.localcluster.hosts import HOST_COUNTS, HostCluster, answering
from zkrebalancer.localcluster.state import ClusterState

PORT = click.IntRange(1, 65_535 - MAX_BROKERS)  # an ensemble takes three in a row, and so do brokers
_Folder = click.Path(file_okay=False, path_type=Path)


@click.group()
def cluster() -> None:
    """Run ZooKeeper and Kafka, as processes or on Docker hosts.

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
@click.option(
    "--brokers",
    type=click.IntRange(1, MAX_BROKERS),
    default=1,
    show_default=True,
    help="How many brokers; from three on, each partition has three replicas.",
)
@click.option(
    "--hosts",
    type=click.Choice([str(count) for count in HOST_COUNTS]),
    help="Docker containers as hosts, each with a ZooKeeper server, a Kafka 3.9 broker and a coordinator.",
)
@click.option("--chroot", default="", metavar="PATH", help="Path in ZooKeeper below which everything lives.")
@click.option(
    "--zookeeper-port",
    type=PORT,
    metavar="PORT",
    help="ZooKeeper's port; with three servers, the first of three.  [default: any free port]",
)
@click.option(
    "--broker-port",
    type=PORT,
    metavar="PORT",
    help="The broker's port; with several brokers, the first of as many.  [default: any free port]",
)
@click.option("--cache", type=_Folder, help="Folder for the servers' jars.  [default: the user's cache folder]")
@click.option(
    "--kafka-home", type=_Folder, envvar="KAFKA_HOME", help="Use the jars of this Kafka installation's libs/ instead."
)
@options.json_option
@options.log_level_option
def up(
    *,
    zookeepers: str,
    broker: BrokerKind,
    brokers: int,
    hosts: str | None,
    chroot: str,
    zookeeper_port: int | None,
    broker_port: int | None,
    cache: Path | None,
    kafka_home: Path | None,
    as_json: bool,
) -> None:
    """Start the cluster and return when every server answers.

    If the same cluster is running already, only print its addresses.

    With --hosts, each host is a container with an address of its own. It needs a Docker engine on this machine.

    \b
    Example:
      zkrebalancer cluster up --zookeeper-port 2181 --broker-port 9092
      zkrebalancer cluster up --hosts 3
    """
    if broker == "none":
        _refuse("--broker none", "broker_port", "brokers")
    if hosts is not None:
        _refuse("--hosts", "zookeepers", "broker", "brokers", "zookeeper_port", "broker_port")
    directory = standing.standing_directory()
    with _progress() as report:
        report("starting the cluster")
        place: dict[str, Any] = {"chroot": chroot, "directory": directory, "cache": cache, "kafka_home": kafka_home}
        place["report"] = report
        wanted = (
            HostCluster(hosts=int(hosts), **place)
            if hosts is not None
            else LocalCluster(
                zookeepers=int(zookeepers),
                broker=broker,
                brokers=brokers,
                zookeeper_port=zookeeper_port,
                broker_port=broker_port,
                **place,
            )
        )
        state, is_new = standing.begin(directory, wanted, report)
    if as_json:
        click.echo(json.dumps(_address(directory, state)))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("The cluster is up." if is_new else "The cluster is running already.")
    _print_state(console, directory, state)
    console.print(f"To use it:  export ZKREBALANCER_ZOOKEEPER={state.zookeeper}")
    console.print("To stop it: zkrebalancer cluster down")


@cluster.command()
@options.json_option
@options.log_level_option
def status(as_json: bool) -> None:
    """Show which servers are running; exit code 1 if none is.

    \b
    Example:
      zkrebalancer cluster status --json
    """
    directory = standing.standing_directory()
    state = standing.look(directory)
    if as_json:
        click.echo(json.dumps({"running": False} if state is None else _full_status(directory, state)))
    elif state is None:
        click.echo("No cluster is running; start one with: zkrebalancer cluster up")
    else:
        _print_state(Console(highlight=False, soft_wrap=True), directory, state)
    if state is None:
        raise SystemExit(1)


@cluster.command()
@options.json_option
@options.log_level_option
def down(as_json: bool) -> None:
    """Stop every server of the cluster and remove its folder.

    Does nothing if no cluster is running.

    \b
    Example:
      zkrebalancer cluster down
    """
    with _progress() as report:
        stopped = standing.finish(standing.standing_directory(), report)
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo("The cluster is down." if stopped else "No cluster was running.")


def _refuse(option: str, *parameters: str) -> None:
    """Refuse parameters that have no meaning with an option."""
    context = click.get_current_context()
    for name in parameters:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no meaning with {option}")


def _address(directory: Path, state: ClusterState) -> dict[str, str | None]:
    return {"zookeeper": state.zookeeper, "bootstrap": state.bootstrap or None, "directory": str(directory)}


def _full_status(directory: Path, state: ClusterState) -> dict[str, object]:
    states = standing.host_states(directory, state)
    hosts = [
        {
            "name": host.name,
            "address": host.address,
            "state": states[host.name],
            "answering": answering(host.address) if states[host.name] == "running" else [],
            "logs": f"{host.logs}-*.log",
        }
        for host in state.hosts
    ]
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
    return {
        "running": True,
        **_address(directory, state),
        "settings": state.settings,
        "servers": servers,
        "hosts": hosts,
    }


def _print_state(console: Console, directory: Path, state: ClusterState) -> None:
    if state.hosts:
        hosts = Table("host", "state", "address", "answering")
        states = standing.host_states(directory, state)
        for host in state.hosts:
            found = answering(host.address) if states[host.name] == "running" else []
            hosts.add_row(host.name, states[host.name], host.address, ", ".join(found) or "-")
        console.print(hosts)
    if state.servers:
        servers = Table("server", "state", "pid", "port", "log")
        for server in state.servers:
            condition = "running" if processes.is_alive(server.process) else "dead"
            port = "-" if server.port is None else str(server.port)
            servers.add_row(server.name, condition, str(server.process.pid), port, Path(server.log).name)
        console.print(servers)
    console.print(f"ZooKeeper:  {state.zookeeper}")
    console.print(f"Kafka:      {state.bootstrap or '-'}")
    console.print(f"Folder:     {directory}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress on standard error: one changing line on a terminal, otherwise a line per step."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda line: None if " of " in line else click.echo(line, err=True)
        return
    with console.status("") as shown:
        yield shown.update
