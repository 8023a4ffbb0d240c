"""Counts records in memory, each once in all members together: a region that recovers as a group.

After a crash, all members go back to the last complete checkpoint; this one restores its copy of that number. The
copies are files, in a folder that a restarted process sees again.
"""

import json
import os
import signal
from pathlib import Path

from consumer_agent import Consumer
from consumer_agent.region import Checkpoint, ConsistentRegion

folder, name = Path(os.environ["FOLDER"]), os.environ["MEMBER"]
counts: dict[str, list[int]] = {}  # for each partition: the number of records, and the sum of their offsets


def store(checkpoint: Checkpoint) -> None:
    """Store the counts durably under the number of a checkpoint, or not at all."""
    file = folder / f"{name}-{checkpoint.number}.json"
    file.with_suffix(".new").write_text(json.dumps(counts))
    file.with_suffix(".new").replace(file)


def restore(checkpoint: Checkpoint | None) -> None:
    """Become as in a checkpoint, None: as at the very beginning."""
    counts.clear()
    if checkpoint is not None:
        counts.update(json.loads((folder / f"{name}-{checkpoint.number}.json").read_text()))


def retire(checkpoint: Checkpoint) -> None:
    """Delete the copies of earlier checkpoints."""
    for file in folder.glob(f"{name}-*.json"):
        if int(file.stem.rpartition("-")[2]) < (checkpoint.number or 0):
            file.unlink()


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
    on_checkpoint=store,
    on_reset=restore,
    on_retire=retire,
)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: region.stop())  # between two batches, so that the counts are whole
for batch in region:
    for record in batch:
        count = counts.setdefault(str(record.partition), [0, 0])
        count[0] += 1
        count[1] += record.offset
region.close()  # after a last checkpoint; without it, the others would go back to the one before
