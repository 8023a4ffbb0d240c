"""Results exactly once: a consistent region stores them in one transaction with the offsets after their records.

Reading continues where the database says, whatever the group's offsets are. A consumer that was suspended, and then
continues with a batch that others have processed meanwhile, changes nothing. With PostgreSQL, only `open_sink` and the
placeholders differ.
"""

import os
import signal
import sqlite3
import time
from contextlib import closing, suppress

from consumer_agent import Consumer, Record
from consumer_agent.region import ConsistentRegion


def open_sink() -> sqlite3.Connection:
    """Open the database; the region adds its table `consumer_progress`."""
    sink = sqlite3.connect(os.environ["DATABASE"], timeout=60)  # for how long it waits for others
    sink.execute("CREATE TABLE IF NOT EXISTS results (topic TEXT, partition INTEGER, result TEXT)")
    return sink


def work(record: Record) -> tuple[str, int, str]:
    """Process a record, without any effect yet."""
    time.sleep(float(os.environ.get("WORK_S", "0")))
    return record.topic, record.partition, f"result of {record.offset}"


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
consumer = Consumer(
    zookeeper=os.environ["ZOOKEEPER"],
    bootstrap=os.environ["BOOTSTRAP"],
    group=os.environ["GROUP"],
    session_timeout_ms=int(os.environ.get("SESSION_TIMEOUT_MS", "10000")),
)
consumer.subscribe([os.environ["TOPIC"]])
with suppress(KeyboardInterrupt), closing(open_sink()) as sink, ConsistentRegion(consumer, name="results") as region:
    for batch in region:
        results = [work(record) for record in batch]
        with region.transaction(sink) as transaction:
            transaction.executemany("INSERT INTO results VALUES (?, ?, ?)", results)
