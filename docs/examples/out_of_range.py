"""Chooses where to continue when Kafka does not have an offset, and prints how many records are lost, until Ctrl-C."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer, NoOffsetError


def go_on(error: NoOffsetError) -> None:
    """Continue with the oldest record that Kafka still has."""
    topic, partition = error.partition
    if error.offset is None or error.earliest is None:
        print(f"{topic}/{partition} begins", flush=True)
        consumer.seek({error.partition: 0})
    else:
        print(f"{topic}/{partition} misses {max(0, error.earliest - error.offset)} records", flush=True)
        consumer.seek({error.partition: error.earliest})


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
        auto_offset_reset="none",
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]])
    while True:
        try:
            batch = consumer.poll(1.0)
        except NoOffsetError as error:
            go_on(error)
            continue
        for record in batch:
            print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
