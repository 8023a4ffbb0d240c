"""`zkrebalancer groups drain` and `undrain`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click

from zkrebalancer.assignment.balanced.options import OptionError
from zkrebalancer.cli import questions
from zkrebalancer.cli.groups.changes import (
    Asked,
    Change,
    apply_settings,
    change_options,
    prepare,
    write,
)
from zkrebalancer.cli.plain import plain
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport, UnknownGroupError
from zkrebalancer.operations import drain as operation
from zkrebalancer.operations.configure import Altered, SettingsChangedError
from zkrebalancer.operations.evict import first_names
from zkrebalancer.protocol.errors import (
    ConfigurationError,
    NodeContentError,
    RebalancerError,
    RequestTooLargeError,
    UnknownStrategyError,
    ZooKeeperRefusedError,
)
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

_OF_ONE_GROUP = (  # also settings that coordinators cannot plan with: a strategy, or an option, of a newer release
    NodeContentError,
    ConfigurationError,
    UnknownStrategyError,
    OptionError,
    ZooKeeperRefusedError,
    RequestTooLargeError,
    SettingsChangedError,
)


class LeftOutError(RebalancerError):
    """A group could not be changed; the others were."""


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
        altered: Altered = _with_a_note(host) if host is not None else operation.draining(members)
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


def _with_a_note(host: str) -> Altered:
    """Drain a host in one group; say so if no member is there, perhaps because of a wrong name: some may join later."""

    def altered(report: GroupReport) -> GroupSettings:
        known = operation.hosts(report)
        if host not in known:
            where = first_names(name or "a host that cannot be read" for name in known)
            text = f"group {report.name} has no member on {host:.80} now; members are on {where}"
            click.echo(f"note: {plain(text)}", err=True)
        return operation.draining_host(host)(report)

    return altered


def _in_every_group(zookeeper: str, host: str, altered: Altered, asked: Asked, *, is_drain: bool) -> None:
    """Change every group that has members on the host, or that drains it.

    Groups are written one after the other. One that cannot be read or written keeps no other from being changed; the
    command then ends with an error, and can be repeated.
    """
    written: list[str] = []
    with BlockingZk(zookeeper) as zk:
        found, refused = operation.groups_of_host(zk, host, is_drain=is_drain)
        failures = [str(error) for error in refused]  # each has the node's path
        topics = inspection.read_topics(zk)  # once: there may be thousands, and as many groups
        every: list[Change] = []
        for name in found:
            with _noted(failures, name):
                every.append(prepare(zk, name, altered, asked.kafka, topics))
        every = [change for change in every if change.changes]
        if not asked.as_json:
            with questions.shown_first(dry_run=asked.dry_run):
                _show(every)
        is_applied = not asked.dry_run and (not every or asked.is_confirmed(f"Apply to {len(every)} groups?"))
        for change in every if is_applied else ():
            with _noted(failures, change.group):
                write(zk, change)
                written.append(change.group)
    if asked.as_json:
        changed = [change.document(applied=change.group in written) for change in every]
        click.echo(json.dumps({"host": host, "groups": changed}))
    elif not is_applied:
        click.echo("no setting was changed")
    else:
        verb = "drained in" if is_drain else "no longer drained in"
        click.echo(f"{host} is {verb} {', '.join(written) or 'no further group'}")
    if failures:
        raise LeftOutError(f"left out: {'; '.join(failures)}")


@contextmanager
def _noted(failures: list[str], group: str) -> Iterator[None]:
    """Note why a group cannot be changed; one that was deleted or undrained meanwhile needs no change."""
    try:
        yield
    except (UnknownGroupError, operation.NotDrainedError):
        return
    except _OF_ONE_GROUP as error:
        failures.append(f"group {group} ({error})")


def _show(changes: list[Change]) -> None:
    for change in changes:
        click.echo(f"group {change.group}:")
        change.show()
