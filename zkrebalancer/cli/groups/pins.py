"""`zkrebalancer groups pin` and `unpin`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.cli.groups.changes import Asked, apply_settings, change_options
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.configure import changed
from zkrebalancer.protocol.settings import GroupSettings

partitions_argument = click.argument(
    "partitions", metavar="PARTITION…", nargs=-1, required=True, type=click.IntRange(0)
)


@click.command()
@click.argument("group")
@click.argument("topic")
@partitions_argument
@change_options
def pin(
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    asked: Asked,
    zookeeper: str,
) -> None:
    """Keep partitions with their owners while these live, until `unpin`.

    The strategy must be `balanced`. The same as adding to `options.pinned` with `groups configure`.

    \b
    Example:
      zkrebalancer groups pin payments orders 0 3 --zookeeper localhost:2181/kafka
    """

    def altered(report: GroupReport) -> GroupSettings:
        pinned = read_options(report.settings.options).pinned
        return _pinned(report, {**pinned, topic: pinned.get(topic, frozenset()) | set(partitions)})

    apply_settings(zookeeper, group, altered, "pinned", asked)


@click.command()
@click.argument("group")
@click.argument("topic")
@partitions_argument
@change_options
def unpin(
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    asked: Asked,
    zookeeper: str,
) -> None:
    """Let pinned partitions move again, after showing which would.

    \b
    Example:
      zkrebalancer groups unpin payments orders 3 --dry-run --zookeeper localhost:2181/kafka
    """

    def altered(report: GroupReport) -> GroupSettings:
        pinned = read_options(report.settings.options).pinned
        return _pinned(report, {**pinned, topic: pinned.get(topic, frozenset()) - set(partitions)})

    apply_settings(zookeeper, group, altered, "unpinned", asked)


def _pinned(report: GroupReport, pinned: Mapping[str, frozenset[int]]) -> GroupSettings:
    left = {topic: sorted(partitions) for topic, partitions in pinned.items() if partitions}
    return changed(report.settings, (f"options.pinned={json.dumps(left)}" if left else "options.pinned=",))
