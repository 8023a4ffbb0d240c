"""`zkrebalancer groups create` and `delete`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.groups.changes import required_yes_option
from zkrebalancer.operations import audit
from zkrebalancer.operations import configure as operation
from zkrebalancer.operations.group_lifecycle import create_group, delete_group, read_nodes
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk


@click.command()
@click.argument("group")
@click.argument("pairs", metavar="[KEY=VALUE…]", nargs=-1)
@options.zookeeper_option
@options.json_option
@options.log_level_option
def create(group: str, pairs: tuple[str, ...], zookeeper: str, as_json: bool) -> None:
    """Create a group before its first consumer, with settings.

    The settings are those of `groups configure`.

    \b
    Example:
      zkrebalancer groups create payments strategy=balanced --zookeeper localhost:2181/kafka
    """
    wanted = operation.changed(GroupSettings(), pairs)
    with BlockingZk(zookeeper) as zk:
        create_group(zk, group, wanted if pairs else None)
        audit.record(f"created group {group}")
    if as_json:
        click.echo(json.dumps({"group": group, "created": True, "settings": asdict(wanted)}))
    else:
        click.echo(f"{group} is created")


@click.command()
@click.argument("group")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@required_yes_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def delete(group: str, dry_run: bool, yes: bool, zookeeper: str, as_json: bool) -> None:
    """Delete a group that has no consumers, for good.

    Its settings, its offsets in ZooKeeper and their copies are deleted: `groups offsets restore` cannot bring them
    back. Offsets in Kafka stay. In a secured tree, only coordinators may delete a group.

    \b
    Example:
      zkrebalancer groups delete payments --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        nodes = read_nodes(zk, group)
        if not (yes or dry_run or questions.can_ask(as_json=as_json)):
            raise click.UsageError("a deleted group cannot be restored; confirm with --yes, or try --dry-run")
        if not as_json:
            lost = f"{len(nodes.offsets)} stored offsets, which `groups offsets restore` cannot bring back"
            with questions.shown_first(dry_run=dry_run):
                click.echo(f"group {group}: {len(nodes.every)} nodes, among them {lost}")
        if not (yes or dry_run):
            dry_run = not questions.is_confirmed("Delete?")
        if not dry_run:
            delete_group(zk, group, nodes)
            audit.record(f"deleted group {group} with {len(nodes.offsets)} stored offsets")
    if as_json:
        counts = {"nodes": len(nodes.every), "offsets": len(nodes.offsets)}
        click.echo(json.dumps({"group": group, "deleted": not dry_run, **counts}))
    else:
        click.echo("nothing was deleted" if dry_run else f"{group} is deleted")
