"""`zkrebalancer topics mirror`: keep `/brokers/topics` equal to Kafka's metadata where brokers do not use ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

import click

from zkrebalancer.cli import options
from zkrebalancer.cli.main import run
from zkrebalancer.localcluster import mirror as topic_mirror


@click.group()
def topics() -> None:
    """Keep what the coordinator knows of topics.

    \b
    Example:
      zkrebalancer topics mirror --bootstrap localhost:9092 --zookeeper localhost:2181/kafka
    """


@topics.command()
@options.kafka_options("Kafka brokers to ask first.", required=True)
@options.zookeeper_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks at Kafka.",
)
@options.log_level_option
def mirror(kafka: Mapping[str, str], zookeeper: str, interval_s: float) -> None:
    """Keep /brokers/topics and /brokers/ids equal to Kafka's metadata, until interrupted.

    Needed only where brokers do not write them: Kafka in KRaft mode.

    Example: zkrebalancer topics mirror --bootstrap localhost:9092 --zookeeper localhost:2181
    """
    topic_mirror.run(kafka, zookeeper, interval_s)


if __name__ == "__main__":  # how a local cluster begins it, wherever the commands are installed
    run(topics)
