"""`zkrebalancer groups plan`, `explain`, `rebalance` and `configure`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import click

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.groups.changes import (
    Asked,
    apply_settings,
    change_options,
    foreseen_document,
    kafka_options,
    show_foreseen,
)
from zkrebalancer.cli.plain import plain
from zkrebalancer.observe import inspection
from zkrebalancer.operations import configure as operation
from zkrebalancer.operations.foresight import foresee, foresee_one
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


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
        click.echo(json.dumps({"group": group, **foreseen_document(foreseen)}))
    else:
        show_foreseen(foreseen)


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
        click.echo(f"note: {plain(note)}", err=True)


@click.command()
@click.argument("group")
@change_options
def rebalance(group: str, asked: Asked, zookeeper: str) -> None:
    """Ask the coordinator to check a group again, after showing what would move.

    Nothing happens if no partition has to move.

    \b
    Example:
      zkrebalancer groups rebalance payments --dry-run --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        leader = inspection.read_leader(zk, group)
        if leader is None:
            raise NoLeaderError(f"group {group}: no coordinator leads, so nothing would be rebalanced; start one")
        foreseen = foresee(zk, report, report.settings, asked.kafka)
        if not asked.as_json:
            with questions.shown_first(dry_run=asked.dry_run):
                show_foreseen(foreseen)
        is_requested = asked.is_confirmed("Ask for it?")
        if is_requested:
            _settings, node = operation.read_settings(zk, group)
            # Rewriting the settings unchanged is the request: every leader watches them anyway.
            operation.rewrite(zk, group, node, node.content, "requested a check")
    if asked.as_json:
        known = {"generation": report.generation, "plan": foreseen_document(foreseen)}
        click.echo(json.dumps({"group": group, "requested": is_requested, **known}))
    elif is_requested:
        who = f"coordinator {leader.brokerid}" if leader.is_known else "a coordinator of another release"
        click.echo(f"asked {who} to check {group}, now at generation {report.generation}")
    else:
        click.echo("nothing was requested")


@click.command()
@click.argument("group")
@click.argument("pairs", metavar="KEY=VALUE…", nargs=-1, required=True)
@change_options
def configure(
    group: str,
    pairs: tuple[str, ...],
    asked: Asked,
    zookeeper: str,
) -> None:
    """Change a group's settings, after showing the resulting plan.

    `KEY=` alone restores the default; `options.NAME=VALUE` sets an option of the strategy.

    \b
    Example:
      zkrebalancer groups configure payments strategy=balanced options.move_cost=0.2 \\
          --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    apply_settings(
        zookeeper,
        group,
        lambda report: operation.changed(report.settings, pairs),
        "configured",
        asked,
    )
