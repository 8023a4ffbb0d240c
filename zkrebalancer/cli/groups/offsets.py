"""`zkrebalancer groups offsets`: operations on a group's stored offsets."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from zkrebalancer.cli import options, questions
from zkrebalancer.cli.groups.regions import note_states
from zkrebalancer.cli.tables import console
from zkrebalancer.operations import audit, move_offsets, offset_file
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import Imported
from zkrebalancer.operations.offset_file import MAX_FILE_BYTES, OffsetFileError
from zkrebalancer.operations.restore_offsets import Restored, restore_offsets
from zkrebalancer.operations.starts_pause import refuse_consumers
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would change.")
replace_option = click.option(
    "--yes", is_flag=True, help="Do not ask before stored offsets are replaced; required without a terminal."
)


@click.group("offsets")
def group_offsets() -> None:
    """Export, import and restore stored offsets.

    \b
    Example:
      zkrebalancer groups offsets export payments --zookeeper localhost:2181/kafka
    """


@group_offsets.command()
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; repeatable. Default: all.")
@click.option(
    "--copy", "copies", multiple=True, metavar="COPY", help="Only this copy; repeatable. Default: the last deletion."
)
@dry_run_option
@replace_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def restore(
    group: str,
    topics: tuple[str, ...],
    copies: tuple[str, ...],
    dry_run: bool,
    yes: bool,
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
        note_states(zk, group)
        changes = restore_offsets(zk, group, topics, copies, dry_run=True)
        dry_run = dry_run or not (yes or _may_replace(changes, as_json=as_json))
        if not dry_run:
            changes = restore_offsets(zk, group, topics, copies, dry_run=False)
    if changes and not dry_run:
        audit.record(f"restored {len(changes)} offsets of group {group}")
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


ZOOKEEPER, KAFKA_STORE, OLD = "zookeeper", "kafka", "old-consumers"
SOURCES = click.Choice([ZOOKEEPER, KAFKA_STORE, OLD])


@group_offsets.command("export")
@click.argument("group")
@click.option("--from", "source", type=SOURCES, default=ZOOKEEPER, show_default=True, help="The store to read.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A new file; default: the output.")
@click.option("--yes", is_flag=True, help="Also replace the file, if there is one.")
@options.kafka_options("Kafka brokers; required with --from kafka.")
@options.zookeeper_option
@options.json_option
@options.log_level_option
def export_offsets(
    group: str, source: str, out: Path | None, yes: bool, kafka: Mapping[str, str] | None, zookeeper: str, as_json: bool
) -> None:
    """Write a group's stored offsets as CSV (topic, partition, offset), or with --json as JSON.

    `groups offsets import` reads both. The group may have members; then the offsets are those of this moment.

    \b
    Example:
      zkrebalancer groups offsets export payments --out payments.csv --zookeeper localhost:2181/kafka
    """
    offsets = _read(group, source, kafka, zookeeper)
    if out is not None and out.exists() and not yes:
        raise OffsetFileError(f"{out} exists already; replace it with --yes")
    text = offset_file.to_json(group, offsets) if as_json else offset_file.to_csv(offsets)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        _write_whole(out, text)
    except OSError as error:
        raise OffsetFileError(f"{out}: {error.strerror}") from None
    click.echo(f"{len(offsets)} offsets are in {out}", err=True)


def _write_whole(out: Path, text: str) -> None:
    """Write a file that is never there in part: a number cut short would be imported as another one."""
    if out.exists() and not out.is_file():
        out.write_text(text)  # a pipe
        return
    target = out.resolve()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        partial.write_text(text)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@group_offsets.command("import")
@click.argument("group")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--from", "source", type=SOURCES, help="Import from this store instead of a file.")
@click.option("--to", "target", type=SOURCES, default=ZOOKEEPER, show_default=True)
@options.kafka_options("Kafka brokers, to check the offsets; required with --from kafka and --to kafka.")
@dry_run_option
@replace_option
@options.zookeeper_option
@options.json_option
@options.log_level_option
def import_offsets(
    group: str,
    file: Path | None,
    source: str | None,
    target: str,
    kafka: Mapping[str, str] | None,
    dry_run: bool,
    yes: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Store offsets from a file, from Kafka or from Kafka's old consumers (`/consumers/GROUP/offsets`).

    They go to ZooKeeper, to Kafka, or back to the old consumers. The group must have no members; with offsets in
    ZooKeeper, it is created if there is none. Offsets of other partitions stay. An offset is the
    next one to read; with --bootstrap, one that Kafka does not have is refused.

    \b
    Example:
      zkrebalancer groups offsets import payments --from kafka --dry-run \\
          --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """
    if (file is None) == (source is None):
        raise click.UsageError("give either a file or --from")
    if source == target:
        raise click.UsageError(f"--from and --to name the same store: {target}")
    offsets = _read_file(file) if file is not None else _read_at_rest(group, str(source), kafka, zookeeper)
    if not offsets:
        raise OffsetFileError(f"there are no offsets of {group} in {file or source}")

    def store(dry_run: bool) -> dict[TopicPartition, Imported]:
        if target == KAFKA_STORE:
            in_kafka = _stored_in_kafka(kafka, group)
            with BlockingZk(zookeeper) as zk:
                return move_offsets.import_into_kafka(zk, in_kafka, group, offsets, dry_run)
        put = move_offsets.import_into_old_consumers if target == OLD else move_offsets.import_offsets
        with BlockingZk(zookeeper) as zk:
            return put(zk, group, offsets, dry_run)

    changes = store(dry_run=True)
    if target != OLD:  # those of the group itself stay
        with BlockingZk(zookeeper) as zk:
            note_states(zk, group)
    move_offsets.refuse_outside_log(kafka, offsets)
    dry_run = dry_run or not (yes or _may_replace(changes, as_json=as_json))
    if not dry_run:
        changes = store(dry_run=False)
        audit.record(f"imported {len(changes)} offsets of group {group} into {target}")
        if source == ZOOKEEPER:
            text = f"group {group} still has its offsets in ZooKeeper, which agents compare with Kafka's"
            click.echo(f"note: {text}; `zkrebalancer groups delete {group}` removes them", err=True)
    if as_json:
        rows = [{"topic": topic, "partition": number, **asdict(row)} for (topic, number), row in changes.items()]
        click.echo(json.dumps({"group": group, "to": target, "dry_run": dry_run, "offsets": rows}))
        return
    _print_imported(changes, dry_run)


