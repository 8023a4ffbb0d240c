"""`zkrebalancer groups freeze` and `unfreeze`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from zkrebalancer.cli import options
from zkrebalancer.cli.groups.changes import Asked, apply_settings, dry_run_option, kafka_options, yes_option


@click.command()
@click.argument("group")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def freeze(group: str, zookeeper: str, as_json: bool) -> None:
    """Keep each owned partition with its owner until `unfreeze`.

    Partitions without an owner are still assigned. The same as `groups configure GROUP frozen=true --yes`.

    \b
    Example:
      zkrebalancer groups freeze payments --zookeeper localhost:2181/kafka
    """
    pairs = ("frozen=true",)
    apply_settings(
        zookeeper, group, lambda _report: pairs, "frozen", Asked(dry_run=False, yes=True, kafka=None, as_json=as_json)
    )


@click.command()
@click.argument("group")
@dry_run_option
@yes_option
@kafka_options
@options.zookeeper_option
@options.json_option
@options.log_level_option
def unfreeze(
    group: str, dry_run: bool, yes: bool, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool
) -> None:
    """Let partitions move again, after showing which would.

    The same as `groups configure GROUP frozen=false`.

    \b
    Example:
      zkrebalancer groups unfreeze payments --dry-run --zookeeper localhost:2181/kafka
    """
    pairs = ("frozen=false",)
    apply_settings(zookeeper, group, lambda _report: pairs, "not frozen", Asked(dry_run, yes, kafka, as_json))
