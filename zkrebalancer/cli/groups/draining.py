"""`zkrebalancer groups drain` and `undrain`."""

from __future__ import annotations

import json

import click

from zkrebalancer.cli.groups.changes import (
    Asked,
    Change,
    apply_settings,
    change_options,
    prepare,
    write,
)
from zkrebalancer.operations import drain as operation
from zkrebalancer.operations.configure import Altered
from zkrebalancer.runtime.zk import BlockingZk


@click.command()
@click.argument("group", required=False)
@click.argument("members", metavar="[MEMBER…]", nargs=-1)
@click.option("--host", help="All members of this host, also those that join later; without GROUP, in every group.")
@change_options
def drain(
    group: str | None,
    members: tuple[str, ...],
    host: str | None,
    asked: Asked,
    zookeeper: str,
) -> None:
    """Move the partitions of members to others, and assign them nothing, until `undrain`.

    MEMBER is a name or an instance id; a name ends with its process, an instance id and a host do not. A topic keeps
    its last reader: a drained member keeps it as long as no other member reads it.

    \b
    Example:
      zkrebalancer groups drain payments worker-3-5f2c --dry-run --zookeeper localhost:2181/kafka
      zkrebalancer groups drain --host b1 --zookeeper localhost:2181/kafka
    """
    if bool(members) == (host is not None) or (members and group is None):
        raise click.UsageError("give GROUP and MEMBER, or --host")
    if group is not None:
        altered: Altered = operation.draining_host(host) if host is not None else operation.draining(members)
        apply_settings(zookeeper, group, altered, "draining these members", asked)
    elif host is not None:
        _in_every_group(zookeeper, host, operation.draining_host(host), asked, is_drain=True)


@click.command()
@click.argument("group", required=False)
@click.argument("members", metavar="[MEMBER…]", nargs=-1)
@click.option("--host", help="The members of this host; without GROUP, in every group.")
@change_options
def undrain(
    group: str | None,
    members: tuple[str, ...],
    host: str | None,
    asked: Asked,
    zookeeper: str,
) -> None:
    """Let drained members get partitions again, after showing which.

    With GROUP alone, all of its members.

    \b
    Example:
      zkrebalancer groups undrain --host b1 --dry-run --zookeeper localhost:2181/kafka
      zkrebalancer groups undrain payments --zookeeper localhost:2181/kafka
    """
    if (members and host is not None) or (group is None and host is None):
        raise click.UsageError("give GROUP, GROUP and MEMBER, or --host")
    if group is not None:
        altered: Altered = operation.undraining_host(host) if host is not None else operation.undraining(members)
        apply_settings(zookeeper, group, altered, "no longer draining these members", asked)
    elif host is not None:
        _in_every_group(zookeeper, host, operation.undraining_host(host), asked, is_drain=False)


def _in_every_group(zookeeper: str, host: str, altered: Altered, asked: Asked, *, is_drain: bool) -> None:
    """Change every group that has members on the host, or that drains it.

    Groups are written one after the other. If one cannot be, those before it stay changed; the command can be repeated.
    """
    with BlockingZk(zookeeper) as zk:
        found = operation.groups_of_host(zk, host, is_drain=is_drain)
        every = [change for name in found if (change := prepare(zk, name, altered, asked.kafka)).changes]
        if not asked.as_json:
            _show(every)
        is_applied = not asked.dry_run and (not every or asked.is_confirmed(f"Apply to {len(every)} groups?"))
        for change in every if is_applied else ():
            write(zk, change)
    if asked.as_json:
        click.echo(json.dumps({"host": host, "groups": [change.document(applied=is_applied) for change in every]}))
    elif not is_applied:
        click.echo("no setting was changed")
    else:
        verb = "drained in" if is_drain else "no longer drained in"
        click.echo(f"{host} is {verb} {', '.join(change.group for change in every) or 'no further group'}")


def _show(changes: list[Change]) -> None:
    for change in changes:
        click.echo(f"group {change.group}:")
        change.show()
