"""`zkrebalancer groups reset-offsets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.groups.changes import Asked, yes_option
from zkrebalancer.cli.groups.regions import note_states
from zkrebalancer.cli.tables import console
from zkrebalancer.operations import audit, kafka_offsets
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import refuse_outside_log
from zkrebalancer.operations.reset_offsets import Change, reset_offsets
from zkrebalancer.protocol import fields
from zkrebalancer.runtime.zk import BlockingZk

FIRST_KAFKA_YEAR = 1970  # its times are milliseconds since then


@click.command("reset-offsets")
@click.argument("group")
@click.option("--to-earliest", "target", flag_value="earliest", help="To the first record that Kafka still has.")
@click.option("--to-latest", "target", flag_value="latest", help="To the end of each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset, in every partition.")
@click.option(
    "--to-datetime",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]),
    callback=lambda _context, _option, moment: _kafka_time(moment),
    help="To the first record at or after this time; UTC unless it has an offset.",
)
@options.kafka_options("Kafka brokers; required unless --to-offset is given. Also resets the offsets stored in Kafka.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def reset(
    group: str,
    target: str | None,
    to_offset: int | None,
    to_datetime: datetime | None,
    kafka: Mapping[str, str] | None,
    dry_run: bool,
    yes: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Reset the stored offsets of a group that has no members.

    \b
    Example:
      zkrebalancer groups reset-offsets payments --to-earliest --dry-run \\
          --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    if sum(choice is not None for choice in (target, to_offset, to_datetime)) != 1:
        raise click.UsageError("give exactly one of --to-earliest, --to-latest, --to-offset and --to-datetime")
    if to_offset is None and kafka is None:
        raise click.UsageError("--bootstrap is required, because Kafka knows these offsets")

    def new_offsets(partitions: list[fields.TopicPartition]) -> Mapping[fields.TopicPartition, int]:
        if to_offset is not None or kafka is None:
            wanted = dict.fromkeys(partitions, to_offset or 0)
            refuse_outside_log(kafka, wanted)
            return wanted
        if to_datetime is not None:
            return kafka_offsets.offsets_at(kafka, partitions, to_datetime)
        ends = kafka_offsets.log_ends(kafka, partitions)
        return {partition: low if target == "earliest" else high for partition, (low, high) in ends.items()}

    asked = Asked(dry_run, yes, kafka, as_json)
    with BlockingZk(zookeeper) as zk:
        note_states(zk, group)
        in_kafka = StoredInKafka(kafka, group) if kafka is not None else None
        if asked.asks and not _is_confirmed(reset_offsets(zk, group, new_offsets, dry_run=True, kafka=in_kafka), asked):
            click.echo("nothing was reset")
            return
        changes = reset_offsets(zk, group, new_offsets, dry_run, in_kafka)
    if changes and not dry_run:
        audit.record(f"reset {len(changes)} offsets of group {group}")
    if not changes:
        where = " in ZooKeeper (use --bootstrap to include those in Kafka)" if kafka is None else ""
        click.echo(f"group {group} has no stored offsets{where}", err=True)
    if as_json:
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "before": change.in_zookeeper,
                "before_in_kafka": change.in_kafka,
                "after": change.after,
            }
            for (topic, partition), change in changes.items()
        ]
        click.echo(json.dumps({"group": group, "dry_run": dry_run, "offsets": rows}))
    else:
        console().print(_table(changes, dry_run=dry_run))


def _is_confirmed(foreseen: Mapping[fields.TopicPartition, Change], asked: Asked) -> bool:
    console().print(_table(foreseen, dry_run=True))
    return not foreseen or asked.is_confirmed(f"Reset {len(foreseen)} offsets?")


def _table(changes: Mapping[fields.TopicPartition, Change], *, dry_run: bool) -> Table:
    table = Table("topic", "partition", "in ZooKeeper", "in Kafka", "would be" if dry_run else "now")
    for (topic, partition), change in changes.items():
        shown = (partition, change.in_zookeeper, change.in_kafka, change.after)
        table.add_row(topic, *("-" if value is None else str(value) for value in shown))
    return table


def _kafka_time(moment: datetime | None) -> datetime | None:
    """Return a time with its zone: UTC, as in all that commands show, and not that of the host where one runs."""
    if moment is None:
        return None
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if known < datetime(FIRST_KAFKA_YEAR, 1, 1, tzinfo=UTC):
        raise click.BadParameter(f"Kafka has no times before {FIRST_KAFKA_YEAR}")
    return known
