"""`zkrebalancer shards`: how many shards of groups there are, and who leads them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Table

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.groups import leading
from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.tables import console
from zkrebalancer.observe import inspection
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.errors import NewerVersionError, NodeContentError
from zkrebalancer.protocol.shards import MAX_SHARDS
from zkrebalancer.runtime.zk import BlockingZk


@click.group()
def shards() -> None:
    """Show and change the shards of groups; the coordinators share them.

    \b
    Example:
      zkrebalancer shards show --zookeeper localhost:2181/kafka
    """


@shards.command()
@click.argument("group", required=False)
@options.zookeeper_option
@options.json_option
@options.log_level_option
def show(group: str | None, zookeeper: str, as_json: bool) -> None:
    """Show who leads each shard, or only the shard of a group.

    \b
    Example:
      zkrebalancer shards show --zookeeper localhost:2181/kafka
      zkrebalancer shards show payments --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        known = [shard for shard in inspection.read_shards(zk) if group is None or shard.has(group)]
        leaders = inspection.read_leaders(zk, known)
        hosts = inspection.read_shard_hosts(zk)
    if as_json:
        found = [
            {"shard": shard.number, "coordinator": leading.address(leader)}
            for shard, leader in zip(known, leaders, strict=True)
        ]
        click.echo(json.dumps({"count": known[0].count, "shards": found, "hosts": [asdict(host) for host in hosts]}))
        return
    table = Table("shard", "leader", "host", "epoch", title=f"shards: {known[0].count}", title_justify="left")
    for shard, leader in zip(known, leaders, strict=True):
        table.add_row(str(shard.number), *_cells(leader))
    console().print(table)
    for host in hosts:
        click.echo(plain(f"broker {host.brokerid} on {host.host} can lead shards, capacity {host.capacity}"))


def _cells(leader: CoordinatorAddress | None) -> tuple[str, str, str]:
    if leader is None:
        return ("none", "", "")
    return (f"broker {leader.brokerid}", leader.host, str(leader.epoch)) if leader.is_known else (leader.name, "", "")


@shards.command("set")
@click.argument("count", type=click.IntRange(1, MAX_SHARDS))
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def set_count(count: int, yes: bool, zookeeper: str, as_json: bool) -> None:
    """Change the number of shards, also while coordinators run: new leaders read all groups, and move nothing.

    All coordinators must know shards: those of a former release cannot lead while there are several. In a secured
    tree, log in as a coordinator.

    \b
    Example:
      zkrebalancer shards set 8 --yes --zookeeper localhost:2181/kafka
    """
    if not (yes or questions.can_ask(as_json=as_json)):
        raise click.UsageError("all groups would get new leaders; confirm with --yes")
    with BlockingZk(zookeeper) as zk:
        if not (yes or questions.is_confirmed(f"{_now(zk)} by {count}? All groups get new leaders.")):
            raise click.Abort
        before = change_shards.change(zk, count)
    if as_json:
        click.echo(json.dumps({"before": before, "count": count}))
        return
    than_before = f" instead of {before}" if before is not None else "; the number before could not be read"
    click.echo(f"there are {count} shards" + (", as before" if before == count else than_before))


def _now(zk: BlockingZk) -> str:
    try:
        return f"Replace {len(inspection.read_shards(zk))} shards"
    except NewerVersionError:
        raise
    except NodeContentError:
        return "The number of shards cannot be read. Replace it"
