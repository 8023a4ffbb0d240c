"""Hangs with its first batch for too long: it loses its partitions, then joins again and gets the batch again."""

import os
import signal
import threading
from contextlib import suppress

from consumer_agent import Consumer

LIMIT_MS = 1_500

signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
        max_poll_interval_ms=LIMIT_MS,
    ) as consumer,
):
    consumer.subscribe(
        [os.environ["TOPIC"]],
        on_lost=lambda partitions: print(f"lost {len(partitions)} partitions", flush=True),
    )
    hangs = True
    for batch in consumer:
        for record in batch:
            print(f"{record.topic}/{record.partition} {record.offset}", flush=True)
        if hangs:
            hangs = False
            threading.Event().wait(2 * LIMIT_MS / 1_000)
