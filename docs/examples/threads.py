"""Prints records from two threads, each with its own partitions, until Ctrl-C."""

import os
import signal
import threading
from contextlib import suppress

from consumer_agent import Batch, Consumer


def handle(batch: Batch) -> None:
    """Process a batch in one of the threads; it is finished on return."""
    for record in batch:
        line = f"{threading.current_thread().name} {record.topic}/{record.partition} {record.offset}\n"
        print(line, end="", flush=True)  # a single write, so that lines of threads do not mix


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
    consumer.run(handle, threads=2)
