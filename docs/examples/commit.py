"""Commits explicitly, with offsets in Kafka: each record without waiting, and everything at the end of each batch."""

import os
import signal
from contextlib import suppress

from consumer_agent import CommitFailedError, Consumer


def on_commit(error: CommitFailedError | None) -> None:
    """Print a failed commit; its record will be read again."""
    if error is not None:
        print(f"not stored: {error}", flush=True)


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
        enable_auto_commit=False,
        offsets_storage="kafka",
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]])
    for batch in consumer:
        for record in batch:
            consumer.commit_async(record, on_commit)  # it and all before it of its partition
        consumer.commit()  # everything that was returned; or {("orders", 0): 42}, the next offsets to read
        for (topic, partition), offset in consumer.committed().items():
            print(f"{topic}/{partition} is stored up to {offset}", flush=True)
