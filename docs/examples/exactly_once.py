"""A sink with effect exactly once: each result is stored in one transaction with the offset after its record.

Reading starts at the sink's own offset. The generation is a fencing token: a new owner first claims the partition in
the sink, and from then on writes with an older generation have no effect. So a consumer that was suspended, and then
continues with a batch that others have processed meanwhile, changes nothing.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress

from consumer_agent import Consumer, Record, TopicPartition

CLAIM = """
    INSERT INTO progress VALUES (?, ?, 0, ?) ON CONFLICT DO UPDATE SET generation = excluded.generation
    WHERE generation <= excluded.generation RETURNING next_offset
"""
ADVANCE = "UPDATE progress SET next_offset = ? WHERE topic = ? AND partition = ? AND generation = ?"


def open_sink() -> sqlite3.Connection:
    """Open the database; `with sink` is a transaction, for which others wait."""
    sink = sqlite3.connect(os.environ["DATABASE"], timeout=60, isolation_level="IMMEDIATE")
    sink.execute(
        "CREATE TABLE IF NOT EXISTS progress"
        " (topic TEXT, partition INTEGER, next_offset INTEGER, generation INTEGER, PRIMARY KEY (topic, partition))"
    )
    sink.execute("CREATE TABLE IF NOT EXISTS results (topic TEXT, partition INTEGER, result TEXT)")
    return sink


def claim(assigned: list[TopicPartition]) -> None:
    """Claim partitions in the sink, and seek to its offsets."""
    generation = consumer.generation()
    positions = {}
    with sink:
        for topic, partition in generation.keys() & set(assigned):  # some may be lost already
            claimed = sink.execute(CLAIM, (topic, partition, generation[topic, partition])).fetchall()
            if claimed:  # else a younger consumer has claimed it, and `store` will do nothing
                positions[topic, partition] = claimed[0][0]
    consumer.seek(positions)


def work(record: Record) -> str:
    """Process a record, without any effect yet."""
    time.sleep(float(os.environ.get("WORK_S", "0")))
    return f"result of {record.offset}"


def store(batch: Sequence[Record], results: list[str]) -> None:
    """Store results and offsets in one transaction; rows of partitions claimed by others are skipped."""
    with sink:
        for record, result in zip(batch, results, strict=True):
            place = (record.topic, record.partition)
            if sink.execute(ADVANCE, (record.offset + 1, *place, record.generation)).rowcount:
                sink.execute("INSERT INTO results VALUES (?, ?, ?)", (*place, result))


signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
sink = open_sink()
with (
    suppress(KeyboardInterrupt),
    Consumer(
        zookeeper=os.environ["ZOOKEEPER"],
        bootstrap=os.environ["BOOTSTRAP"],
        group=os.environ["GROUP"],
        session_timeout_ms=int(os.environ.get("SESSION_TIMEOUT_MS", "10000")),
    ) as consumer,
):
    consumer.subscribe([os.environ["TOPIC"]], on_assign=claim)
    for batch in consumer:
        store(batch, [work(record) for record in batch])
