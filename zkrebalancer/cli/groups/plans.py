"""`zkrebalancer groups plan`, `explain`, `rebalance`, `configure`, `freeze` and `unfreeze`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.tables import console
from zkrebalancer.observe import inspection
from zkrebalancer.operations import audit
from zkrebalancer.operations import configure as operation
from zkrebalancer.operations.foresight import Foreseen, foresee, foresee_one
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, CHANGED, Content, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

MAX_MOVES_SHOWN = 20

kafka_options = options.kafka_options("Kafka brokers, to read lag if the strategy weighs it.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the resulting plan.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation; never asked without a terminal.")


class NoLeaderError(RebalancerError):
    """No coordinator leads, so the request would have no effect."""


@click.command()
@click.argument("group")
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def plan(group: str, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool) -> None:
    """Show which partitions a rebalance would move now.

    \b
    Example:
      zkrebalancer groups plan payments --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        foreseen = foresee(zk, report, report.settings, kafka)
    if as_json:
        click.echo(json.dumps({"group": group, **_document(foreseen)}))
    else:
        _print(foreseen)


@click.command()
@click.argument("group")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def explain(
    group: str, topic: str, partition: int, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool
) -> None:
    """Explain why a partition has its owner, or would move.

    \b
    Example:
      zkrebalancer groups explain payments orders 3 --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        why, notes = foresee_one(zk, report, (topic, partition), kafka)
    strategy = report.settings.strategy
    if as_json:
        asked = {"group": group, "topic": topic, "partition": partition, "strategy": strategy}
        click.echo(json.dumps({**asked, **asdict(why), "notes": notes}))
        return
    click.echo(f"owner of {topic}-{partition}: {why.holder or 'none'}")
    verdict = "keeps it there" if why.target == why.holder else f"would assign it to {why.target or 'no member'}"
    click.echo(f"{strategy} {verdict}: {why.reason}")
    if why.alternative is not None:
        terms = ", ".join(f"{term} {change:+.4f}" for term, change in why.changes.items())
        click.echo(f"with {why.alternative}, the best alternative, the cost would change by: {terms}")
    for note in notes:
        click.echo(f"note: {note}", err=True)


@click.command()
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


@click.command()
@click.argument("group")
@click.argument("pairs", metavar="KEY=VALUE…", nargs=-1, required=True)
@dry_run_option
@yes_option
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def configure(
    group: str,
    pairs: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    kafka: Mapping[str, str] | None,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Change a group's settings, after showing the resulting plan.

    `KEY=` alone restores the default; `options.NAME=VALUE` sets an option of the strategy.

    \b
    Example:
      zkrebalancer groups configure payments strategy=balanced options.move_cost=0.2 \\
          --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    apply_settings(
        zookeeper, group, lambda _before: pairs, "configured", dry_run=dry_run, yes=yes, kafka=kafka, as_json=as_json
    )


@click.command()
@click.argument("group")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def freeze(group: str, zookeeper: str, as_json: bool) -> None:
    """Keep each owned partition with its owner until `unfreeze`.

    Partitions without an owner are still assigned. The same as `groups configure GROUP frozen=true --yes`.

    \b
    Example:
      zkrebalancer groups freeze payments --zookeeper localhost:2181/kafka
    """
    pairs = ("frozen=true",)
    apply_settings(
        zookeeper, group, lambda _before: pairs, "frozen", dry_run=False, yes=True, kafka=None, as_json=as_json
    )


@click.command()
@click.argument("group")
@dry_run_option
@yes_option
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def unfreeze(
    group: str, dry_run: bool, yes: bool, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool
) -> None:
    """Let partitions move again, after showing which would.

    The same as `groups configure GROUP frozen=false`.

    \b
    Example:
      zkrebalancer groups unfreeze payments --dry-run --zookeeper localhost:2181/kafka
    """
    pairs = ("frozen=false",)
    apply_settings(
        zookeeper, group, lambda _before: pairs, "not frozen", dry_run=dry_run, yes=yes, kafka=kafka, as_json=as_json
    )


def apply_settings(
    zookeeper: str,
    group: str,
    pairs: Callable[[GroupSettings], Sequence[str]],
    result: str,
    *,
    dry_run: bool,
    yes: bool,
    kafka: Mapping[str, str] | None,
    as_json: bool,
) -> None:
    """Change settings after showing the plan, and log who did.

    `pairs`: the changes (`KEY=VALUE`), by the settings before; `result`: what the group is afterwards, for people.
    """
    with BlockingZk(zookeeper) as zk:
        before, node = operation.read_settings(zk, group)
        after = operation.changed(before, pairs(before))
        foreseen = foresee(zk, inspection.read_group(zk, group), after, kafka)
        changes = _changes(before, after)
        if not as_json:
            _print_changes(changes)
            _print(foreseen)
            if changes and sys.stdin.isatty() and not (yes or dry_run):
                dry_run = not click.confirm("Apply?")
        if not dry_run and changes:
            operation.write_settings(zk, group, node, after)
            audit.record(f"changed {', '.join(changes)} of group {group}")
    if as_json:
        document = {"group": group, "applied": not dry_run, "changes": changes, "settings": asdict(after)}
        click.echo(json.dumps({**document, "plan": _document(foreseen)}))
    elif dry_run:
        click.echo("no setting was changed")
    else:
        click.echo(f"{group} is {result}" if changes else f"{group} already has these settings")


def _changes(before: GroupSettings, after: GroupSettings) -> dict[str, dict[str, object]]:
    old, new = asdict(before), asdict(after)
    return {key: {"before": old[key], "after": new[key]} for key in new if old[key] != new[key]}


def _document(foreseen: Foreseen) -> dict[str, object]:
    moves = [
        {"topic": topic, "partition": partition, "from": giver, "to": taker}
        for (topic, partition), giver, taker in foreseen.moves
    ]
    return {**asdict(foreseen), "moves": moves}


def _print_changes(changes: Mapping[str, Mapping[str, object]]) -> None:
    table = Table("setting", "before", "after")
    for key, change in changes.items():
        table.add_row(key, *(json.dumps(value) for value in change.values()))
    console().print(table)


def _print(foreseen: Foreseen) -> None:
    to = console()
    if foreseen.moves:
        moves = Table("topic", "partition", "from", "to")
        for (topic, partition), giver, taker in foreseen.moves[:MAX_MOVES_SHOWN]:
            moves.add_row(topic, str(partition), giver or "-", taker or "-")
        to.print(moves)
        if len(foreseen.moves) > MAX_MOVES_SHOWN:
            to.print(f"and {len(foreseen.moves) - MAX_MOVES_SHOWN} more; --json lists all")
        shares = Table("member", "partitions now", "after")
        for name, count in foreseen.before.items():
            shares.add_row(name, str(count), str(foreseen.after[name]))
        to.print(shares)
    to.print(f"{len(foreseen.moves)} partitions would move, {foreseen.unassigned} would have no owner")
    for note in foreseen.notes:
        click.echo(f"note: {note}", err=True)
