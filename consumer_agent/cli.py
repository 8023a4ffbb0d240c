"""`consumer-agent run`: reads a group's partitions and prints the records, or hands them to an application."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click

from consumer_agent.batch import Batch, Record
from consumer_agent.config import ConsumerConfig
from consumer_agent.consumer import Consumer
from consumer_agent.sidecar import Sidecar, StoppedInFlightError, record_document
from consumer_agent.storage import Storage
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import BLACK_LIST, WHITE_LIST

POLL_TIMEOUT_S = 0.2  # how soon a signal is noticed
LOG_LEVELS = ("debug", "info", "warning", "error")
RecordPrinter = Callable[[Record], None]


@dataclass(slots=True)
class Tally:
    """What was read."""

    records: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.records += len(batch)
        self.partitions.update(batch.by_partition())


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def consumer_agent() -> None:
    """Read partitions of Kafka that a central coordinator hands out.

    \b
    Example:
      consumer-agent run --bootstrap localhost:9092 --zookeeper localhost:2181/kafka --group g --topic orders
    """


@consumer_agent.command()
@click.option("--zookeeper", envvar="ZKREBALANCER_ZOOKEEPER", required=True, metavar="HOST:PORT[,…][/CHROOT]")
@click.option("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="Kafka's brokers.")
@click.option("--group", required=True)
@click.option("--topic", "topics", multiple=True, metavar="NAME[:THREADS]", help="May be given several times.")
@click.option("--pattern", metavar="RE", help="Topics by a regular expression (RE2) instead of by name.")
@click.option("--pattern-type", type=click.Choice([WHITE_LIST, BLACK_LIST]), default=WHITE_LIST, show_default=True)
@click.option("--exec", "command", metavar="CMD", help="Hand the records to this command as JSON lines.")
@click.option("--events", "events_directory", metavar="DIR", help="Write telemetry events there.")
@click.option("--client-id")
@click.option("--instance-id", "group_instance_id", help="A name that outlives a restart.")
@click.option("--rack")
@click.option("--capacity", type=float)
@click.option("--session-timeout-ms", type=int)
@click.option("--max-poll-records", type=int)
@click.option("--auto-commit-interval-ms", type=int, help="How often what was read is stored as finished.")
@click.option("--auto-offset-reset", metavar="WHERE", help="earliest, latest, none, or a time with its zone.")
@click.option("--offsets-storage", type=click.Choice([storage.value for storage in Storage]))
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON line.")
@click.option("--quiet", is_flag=True, help="Print no records, only how many there were.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="warning", show_default=True)
def run(
    *,
    topics: tuple[str, ...],
    pattern: str | None,
    pattern_type: str,
    command: str | None,
    as_json: bool,
    quiet: bool,
    log_level: str,
    **settings: Any,  # noqa: ANN401  # those of ConsumerConfig, as click has read them
) -> None:
    """Read until SIGTERM or SIGINT; then finish, commit and leave the group.

    \b
    Example:
      consumer-agent run --bootstrap localhost:9092 --zookeeper localhost:2181/kafka --group g --topic orders
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    signals = _Signals()
    tally = Tally()
    try:
        given = {key: value for key, value in settings.items() if value is not None}
        config = ConsumerConfig.from_settings(given)
        consumer = Consumer(config)
        wanted = {"topics": dict(map(_topic, topics))} if topics else {}
        subscribe: dict[str, Any] = {**wanted, "pattern": pattern, "pattern_type": pattern_type}
        if command is None:
            printer = _silent if quiet else _print_json if as_json else _print_line
            _read(consumer, subscribe, printer, tally, signals)
        else:
            _serve(consumer, subscribe, command, tally, signals)
    except StoppedInFlightError as error:
        click.echo(f"warning: {error}", err=True)
    if quiet or command is not None:
        counts = {"records": tally.records, "partitions": len(tally.partitions)}
        click.echo(json.dumps(counts) if as_json else f"records: {tally.records} of {len(tally.partitions)} partitions")


def main() -> NoReturn:
    """Run the command line; exit codes: 0 done, 1 the operation failed, 2 wrong usage or bad input."""
    try:
        consumer_agent.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except RebalancerError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 1)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _fail(line: str, code: int) -> NoReturn:
    click.echo(f"Error: {' '.join(line.split())}", err=True)
    sys.exit(code)


class _Signals:
    """Notes SIGTERM and SIGINT; whoever waits looks from time to time."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.received = True


def _read(
    consumer: Consumer, subscribe: dict[str, Any], printer: RecordPrinter, tally: Tally, signals: _Signals
) -> None:
    with consumer:
        consumer.subscribe(**subscribe)
        while not signals.received:
            batch = consumer.poll(POLL_TIMEOUT_S)
            tally.add(batch)
            for record in batch:
                printer(record)
            if batch:
                sys.stdout.flush()


def _serve(consumer: Consumer, subscribe: dict[str, Any], command: str, tally: Tally, signals: _Signals) -> None:
    with Sidecar(command, lambda: signals.received) as child, consumer:
        consumer.subscribe(**subscribe, on_revoke=child.revoke)
        while not signals.received:
            batch = consumer.poll(POLL_TIMEOUT_S)
            child.process(batch)
            tally.add(batch)


def _topic(text: str) -> tuple[str, int]:
    name, colon, threads = text.partition(":")
    if colon and not (threads.isascii() and threads.isdigit()):
        raise ConfigurationError(f"--topic {text!r:.80}: the number of threads after ':' is not a number")
    return name, int(threads) if colon else 1


def _silent(_record: Record) -> None:
    pass


def _print_json(record: Record) -> None:
    sys.stdout.write(json.dumps(record_document(record), separators=(",", ":")) + "\n")


def _print_line(record: Record) -> None:
    key, value = (_readable(data) for data in (record.key, record.value))
    sys.stdout.write(f"{record.topic}/{record.partition} {record.offset} {key} {value}\n")


def _readable(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


if __name__ == "__main__":
    main()
