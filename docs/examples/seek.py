"""Prints records one by one, each partition from offset FROM on, regardless of commits, until Ctrl-C."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer, TopicPartition


def begin(assigned: list[TopicPartition]) -> None:
    """Seek before the first record of the partitions."""
    consumer.seek(dict.fromkeys(assigned, int(os.environ["FROM"])))


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]], on_assign=begin)
    for record in consumer.records():
        print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
