"""`zkrebalancer groups pin` and `unpin`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.cli import options
from zkrebalancer.cli.groups.changes import Asked, apply_settings, dry_run_option, kafka_options, yes_option
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
@dry_run_option
@yes_option
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def pin(
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    kafka: Mapping[str, str] | None,
    zookeeper: str,
    as_json: bool,
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

    apply_settings(zookeeper, group, altered, "pinned", Asked(dry_run, yes, kafka, as_json))


@click.command()
@click.argument("group")
@click.argument("topic")
@partitions_argument
@dry_run_option
@yes_option
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def unpin(
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    kafka: Mapping[str, str] | None,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Let pinned partitions move again, after showing which would.

    \b
    Example:
      zkrebalancer groups unpin payments orders 3 --dry-run --zookeeper localhost:2181/kafka
    """

    def altered(report: GroupReport) -> GroupSettings:
        pinned = read_options(report.settings.options).pinned
        return _pinned(report, {**pinned, topic: pinned.get(topic, frozenset()) - set(partitions)})

    apply_settings(zookeeper, group, altered, "unpinned", Asked(dry_run, yes, kafka, as_json))


def _pinned(report: GroupReport, pinned: Mapping[str, frozenset[int]]) -> GroupSettings:
    left = {topic: sorted(partitions) for topic, partitions in pinned.items() if partitions}
    return changed(report.settings, (f"options.pinned={json.dumps(left)}" if left else "options.pinned=",))
