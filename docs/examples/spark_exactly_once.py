"""Spark as a member of a group, with effect exactly once: results, offsets and generation in one transaction.

The tables are those of exactly_once.py, which may run in the same group. Records below the sink's offset are stored
already. The generation is a fencing token: rows with an older one than the sink's are skipped.
"""

import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from itertools import groupby
from threading import Event

from pyspark.sql import DataFrame, Row, SparkSession

from zkrebalancer.pipeline.source import ConsumerGroupSource

CLAIM = """
    INSERT INTO progress VALUES (?, ?, 0, ?) ON CONFLICT DO UPDATE SET generation = excluded.generation
    WHERE generation <= excluded.generation RETURNING next_offset
"""
ADVANCE = "UPDATE progress SET next_offset = ? WHERE topic = ? AND partition = ?"


def open_sink() -> sqlite3.Connection:
    """Open the database; `with sink` is a transaction, for which others wait."""
    sink = sqlite3.connect(os.environ["DATABASE"], timeout=60, isolation_level="IMMEDIATE")
    sink.execute(
        "CREATE TABLE IF NOT EXISTS progress"
        " (topic TEXT, partition INTEGER, next_offset INTEGER, generation INTEGER, PRIMARY KEY (topic, partition))"
    )
    sink.execute("CREATE TABLE IF NOT EXISTS results (topic TEXT, partition INTEGER, result TEXT)")
    return sink


def place(row: Row) -> tuple[str, int, int]:
    """Return the partition and generation of a row."""
    return row.topic, row.partition, row.generation


def store(batch: DataFrame, _: int) -> None:
    """Store the new rows of a batch; Spark may repeat it, and others may have processed it meanwhile."""
    rows = sorted(batch.select("topic", "partition", "generation", "offset").collect())
    time.sleep(float(os.environ.get("WORK_S", "0")))
    with closing(open_sink()) as sink, sink:
        for (topic, partition, generation), of_partition in groupby(rows, key=place):
            claimed = sink.execute(CLAIM, (topic, partition, generation)).fetchall()
            new = [row.offset for row in of_partition if claimed and row.offset >= claimed[0][0]]
            for offset in new:
                sink.execute("INSERT INTO results VALUES (?, ?, ?)", (topic, partition, f"result of {offset}"))
            if new:
                sink.execute(ADVANCE, (new[-1] + 1, topic, partition))


os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m")
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
spark.dataSource.register(ConsumerGroupSource)
records = (
    spark.readStream.format("consumer_group")
    .option("zookeeper", os.environ["ZOOKEEPER"])
    .option("bootstrap", os.environ["BOOTSTRAP"])
    .option("group", os.environ["GROUP"])
    .option("topics", os.environ["TOPIC"])
    .option("sessionTimeoutMs", os.environ.get("SESSION_TIMEOUT_MS", "10000"))
    .option("maxOffsetsPerTrigger", "10000")
    .load()
)
writer = records.writeStream.foreachBatch(store).option("checkpointLocation", os.environ["CHECKPOINT"])
query = writer.start()
stopping = Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # no exception: py4j would print it
while not stopping.is_set() and not query.awaitTermination(1):
    pass
query.stop()  # leaves the group
