"""Counts records of each partition, each once: a region that recovers by partition.

The copies of a partition's state are files, which the partition's next owner, on any host, has to see. Which one is
valid says the committed offset.
"""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from region_counts import write_durably

from consumer_agent import Consumer, TopicPartition
from consumer_agent.region import Checkpoint, ConsistentRegion

folder = Path(os.environ["FOLDER"])
counts: dict[TopicPartition, list[int]] = {}  # of each partition: the number of records, and the sum of their offsets


def copy(partition: TopicPartition, offset: int) -> Path:
    """Return the file with the state of a partition before the record at this offset."""
    return folder / f"{partition[0]}-{partition[1]}-{offset}.json"


def store(checkpoint: Checkpoint) -> None:
    """Store the states of some partitions durably."""
    for partition, offset in (checkpoint.offsets or {}).items():
        write_durably(copy(partition, offset or 0), json.dumps(counts[partition]))


def restore(checkpoint: Checkpoint | None) -> None:
    """Restore the states of new partitions; those without an offset begin."""
    for partition, offset in ((checkpoint and checkpoint.offsets) or {}).items():
        counts[partition] = [0, 0] if offset is None else json.loads(copy(partition, offset).read_text())


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
consumer = Consumer(
    zookeeper=os.environ["ZOOKEEPER"],
    bootstrap=os.environ["BOOTSTRAP"],
    group=os.environ["GROUP"],
    session_timeout_ms=int(os.environ.get("SESSION_TIMEOUT_MS", "10000")),
)
consumer.subscribe([os.environ["TOPIC"]])
with (
    suppress(KeyboardInterrupt),
    ConsistentRegion(
        consumer,
        name="counts",
        recovery="partition",
        every_s=float(os.environ.get("EVERY_S", "10")),
        on_checkpoint=store,
        on_reset=restore,
    ) as region,
):
    for batch in region:
        for record in batch:
            count = counts[record.topic, record.partition]
            count[0] += 1
            count[1] += record.offset
