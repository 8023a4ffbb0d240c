"""A static member: start a second one under the same name, and the first one ends."""

import os
import signal
from contextlib import suppress

from consumer_agent import Consumer, FencedInstanceError

signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
        group_instance_id=os.environ["INSTANCE"],  # "billing-0": a pod's or a host's name, not a process's
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]], on_assign=lambda partitions: print(f"has {partitions}", flush=True))
    try:
        for batch in consumer:
            print(f"{len(batch)} records", flush=True)
    except FencedInstanceError as error:  # another process has this name; every further poll raises this again
        print(f"ends: {error}", flush=True)
