"""`zkrebalancer groups`: inspect and operate consumer groups."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime

import click
from rich.table import Table

from zkrebalancer.cli import group_history, options, watching
from zkrebalancer.cli.group_lifecycle import create, delete
from zkrebalancer.cli.group_offsets import group_offsets
from zkrebalancer.cli.plans import configure, explain, freeze, plan, unfreeze
from zkrebalancer.cli.tables import console
from zkrebalancer.cli.watching import View
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import group_lag, kafka_offsets
from zkrebalancer.operations.group_lag import PartitionLag
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import ABSENT, CHANGED, Content, Done, Get, Multi, SetContent
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperRefusedError
from zkrebalancer.protocol.history import MAX_REBALANCES, Rebalanced
from zkrebalancer.protocol.registration import stop_limit_ms
from zkrebalancer.runtime.zk import BlockingZk

MAX_NAMES_SHOWN = 20  # in one cell of a table
Lag = Mapping[fields.TopicPartition, PartitionLag]
LagTimes = Mapping[fields.TopicPartition, float | None]  # seconds; None: unknown
FIRST_KAFKA_YEAR = 1970  # its times are milliseconds since then


class NoLeaderError(RebalancerError):
    """No coordinator leads, so the request would have no effect."""


class UnreadableGroupError(RebalancerError):
    """The right to read a group is missing."""


@click.group()
def groups() -> None:
    """Inspect and operate consumer groups.

    \b
    Example:
      zkrebalancer groups describe payments --zookeeper localhost:2181/kafka
    """


for command in (configure, create, delete, explain, freeze, group_offsets, plan, unfreeze):
    groups.add_command(command)


@groups.command("list")
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
        document = {"coordinator": asdict(leader) if leader else None, "groups": [_summary(r) for r in reports]}
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
        name, state, *others = list(_summary(report).values())[:7]
        frozen = ", frozen" if report.settings.frozen else ""
        table.add_row(str(name), f"{state}{frozen}", *map(str, others))
    return (heading, table), ()


@groups.command()
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
            past = {} if history_count is None else {"history": group_history.document(rebalances)}
            obstacle_list = [asdict(each) for each in obstacles]
            click.echo(json.dumps({**_document(report, lag, times), "obstacles": obstacle_list, **past}))
            return (), ()
        below = [f"{obstacle.kind}: {obstacle.text}" for obstacle in obstacles] if state else []
        if state:
            table = _state_table(report)
        elif history_count is not None:
            table = group_history.table(rebalances)
        elif members:
            table = _members_table(report)
        else:
            table = _partitions_table(report, offsets, lag, times)
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


@groups.command()
@click.argument("group")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def rebalance(group: str, zookeeper: str, as_json: bool) -> None:
    """Ask the coordinator to check a group again.

    Nothing happens if no partition has to move.

    \b
    Example:
      zkrebalancer groups rebalance payments --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        leader = inspection.read_leader(zk)
        if leader is None:
            raise NoLeaderError(f"group {group}: no coordinator leads, so nothing would be rebalanced; start one")
        node = zk.perform(Get(paths.group(group)), ABSENT)
        if not isinstance(node, Content):
            raise inspection.UnknownGroupError(f"group {group} was deleted")
        # Rewriting the settings unchanged is the request: every leader watches them anyway.
        request = Multi((SetContent(paths.group(group), node.content, node.stat.version),))
        written = zk.perform(request, CHANGED)
    if not isinstance(written, Done):
        raise RebalancerError(f"group {group}: its settings were changed at the same time; try again")
    if as_json:
        click.echo(json.dumps({"group": group, "requested": True, "generation": report.generation}))
    else:
        click.echo(f"asked coordinator {leader.brokerid} to check {group}, now at generation {report.generation}")


@groups.command("reset-offsets")
@click.argument("group")
@click.option("--to-earliest", "target", flag_value="earliest", help="To the first record that Kafka still has.")
@click.option("--to-latest", "target", flag_value="latest", help="To the end of each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset, in every partition.")
@click.option(
    "--to-datetime",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]),
    callback=lambda _context, _option, moment: _require_kafka_time(moment),
    help="To the first record at or after this time.",
)
@options.kafka_options("Kafka brokers; required unless --to-offset is given. Also resets the offsets stored in Kafka.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def reset(
    group: str,
    target: str | None,
    to_offset: int | None,
    to_datetime: datetime | None,
    kafka: Mapping[str, str] | None,
    dry_run: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Reset the stored offsets of a group that has no members.

    \b
    Example:
      zkrebalancer groups reset-offsets payments --to-earliest --dry-run \\
          --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    if sum(choice is not None for choice in (target, to_offset, to_datetime)) != 1:
        raise click.UsageError("give exactly one of --to-earliest, --to-latest, --to-offset and --to-datetime")
    if to_offset is None and kafka is None:
        raise click.UsageError("--bootstrap is required, because Kafka knows these offsets")

    def new_offsets(partitions: list[fields.TopicPartition]) -> Mapping[fields.TopicPartition, int]:
        if to_offset is not None or kafka is None:
            return dict.fromkeys(partitions, to_offset or 0)
        if to_datetime is not None:
            return kafka_offsets.offsets_at(kafka, partitions, to_datetime)
        ends = kafka_offsets.log_ends(kafka, partitions)
        return {partition: low if target == "earliest" else high for partition, (low, high) in ends.items()}

    with BlockingZk(zookeeper) as zk:
        in_kafka = StoredInKafka(kafka, group) if kafka is not None else None
        changes = reset_offsets(zk, group, new_offsets, dry_run, in_kafka)
    if not changes:
        where = " in ZooKeeper (use --bootstrap to include those in Kafka)" if kafka is None else ""
        click.echo(f"group {group} has no stored offsets{where}", err=True)
    if as_json:
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "before": change.in_zookeeper,
                "before_in_kafka": change.in_kafka,
                "after": change.after,
            }
            for (topic, partition), change in changes.items()
        ]
        click.echo(json.dumps({"group": group, "dry_run": dry_run, "offsets": rows}))
        return
    table = Table("topic", "partition", "in ZooKeeper", "in Kafka", "would be" if dry_run else "now")
    for (topic, partition), change in changes.items():
        shown = (partition, change.in_zookeeper, change.in_kafka, change.after)
        table.add_row(topic, *("-" if value is None else str(value) for value in shown))
    console().print(table)


