"""`zkrebalancer topics`: create and fill topics to try things, and mirror topics into ZooKeeper for KRaft brokers."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator, Mapping

import click
import gevent

from zkrebalancer.cli import options
from zkrebalancer.cli.configuration import ConfiguredCommand, Reload
from zkrebalancer.cli.main import run
from zkrebalancer.protocol import paths
from zkrebalancer.runtime.notify import Notifier

MAX_PARTITIONS = 10_000
MAX_RECORDS = 100_000_000
MAX_INTERVAL_S = 3_600.0
MAX_LINE_BYTES = 1_000_000  # Kafka's own limit for a record, by default


def _legal_topic(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not paths.is_legal_topic(name):
        raise click.BadParameter(f"{name!r:.80}: use letters, digits, '.', '_' and '-', at most 249 of them")
    return name


@click.group()
def topics() -> None:
    """Create topics and write records to try things, or mirror topics from KRaft brokers.

    \b
    Example:
      zkrebalancer topics create orders --partitions 6 --bootstrap localhost:9092
    """


@topics.command()
@click.argument("topic", callback=_legal_topic)
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), default=1, show_default=True, metavar="N")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Replicas of each partition.  [default: the brokers']",
)
@options.kafka_options("The Kafka brokers.", required=True)
@options.json_option
@options.log_level_option
def create(
    topic: str, partitions: int, replication_factor: int | None, kafka: Mapping[str, str], as_json: bool
) -> None:
    """Create a topic.

    Returns when each of its partitions has a leader.

    \b
    Example:
      zkrebalancer topics create orders --partitions 6 --bootstrap localhost:9092
    """
    from zkrebalancer.operations.topics import BROKERS_DEFAULT, create_topic  # noqa: PLC0415  # `mirror` needs no clients

    create_topic(kafka, topic, partitions, replication_factor or BROKERS_DEFAULT)
    if as_json:
        click.echo(json.dumps({"topic": topic, "partitions": partitions}))
    else:
        click.echo(f"created {topic} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command()
@click.argument("topic", callback=_legal_topic)
@click.option(
    "--count",
    type=click.IntRange(1, MAX_RECORDS),
    metavar="N",
    help="Stop after this many records.  [default: 100; with --stdin, its last line]",
)
@click.option("--rate", type=options.FiniteRange(0.01, 1_000_000), help="Records a second.  [default: no limit]")
@click.option("--stdin", "from_stdin", is_flag=True, help="Send each line of standard input, instead of 0, 1, 2 …")
@options.kafka_options("The Kafka brokers.", required=True)
@options.json_option
@options.log_level_option
def produce(
    topic: str, count: int | None, rate: float | None, from_stdin: bool, kafka: Mapping[str, str], as_json: bool
) -> None:
    """Write numbers, or lines of standard input, to a topic.

    The partitions get one record each in turn. The command ends when the brokers have acknowledged every record.

    \b
    Example:
      zkrebalancer topics produce orders --count 1000 --rate 50 --bootstrap localhost:9092
    """
    if from_stdin and sys.stdin is None:
        raise click.UsageError("--stdin: standard input is closed")
    from zkrebalancer.operations import topics as operation  # noqa: PLC0415  # `mirror` needs no clients

    values = itertools.islice(_lines(), count) if from_stdin else _numbers(100 if count is None else count)
    done = operation.produce(kafka, topic, values, rate)
    if as_json:
        facts = {"topic": topic, "partitions": done.partitions, "records": done.records}
        click.echo(json.dumps({**facts, "elapsed_s": round(done.elapsed_s, 3)}))
    else:
        click.echo(f"wrote {done.records} records to {topic} in {done.elapsed_s:.1f} s")


def _numbers(count: int) -> Iterator[bytes]:
    return (str(number).encode() for number in range(count))


def _lines() -> Iterator[bytes]:
    """Yield the lines of standard input without their ends, reading each on demand."""
    for number in itertools.count(1):
        line = sys.stdin.buffer.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise click.UsageError(f"line {number} of standard input is longer than {MAX_LINE_BYTES} bytes")
        yield line.removesuffix(b"\n")


@topics.command(cls=ConfiguredCommand)
@options.kafka_options("The Kafka brokers to ask first.", required=True)
@options.zookeeper_option
@click.option(
    "--interval",
    "interval_s",
    type=options.FiniteRange(0.05, MAX_INTERVAL_S),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of Kafka's metadata.",
)
@options.http_option
@options.log_level_option
def mirror(kafka: Mapping[str, str], zookeeper: str, interval_s: float, http: tuple[str, int] | None) -> None:
    """Copy topics and brokers from Kafka to ZooKeeper.

    Keeps /brokers/topics and /brokers/ids up to date. Only KRaft clusters need this: in ZooKeeper mode, the brokers
    write these nodes themselves. SIGTERM and Ctrl-C end it. SIGHUP reads the settings again: --log-level can change.
    SIGUSR1 writes what is mirrored to the log. Each option can also come from a file, or a variable
    (ZKREBALANCER_MIRROR_INTERVAL).

    \b
    Example:
      zkrebalancer topics mirror --bootstrap localhost:9092 --zookeeper localhost:2181
    """
    from zkrebalancer.topic_mirror.mirror import Mirror  # noqa: PLC0415  # the other commands need no ZooKeeper

    one = Mirror(kafka, zookeeper, interval_s, Notifier(), http)
    main, loop = gevent.getcurrent(), gevent.get_hub().loop
    gevent.signal_handler(signal.SIGTERM, lambda: loop.run_callback(main.throw, SystemExit(0)))
    gevent.signal_handler(signal.SIGHUP, Reload(click.get_current_context(), {}))
    gevent.signal_handler(signal.SIGUSR1, one.log_state)
    one.run()


if __name__ == "__main__":  # a local cluster starts the mirror like this
    run(topics)
