"""Prints every record of a topic until Ctrl-C; several of these at once share the partitions."""

import os
from contextlib import suppress

from consumer_agent import Consumer

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
