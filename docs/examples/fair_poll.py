"""Polls small batches with an equal share of each partition that has records, and prints the shares."""

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
        max_poll_records=6,
        poll_fairness="proportional",
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]])
    while True:
        batch = consumer.poll(1.0)
        for (topic, partition), records in batch.items():
            print(f"{topic}/{partition}: {len(records)} of {len(batch)}, {records.values()}", flush=True)
