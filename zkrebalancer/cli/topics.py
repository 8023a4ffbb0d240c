"""`zkrebalancer topics mirror`: keep `/brokers/topics` equal to Kafka's metadata where brokers do not use ZooKeeper."""

from __future__ import annotations

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
@click.option("--bootstrap", required=True, type=options.KAFKA, help="Kafka brokers to ask first.")
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
def mirror(bootstrap: str, zookeeper: str, interval_s: float) -> None:
    """Keep /brokers/topics and /brokers/ids equal to Kafka's metadata, until interrupted.

    Needed only where brokers do not write them: Kafka in KRaft mode.

    Example: zkrebalancer topics mirror --bootstrap localhost:9092 --zookeeper localhost:2181
    """
    topic_mirror.run(bootstrap, zookeeper, interval_s)


if __name__ == "__main__":  # how a local cluster begins it, wherever the commands are installed
    run(topics)
