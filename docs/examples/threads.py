"""Prints records from two threads, each with its own partitions, until Ctrl-C."""

import os
import signal
import threading
from contextlib import suppress

from consumer_agent import Batch, Consumer


def handle(batch: Batch) -> None:
    """Work on a batch, in one of the threads; it is finished when this returns."""
    for record in batch:
        line = f"{threading.current_thread().name} {record.topic}/{record.partition} {record.offset}\n"
        print(line, end="", flush=True)  # one write: print's own line end is a second one, and threads get between


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
