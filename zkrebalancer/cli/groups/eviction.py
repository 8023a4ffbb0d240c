"""`zkrebalancer groups evict`."""

from __future__ import annotations

import json

import click

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.groups.changes import required_yes_option
from zkrebalancer.observe import inspection
from zkrebalancer.operations import evict as operation
from zkrebalancer.protocol import fields
from zkrebalancer.runtime.zk import BlockingZk


@click.command()
@click.argument("group")
@click.argument("consumer")
@click.option("--dry-run", is_flag=True, help="Only show what the consumer owns.")
@required_yes_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def evict(group: str, consumer: str, dry_run: bool, yes: bool, zookeeper: str, as_json: bool) -> None:
    """End the membership of a consumer, for example of one that hangs.

    Its partitions go to others once its lease is over; records that it has not committed are read again. If its agent
    still runs, it joins again as a new consumer: to keep it away, stop it. In a secured tree, log in as an operator or
    a coordinator.

    \b
    Example:
      zkrebalancer groups evict payments worker-3-5f2c --dry-run --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        member = operation.read_consumer(zk, group, consumer)
        if not (yes or dry_run or questions.can_ask(as_json=as_json)):
            raise click.UsageError("uncommitted records would be read again; confirm with --yes, or try --dry-run")
        has_leader = inspection.read_leader(zk, group) is not None
        owned = member.owners.partitions if member.owners else {}
        lease_ms = member.registration.lease_ms if member.registration else None
        if not as_json:
            lease = "an unknown time" if lease_ms is None else f"at most {lease_ms / 1_000:g} s"
            with questions.shown_first(dry_run=dry_run):
                click.echo(f"{consumer} has {len(owned)} partitions; its lease lasts {lease}")
        if not has_leader:
            click.echo("note: no coordinator leads; the consumer stays until one does", err=True)
        if not (yes or dry_run):
            dry_run = not questions.is_confirmed("Evict?")
        if not dry_run:
            operation.evict(zk, group, consumer)
    if as_json:
        known = {
            "partitions": fields.topics_to_ranges(frozenset(owned)),
            "lease_ms": lease_ms,
            "has_leader": has_leader,
        }
        click.echo(json.dumps({"group": group, "consumer": consumer, "evicted": not dry_run, **known}))
    else:
        click.echo("no consumer was evicted" if dry_run else f"{consumer} is evicted")