def _print_imported(changes: Mapping[TopicPartition, Imported], dry_run: bool) -> None:
    table = Table("topic", "partition", "stored", "would be" if dry_run else "now")
    for (topic, number), row in changes.items():
        table.add_row(topic, str(number), "-" if row.before is None else str(row.before), str(row.after))
    console().print(table)


def _may_replace(changes: Mapping[TopicPartition, Imported | Restored], *, as_json: bool) -> bool:
    replaced = sum(change.before not in {None, change.after} for change in changes.values())
    if replaced and not questions.can_ask(as_json=as_json):
        raise click.UsageError(f"{replaced} stored offsets would be replaced; confirm with --yes, or try --dry-run")
    return not replaced or questions.is_confirmed(f"Replace {replaced} stored offsets?")


def _read_file(file: Path) -> dict[TopicPartition, int]:
    try:
        with file.open("rb") as stored:
            content = stored.read(MAX_FILE_BYTES + 1)  # a device, or a pipe, has no size
        if len(content) > MAX_FILE_BYTES:
            raise OffsetFileError(f"more than {MAX_FILE_BYTES:,} bytes")
        return offset_file.read(content.decode().replace("\r\n", "\n").replace("\r", "\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise OffsetFileError(f"{file}: {error}") from None
    except OffsetFileError as error:
        raise OffsetFileError(f"{file}: {error}") from None


def _read(group: str, source: str, kafka: Mapping[str, str] | None, zookeeper: str) -> dict[TopicPartition, int]:
    if source == KAFKA_STORE:
        return _stored_in_kafka(kafka, group).read()
    with BlockingZk(zookeeper) as zk:
        return move_offsets.in_zookeeper(zk, group) if source == ZOOKEEPER else move_offsets.of_old_consumers(zk, group)


def _read_at_rest(
    group: str, source: str, kafka: Mapping[str, str] | None, zookeeper: str
) -> dict[TopicPartition, int]:
    """Return offsets that no member still changes."""
    if source == KAFKA_STORE:
        _stored_in_kafka(kafka, group).refuse_members()
    else:
        refuse = refuse_consumers if source == ZOOKEEPER else move_offsets.refuse_old_consumers
        with BlockingZk(zookeeper) as zk:
            refuse(zk, group)
    return _read(group, source, kafka, zookeeper)


def _stored_in_kafka(kafka: Mapping[str, str] | None, group: str) -> StoredInKafka:
    if kafka is None:
        raise click.UsageError("--bootstrap is required, because Kafka has these offsets")
    return StoredInKafka(kafka, group)