def _require_kafka_time(moment: datetime | None) -> datetime | None:
    if moment is not None and moment.year < FIRST_KAFKA_YEAR:
        raise click.BadParameter(f"Kafka has no times before {FIRST_KAFKA_YEAR}")
    return moment


def _summary(report: GroupReport) -> dict[str, object]:
    return {
        "group": report.name,
        "state": report.state,
        "members": len(report.members),
        "partitions_owned": len(report.owned()),
        "generation": report.generation,
        "mode": report.settings.mode,
        "strategy": report.settings.strategy,
        "frozen": report.settings.frozen,
        "problems": report.problems.lines(),
        "problem_counts": dict(report.problems.counts),
    }


def _document(report: GroupReport, lag: Lag | None, times: LagTimes | None) -> dict[str, object]:
    return {
        **_summary(report),
        "settings": asdict(report.settings),
        "evicted": report.evicted,
        "consumers": [
            {
                "consumer": member.consumer,
                "registration": asdict(member.registration) if member.registration else None,
                "threads": fields.threads_to_ranges(member.owners.partitions) if member.owners else None,
                "generation": member.owners.generation if member.owners else None,
                "pending_commands": member.pending_commands,
            }
            for member in report.members
        ],
        "offsets": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(report.offsets.items())
        ]
        if lag is None
        else [
            {"topic": tp[0], "partition": tp[1], **asdict(known), "lag": known.lag, **_lag_s(times, tp)}
            for tp, known in lag.items()
        ],
    }


def _state_table(report: GroupReport) -> Table:
    table = Table("property", "value")
    shown = {**_summary(report), **asdict(report.settings), "evicted": _some(report.evicted)}
    for key, value in shown.items():
        if key not in {"problems", "problem_counts"}:
            table.add_row(key, str(value))
    return table


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES_SHOWN} more"] if len(names) > MAX_NAMES_SHOWN else []
    return ", ".join([*names[:MAX_NAMES_SHOWN], *more]) or "-"


def _members_table(report: GroupReport) -> Table:
    columns = ("consumer", "host", "instance id", "subscription", "partitions", "pending", "generation", "stops within")
    table = Table(*columns)
    allowed_ms = report.settings.rebalance_timeout_ms
    for member in report.members:
        known = member.registration
        table.add_row(
            member.consumer,
            known.host if known else "unreadable",
            (known.instance_id if known else None) or "-",
            f"{known.pattern}: {', '.join(known.subscription)}" if known else "-",
            _ranges(frozenset(member.owners.partitions)) if member.owners else "unreadable",
            str(member.pending_commands),
            str(member.owners.generation) if member.owners else "-",
            f"{stop_limit_ms(known.stop_timeout_ms if known else None, allowed_ms) / 1_000:g} s",
        )
    return table


def _lag_s(times: LagTimes | None, partition: fields.TopicPartition) -> dict[str, float | None]:
    return {} if times is None else {"lag_s": times[partition]}


def _partitions_table(report: GroupReport, with_offsets: bool, lag: Lag | None, times: LagTimes | None) -> Table:
    columns = ["offset"] if with_offsets else []
    columns += ["offset in Kafka", "log end", "lag"] if lag is not None else []
    columns += ["lag s"] if times is not None else []
    table = Table("topic", "partition", "consumer thread", *columns)
    owned = report.owned()
    for topic, partition in sorted(owned.keys() | report.offsets.keys() | (lag or {}).keys()):
        row: list[object] = [topic, partition, owned.get((topic, partition))]
        if lag is not None:
            known = lag[topic, partition]
            row += [known.offset, known.offset_in_kafka, known.log_end_offset, known.lag]
            row += _lag_s(times, (topic, partition)).values()
        elif with_offsets:
            row.append(report.offsets.get((topic, partition)))
        table.add_row(*("-" if value is None else str(value) for value in row))
    return table


def _ranges(partitions: frozenset[fields.TopicPartition]) -> str:
    return "; ".join(
        f"{topic} " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for topic, ranges in fields.topics_to_ranges(partitions).items()
    )
