"""Reads TOPIC to offset END in every partition, then TOPIC2 as well, without leaving the group; until Ctrl-C."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer

topic, second, end = os.environ["TOPIC"], os.environ["TOPIC2"], int(os.environ["END"])
signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
    ) as consumer,
):
    consumer.subscribe([topic], on_assign=lambda assigned: print(f"gets {assigned}", flush=True))
    wants_second = False
    for batch in consumer:
        positions = consumer.position().values()
        if not wants_second and all(position >= end for position in positions):
            wants_second = True
            consumer.subscribe([topic, second], on_assign=lambda assigned: print(f"also gets {assigned}", flush=True))
        for record in batch:
            print(f"{record.topic}/{record.partition} {record.offset}", flush=True)
