"""`zkrebalancer groups list` and `describe`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

import click
from rich.table import Table

from zkrebalancer.cli import options, watching
from zkrebalancer.cli.groups import history, lags, leading, tables
from zkrebalancer.cli.groups.lags import LagReader, Wanted
from zkrebalancer.cli.watching import View
from zkrebalancer.observe import inspection, service_level
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.observe.obstacles import Obstacle
from zkrebalancer.observe.regions import RegionReport, read_region
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperRefusedError
from zkrebalancer.protocol.history import MAX_REBALANCES, Rebalanced
from zkrebalancer.protocol.obstacles import UNAPPROVED
from zkrebalancer.runtime.zk import BlockingZk

MAX_PROBLEMS_SHOWN = 20  # groups with some


class UnreadableGroupError(RebalancerError):
    """The right to read a group is missing."""


@click.command("list")
@watching.watch_option
@lags.verdict_option
@options.kafka_options("Kafka brokers, for --verdict.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def list_groups(
    watch: bool, window_s: int | None, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool
) -> None:
    """List all groups and the leading coordinator; with --verdict, also the worst verdict about each group's lag.

    \b
    Example:
      zkrebalancer groups list --zookeeper localhost:2181/kafka
      zkrebalancer groups list --verdict --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    watching.refuse_json(watch=watch, as_json=as_json)
    if (window_s is None) != (kafka is None):
        raise click.UsageError("use --verdict and --bootstrap together")
    if watch and window_s is not None:
        raise click.UsageError("--verdict takes several readings, so it cannot be combined with --watch")
    refused: list[ZooKeeperRefusedError] = []

    def read() -> View:
        nonlocal refused
        shards = inspection.read_shards(zk)
        leaders = inspection.read_leaders(zk, shards)
        reports, refused = inspection.read_groups(zk)
        published = [each for shard in shards for each in inspection.read_published(zk, shard).obstacles]
        waiting = {each.group for each in published if each.kind == UNAPPROVED}
        verdicts = None
        if window_s is not None and kafka is not None:
            verdicts = lags.read_worst(zk, kafka, reports, window_s)
        if not as_json:
            return _list_view(leaders, reports, waiting, verdicts)
        judged = [{} if verdicts is None else {"verdict": verdicts[report.name]} for report in reports]
        summaries = [
            {**tables.summary(report), "unapproved": report.name in waiting, **more}
            for report, more in zip(reports, judged, strict=True)
        ]
        click.echo(json.dumps({**leading.document(leaders), "groups": summaries}))
        return (), ()

    with BlockingZk(zookeeper) as zk:
        watching.show(read, watch=watch)
    if refused:
        others = f" (the same for {len(refused) - 1} more groups)" if len(refused) > 1 else ""
        raise UnreadableGroupError(f"a group is not in the list: {refused[0]}{others}")


def _list_view(
    leaders: Sequence[CoordinatorAddress | None],
    reports: list[GroupReport],
    waiting: Collection[str | None],
    verdicts: Mapping[str, str | None] | None,
) -> View:
    columns = ("group", "state", "members", "partitions owned", "generation", "mode", "strategy")
    table = Table(*columns, *([] if verdicts is None else ["verdict"]))
    for report in reports:
        judged = [] if verdicts is None else [verdicts[report.name] or "-"]
        name, state, *others = list(tables.summary(report).values())[:7]
        frozen = ", frozen" if report.settings.frozen else ""
        unapproved = ", unapproved" if name in waiting else ""
        table.add_row(str(name), f"{state}{frozen}{unapproved}", *map(str, others), *judged)
    return (leading.heading(leaders), table), _problems(reports)


def _problems(reports: list[GroupReport]) -> list[str]:
    """Return a line for each of the first groups of which something cannot be read: their figures are too low."""
    damaged = [report for report in reports if report.problems.shown]
    lines = [
        f"group {report.name}: {report.problems.shown[0]}; `groups describe {report.name}` shows all"
        for report in damaged[:MAX_PROBLEMS_SHOWN]
    ]
    more = len(damaged) - MAX_PROBLEMS_SHOWN
    return [*lines, *([f"the same for {more} more groups"] if more > 0 else [])]


@click.command()
@click.argument("group")
@click.option("--members", is_flag=True, help="One line per consumer.")
@click.option("--offsets", is_flag=True, help="Add stored offsets; with --bootstrap, also lag.")
@click.option(
    "--lag-time",
    is_flag=True,
    help="With --bootstrap, add how long the first unread record waits; reads those records.",
)
@lags.verdict_option
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
    window_s: int | None,
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
      zkrebalancer groups describe payments --offsets --verdict --bootstrap localhost:9092 --zookeeper localhost:2181
    """
    _require_kafka(kafka, offsets=offsets, lag_time=lag_time, is_judged=window_s is not None)
    watching.refuse_json(watch=watch, as_json=as_json)

    def read() -> View:
        report = inspection.read_group(zk, group)
        obstacles = inspection.read_obstacles(zk, report)
        if offsets:
            inspection.read_offsets(zk, report)
        region = _read_region(zk, report, obstacles)
        slo = report.settings.slo
        recorded = _read_history(zk, report) if slo or history_count is not None else ()
        rebalances = recorded[-history_count:] if history_count is not None else ()
        known = reader.read(report) if reader is not None else None
        levels = service_level.levels(slo, recorded, None if known is None else known.all_times)
        if as_json:
            past = {} if history_count is None else {"history": history.document(rebalances)}
            shown = tables.document(report, known, levels)
            click.echo(json.dumps({**shown, **_state(obstacles, region), **past}))
            return (), ()
        below = [*(_lines(obstacles, region) if state else []), *(level.line for level in levels)]
        if state:
            table = tables.state_table(report)
        elif history_count is not None:
            table = history.table(rebalances)
        elif members:
            table = tables.members_table(report)
        else:
            table = tables.partitions_table(report, offsets, known)
        return (table, *below), report.problems.lines()

    with BlockingZk(zookeeper) as zk:
        wanted = Wanted(lag_time, window_s, watch)
        reader = LagReader(zk, kafka, wanted) if kafka is not None else None
        watching.show(read, watch=watch)


def _state(obstacles: Sequence[Obstacle], region: RegionReport | None) -> dict[str, object]:
    return {"obstacles": [asdict(each) for each in obstacles], "region": None if region is None else region.document()}


def _lines(obstacles: Sequence[Obstacle], region: RegionReport | None) -> list[str]:
    return [*(f"{each.kind}: {each.text}" for each in obstacles), *([region.text()] if region is not None else [])]


def _read_region(zk: BlockingZk, report: GroupReport, obstacles: Sequence[Obstacle]) -> RegionReport | None:
    """Return the group's consistent region; what cannot be read becomes a problem of the report."""
    try:
        found = read_region(zk, report.name)
    except NodeContentError as error:
        report.problems.add("region", str(error))
        return None
    return None if found is None else found.with_obstacles(report.name, obstacles)


def _require_kafka(kafka: Mapping[str, str] | None, *, offsets: bool, lag_time: bool, is_judged: bool) -> None:
    """Raise UsageError for options that need others."""
    if kafka is not None and not offsets:
        raise click.UsageError("--bootstrap has no meaning without --offsets")
    for name, is_given in (("--lag-time", lag_time), ("--verdict", is_judged)):
        if is_given and kafka is None:
            raise click.UsageError(f"{name} needs --offsets and --bootstrap")


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
