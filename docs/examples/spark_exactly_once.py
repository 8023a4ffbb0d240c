"""Spark as a member of a group, with effect exactly once: the results of a batch, offsets and generation in one go.

The tables are those of exactly_once.py, which may run in the same group. What counts is the sink's own offset: a record
below it is there already. The generation is a fencing token: who has an older one than the sink writes nothing more.
"""

import os
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from itertools import groupby

from pyspark.sql import DataFrame, Row, SparkSession

from zkrebalancer.pipeline.source import ConsumerGroupSource

CLAIM = """
    INSERT INTO progress VALUES (?, ?, 0, ?) ON CONFLICT DO UPDATE SET generation = excluded.generation
    WHERE generation <= excluded.generation RETURNING next_offset
"""
ADVANCE = "UPDATE progress SET next_offset = ? WHERE topic = ? AND partition = ?"


def open_sink() -> sqlite3.Connection:
    """Open the database; transactions are begun and ended by `with sink`, and others wait for them."""
    sink = sqlite3.connect(os.environ["DATABASE"], timeout=60, isolation_level="IMMEDIATE")
    sink.execute(
        "CREATE TABLE IF NOT EXISTS progress"
        " (topic TEXT, partition INTEGER, next_offset INTEGER, generation INTEGER, PRIMARY KEY (topic, partition))"
    )
    sink.execute("CREATE TABLE IF NOT EXISTS results (topic TEXT, partition INTEGER, result TEXT)")
    return sink


def place(row: Row) -> tuple[str, int, int]:
    """Return what a row's transaction is about."""
    return row.topic, row.partition, row.generation


def store(batch: DataFrame, _: int) -> None:
    """Store what is new of a batch; Spark may repeat it, and others may have read it meanwhile."""
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
signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
with suppress(KeyboardInterrupt):
    query.awaitTermination()
query.stop()  # leaves the group
