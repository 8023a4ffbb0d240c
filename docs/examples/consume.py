"""Prints every record of a topic until Ctrl-C; several of these at once share the partitions."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer

signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]])
    for batch in consumer:
        for record in batch:
            print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
