"""`zkrebalancer groups offsets`: operations on a group's stored offsets."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.tables import console
from zkrebalancer.operations.restore_offsets import restore_offsets
from zkrebalancer.runtime.zk import BlockingZk


@click.group("offsets")
def group_offsets() -> None:
    """Restore stored offsets that were deleted.

    \b
    Example:
      zkrebalancer groups offsets restore payments --dry-run --zookeeper localhost:2181/kafka
    """


@group_offsets.command()
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; repeatable. Default: all.")
@click.option(
    "--copy", "copies", multiple=True, metavar="COPY", help="Only this copy; repeatable. Default: the last deletion."
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def restore(
    group: str,
    topics: tuple[str, ...],
    copies: tuple[str, ...],
    dry_run: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Restore offsets that the coordinator deleted with their topic.

    When a topic is deleted or recreated, all groups lose its stored offsets. The coordinator keeps the last 200 copies.
    The group must have no members.

    \b
    Example:
      zkrebalancer groups offsets restore payments --topic orders --dry-run --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        changes = restore_offsets(zk, group, topics, copies, dry_run)
    if as_json:
        rows = [{"topic": topic, "partition": number, **asdict(row)} for (topic, number), row in changes.items()]
        click.echo(json.dumps({"group": group, "dry_run": dry_run, "offsets": rows}))
        return
    table = Table("copy", "deleted at", "topic", "partition", "stored", "would be" if dry_run else "now")
    for (topic, number), row in changes.items():
        deleted_at = datetime.fromtimestamp(row.deleted_at_ms / 1_000, UTC).isoformat(timespec="seconds")
        before = "-" if row.before is None else str(row.before)
        table.add_row(row.copy, deleted_at, topic, str(number), before, str(row.after))
    console().print(table)
