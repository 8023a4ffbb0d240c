"""Counts records in memory, each once in all members together: a region that recovers as a group.

After a crash, all members go back to the last complete checkpoint; this one restores its copy of that number
(`region_counts.py`).
"""

import os
import signal
from pathlib import Path

from region_counts import Counts

from consumer_agent import Consumer
from consumer_agent.region import ConsistentRegion

name = os.environ["MEMBER"]
counts = Counts(Path(os.environ["FOLDER"]), name)
consumer = Consumer(
    zookeeper=os.environ["ZOOKEEPER"],
    bootstrap=os.environ["BOOTSTRAP"],
    group=os.environ["GROUP"],
    session_timeout_ms=int(os.environ.get("SESSION_TIMEOUT_MS", "10000")),
)
consumer.subscribe([os.environ["TOPIC"]])
region = ConsistentRegion(
    consumer,
    name="counts",
    recovery="group",
    member=name,
    every_s=float(os.environ.get("EVERY_S", "10")),
    on_checkpoint=counts.store,
    on_reset=counts.restore,
    on_retire=counts.retire,
)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: region.stop())  # between two batches, so that the counts are whole
for batch in region:
    for record in batch:
        counts.add(record.partition, record.offset)
region.close()  # after a last checkpoint; without it, the others would go back to the one before
