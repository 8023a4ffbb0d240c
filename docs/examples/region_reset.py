"""Takes a region back: to a checkpoint that the application has asked for, and to the very beginning.

As after a repair of what counts. All members of the region go back together; here, there is only one.
"""

import os
import signal
from pathlib import Path

from region_counts import Counts

from consumer_agent import Consumer
from consumer_agent.region import ConsistentRegion

name, wanted = os.environ["MEMBER"], int(os.environ["RECORDS"])
counts = Counts(Path(os.environ["FOLDER"]), name)
consumer = Consumer(
    zookeeper=os.environ["ZOOKEEPER"],
    bootstrap=os.environ["BOOTSTRAP"],
    group=os.environ["GROUP"],
    max_poll_records=5,
)
consumer.subscribe([os.environ["TOPIC"]])
region = ConsistentRegion(
    consumer,
    name="counts",
    recovery="group",
    member=name,
    every_s=3_600,  # no other checkpoint comes in between: only the last complete one can be gone back to
    on_checkpoint=counts.store,
    on_reset=counts.restore,
    on_retire=counts.retire,
)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: region.stop())
checkpoint: bytes | None = None
resets = 0
for batch in region:
    for record in batch:
        counts.add(record.partition, record.offset)
    if checkpoint is None:
        checkpoint = region.checkpoint()
        print(f"checkpoint at {counts.total}", flush=True)
    elif counts.total >= wanted and resets < 2:
        region.reset(checkpoint if resets == 0 else None)
        resets += 1
        print(f"back at {counts.total} of {wanted}", flush=True)
    elif counts.total >= wanted:
        print(f"counted {counts.total} again", flush=True)
        region.stop()
region.close()
