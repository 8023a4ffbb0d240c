"""Writes numbered records to all partitions of a topic, also of those that are added: `python -m …producer`."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections import Counter

import click
from confluent_kafka import KafkaException, Producer

LOOK_INTERVAL_S = 1.0  # for new partitions
METADATA_TIMEOUT_S = 2.0
TICK_S = 0.05
FLUSH_TIMEOUT_S = 120.0


@click.command()
@click.option("--bootstrap", required=True)
@click.option("--topic", required=True)
@click.option("--rate", type=int, required=True, help="Records per second, of all partitions together.")
@click.option("--records", type=int, default=0, help="How many at most; 0: until SIGTERM.")
def main(bootstrap: str, topic: str, rate: int, records: int) -> None:
    """Write until SIGTERM; every record arrives once, in order, whatever the broker does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 20}
    )
    numbers: Counter[int] = Counter()
    partitions = 0
    looked_at_s = written = 0.0
    began = time.monotonic()
    try:
        while not records or written < records:
            if time.monotonic() - looked_at_s > LOOK_INTERVAL_S:
                partitions, looked_at_s = max(partitions, count_partitions(producer, topic)), time.monotonic()
            due = min((time.monotonic() - began) * rate, records or float("inf")) - written
            for partition in itertools.islice(itertools.cycle(range(partitions)), max(0, int(due))):
                if not accepts(producer, topic, partition, numbers[partition]):
                    break
                numbers[partition] += 1
                written += 1
            producer.poll(TICK_S)
    except KeyboardInterrupt:
        pass
    sys.exit(1 if producer.flush(FLUSH_TIMEOUT_S) else 0)


def accepts(producer: Producer, topic: str, partition: int, number: int) -> bool:
    """Write a record; return whether that is possible now: a broker that has just restarted may not know its topics."""
    try:
        producer.produce(topic, str(number).encode(), partition=partition)
    except (BufferError, KafkaException):
        return False
    return True


def count_partitions(producer: Producer, topic: str) -> int:
    """Return how many partitions there are, 0 if the broker does not say."""
    try:
        return len(producer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].partitions)
    except KafkaException:
        return 0


if __name__ == "__main__":
    main()
