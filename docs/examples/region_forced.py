"""Counts records in memory, each once in all members together, with an unmodified client of Kafka.

After a crash, and whenever Kafka moves a partition, all members go back to the last complete checkpoint; this one
restores its copy of that number (`region_counts.py`).
"""

import os
import signal
from pathlib import Path

from confluent_kafka import Consumer
from region_counts import Counts

from consumer_agent.region import ForcedRegion

name = os.environ["MEMBER"]
counts = Counts(Path(os.environ["FOLDER"]), name)
client = Consumer(
    {
        "bootstrap.servers": os.environ["BOOTSTRAP"],
        "group.id": os.environ["GROUP"],
        "session.timeout.ms": int(os.environ.get("KAFKA_SESSION_TIMEOUT_MS", "10000")),
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
)
region = ForcedRegion(
    client,
    [os.environ["TOPIC"]],
    zookeeper=os.environ["ZOOKEEPER"],
    group=os.environ["GROUP"],
    name="counts",
    member=name,
    session_timeout_ms=int(os.environ.get("SESSION_TIMEOUT_MS", "10000")),
    every_s=float(os.environ.get("EVERY_S", "10")),
    on_checkpoint=counts.store,
    on_reset=counts.restore,
    on_retire=counts.retire,
)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: region.stop())  # between two batches, so that the counts are whole
for batch in region:
    for message in batch:
        counts.add(message.partition() or 0, message.offset() or 0)
region.close()  # after a last checkpoint; without it, the others would go back to the one before
