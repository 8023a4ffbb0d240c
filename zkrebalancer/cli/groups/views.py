"""`zkrebalancer groups list` and `describe`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict

import click
from rich.table import Table

from zkrebalancer.cli import options, watching
from zkrebalancer.cli.groups import history, tables
from zkrebalancer.cli.watching import View
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import group_lag
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperRefusedError
from zkrebalancer.protocol.history import MAX_REBALANCES, Rebalanced
from zkrebalancer.runtime.zk import BlockingZk


class UnreadableGroupError(RebalancerError):
    """The right to read a group is missing."""


@click.command("list")
@watching.watch_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def list_groups(watch: bool, zookeeper: str, as_json: bool) -> None:
    """List all groups and the leading coordinator.

    \b
    Example:
      zkrebalancer groups list --zookeeper localhost:2181/kafka
    """
    watching.refuse_json(watch=watch, as_json=as_json)
    refused: list[ZooKeeperRefusedError] = []

    def read() -> View:
        nonlocal refused
        leader = inspection.read_leader(zk)
        reports, refused = inspection.read_groups(zk)
        if not as_json:
            return _list_view(leader, reports)
        document = {"coordinator": asdict(leader) if leader else None, "groups": [tables.summary(r) for r in reports]}
        click.echo(json.dumps(document))
        return (), ()

    with BlockingZk(zookeeper) as zk:
        watching.show(read, watch=watch)
    if refused:
        others = f" (the same for {len(refused) - 1} more groups)" if len(refused) > 1 else ""
        raise UnreadableGroupError(f"a group is not in the list: {refused[0]}{others}")


def _list_view(leader: CoordinatorAddress | None, reports: list[GroupReport]) -> View:
    heading = (
        f"coordinator: broker {leader.brokerid} on {leader.host}, epoch {leader.epoch}"
        if leader
        else "coordinator: none leads; no group is rebalanced until one does"
    )
    table = Table("group", "state", "members", "partitions owned", "generation", "mode", "strategy")
    for report in reports:
        name, state, *others = list(tables.summary(report).values())[:7]
        frozen = ", frozen" if report.settings.frozen else ""
        table.add_row(str(name), f"{state}{frozen}", *map(str, others))
    return (heading, table), ()


@click.command()
@click.argument("group")
@click.option("--members", is_flag=True, help="One line per consumer.")
@click.option("--offsets", is_flag=True, help="Add stored offsets; with --bootstrap, also lag.")
@click.option(
    "--lag-time",
    is_flag=True,
    help="With --bootstrap, add how long the first unread record waits; reads those records.",
)
@click.option("--state", is_flag=True, help="Only the state, the settings, and why the group is stuck.")
@click.option(
    "--history",
    "history_count",
    metavar="[N]",
    type=click.IntRange(min=1),
    is_flag=False,
    flag_value=MAX_REBALANCES,
    help="The last N rebalances: why, how long, what moved, who was late. Default: all that are kept.",
)
@watching.watch_option
@options.kafka_options("Kafka brokers, to add log ends, lag and the offsets stored in Kafka.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def describe(
    group: str,
    members: bool,
    offsets: bool,
    lag_time: bool,
    state: bool,
    history_count: int | None,
    watch: bool,
    kafka: Mapping[str, str] | None,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Show the owner of each partition, or members, offsets, state, past rebalances.

    \b
    Example:
      zkrebalancer groups describe payments --members --zookeeper localhost:2181/kafka
      zkrebalancer groups describe payments --state --zookeeper localhost:2181/kafka
      zkrebalancer groups describe payments --history --watch --zookeeper localhost:2181/kafka
      zkrebalancer groups describe payments --offsets --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    if kafka is not None and not offsets:
        raise click.UsageError("--bootstrap has no meaning without --offsets")
    if lag_time and kafka is None:
        raise click.UsageError("--lag-time needs --offsets and --bootstrap")
    watching.refuse_json(watch=watch, as_json=as_json)

    def read() -> View:
        report = inspection.read_group(zk, group)
        obstacles = inspection.read_obstacles(zk, report)
        if offsets:
            inspection.read_offsets(zk, report)
        rebalances = _read_history(zk, report)[-history_count:] if history_count is not None else ()
        lag = group_lag.read_lag(report, kafka) if kafka is not None else None
        times = None
        if lag_time and lag is not None and kafka is not None:
            times = group_lag.read_lag_times(lag, kafka, int(time.time() * 1_000))
        if as_json:
            past = {} if history_count is None else {"history": history.document(rebalances)}
            obstacle_list = [asdict(each) for each in obstacles]
            click.echo(json.dumps({**tables.document(report, lag, times), "obstacles": obstacle_list, **past}))
            return (), ()
        below = [f"{obstacle.kind}: {obstacle.text}" for obstacle in obstacles] if state else []
        if state:
            table = tables.state_table(report)
        elif history_count is not None:
            table = history.table(rebalances)
        elif members:
            table = tables.members_table(report)
        else:
            table = tables.partitions_table(report, offsets, lag, times)
        return (table, *below), report.problems.lines()

    with BlockingZk(zookeeper) as zk:
        watching.show(read, watch=watch)


def _read_history(zk: BlockingZk, report: GroupReport) -> tuple[Rebalanced, ...]:
    """Return past rebalances, oldest first; what cannot be read becomes a problem of the report."""
    try:
        found = inspection.read_history(zk, report.name)
    except NodeContentError as error:
        report.problems.add("history", str(error))
        return ()
    for problem in found.problems:
        report.problems.add("history", problem)
    return found.rebalances
