"""`zkrebalancer groups`: see and operate consumer groups."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.calls import Content, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


class NoLeaderError(RebalancerError):
    """Nobody would carry out what was asked for."""


@click.group()
def groups() -> None:
    """See and operate consumer groups.

    \b
    Example:
      zkrebalancer groups describe payments --zookeeper localhost:2181/kafka
    """


@groups.command("list")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def list_groups(zookeeper: str, as_json: bool) -> None:
    """List all groups, and who leads.

    \b
    Example:
      zkrebalancer groups list --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        leader = inspection.read_leader(zk)
        reports = [inspection.read_group(zk, name) for name in inspection.read_group_names(zk)]
    if as_json:
        document = {"coordinator": asdict(leader) if leader else None, "groups": [_summary(r) for r in reports]}
        click.echo(json.dumps(document))
        return
    click.echo(
        f"coordinator: broker {leader.brokerid} on {leader.host}, epoch {leader.epoch}"
        if leader
        else "coordinator: none leads, so no group is rebalanced"
    )
    table = Table("group", "state", "members", "partitions owned", "generation", "mode", "strategy")
    for report in reports:
        table.add_row(*(str(value) for value in list(_summary(report).values())[:7]))
    _print(table)


@groups.command()
@click.argument("group")
@click.option("--members", is_flag=True, help="One line per consumer.")
@click.option("--offsets", is_flag=True, help="With the stored offset of each partition.")
@click.option("--state", is_flag=True, help="Only the state, the settings and what is wrong.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def describe(group: str, members: bool, offsets: bool, state: bool, zookeeper: str, as_json: bool) -> None:
    """Show one group: who owns which partition, or with options its members, offsets or state.

    \b
    Example:
      zkrebalancer groups describe payments --members --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        if offsets:
            inspection.read_offsets(zk, report)
    if as_json:
        click.echo(json.dumps(_document(report)))
        return
    if state:
        _print(_state_table(report))
    elif members:
        _print(_members_table(report))
    else:
        _print(_partitions_table(report, offsets))
    for problem in report.problems:
        click.echo(f"problem: {problem}", err=True)


@groups.command()
@click.argument("group")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def rebalance(group: str, zookeeper: str, as_json: bool) -> None:
    """Ask the coordinator to look at a group again; it sends nothing if nothing has to move.

    \b
    Example:
      zkrebalancer groups rebalance payments --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        report = inspection.read_group(zk, group)
        leader = inspection.read_leader(zk)
        if leader is None:
            raise NoLeaderError(f"group {group}: no coordinator leads, so nobody would rebalance it; start one")
        node = zk.perform(Get(paths.group(group)))
        if not isinstance(node, Content):
            raise inspection.UnknownGroupError(f"group {group} was deleted")
        # Writing the settings without a change is how an operator asks: every leader watches them already.
        written = zk.perform(Multi((SetContent(paths.group(group), node.content, node.stat.version),)))
    if not isinstance(written, Done):
        raise RebalancerError(f"group {group}: its settings changed at this moment; ask again")
    if as_json:
        click.echo(json.dumps({"group": group, "requested": True, "generation": report.generation}))
    else:
        click.echo(f"asked broker {leader.brokerid} to rebalance {group}, now at generation {report.generation}")


def _summary(report: GroupReport) -> dict[str, object]:
    return {
        "group": report.name,
        "state": report.state,
        "members": len(report.members),
        "partitions_owned": len(report.owned()),
        "generation": report.generation,
        "mode": report.settings.mode,
        "strategy": report.settings.strategy,
        "problems": report.problems,
    }


def _document(report: GroupReport) -> dict[str, object]:
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
        ],
    }


def _state_table(report: GroupReport) -> Table:
    table = Table("what", "value")
    shown = {**_summary(report), **asdict(report.settings), "evicted": ", ".join(report.evicted) or "-"}
    for key, value in shown.items():
        if key != "problems":
            table.add_row(key, str(value))
    return table


def _members_table(report: GroupReport) -> Table:
    table = Table("consumer", "host", "instance id", "subscription", "partitions", "pending", "generation")
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
        )
    return table


def _partitions_table(report: GroupReport, with_offsets: bool) -> Table:
    table = Table("topic", "partition", "consumer thread", *(["offset"] if with_offsets else []))
    owned = report.owned()
    for topic, partition in sorted(owned.keys() | report.offsets.keys()):
        row = [topic, str(partition), owned.get((topic, partition), "-")]
        if with_offsets:
            row.append(str(report.offsets.get((topic, partition), "-")))
        table.add_row(*row)
    return table


def _ranges(partitions: frozenset[fields.TopicPartition]) -> str:
    return "; ".join(
        f"{topic} " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for topic, ranges in fields.topics_to_ranges(partitions).items()
    )


def _print(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(table)
