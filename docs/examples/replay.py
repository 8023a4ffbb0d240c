"""Reads every partition again from a time on (SINCE_MS, since the epoch), prints how far it is behind, until Ctrl-C."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer, TopicPartition


def rewind(assigned: list[TopicPartition]) -> None:
    """Begin at the first record since then; where there is none, after the last one."""
    consumer.seek(consumer.offsets_for_times(dict.fromkeys(assigned, int(os.environ["SINCE_MS"]))))


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]], on_assign=rewind)
    for batch in consumer:
        for record in batch:
            print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
        print(f"{sum(consumer.lag().values())} behind", flush=True)
