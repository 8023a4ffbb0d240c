"""Spark as a member of a group, with results exactly once: one transaction holds a batch's results and its ranges.

It shares the database with exactly_once.py, which may run in the same group.
"""

import os
import signal
import sqlite3
import sys
import time
from threading import Event

from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline.source import SparkRegion, register


def open_database() -> sqlite3.Connection:
    """Open the database; the region adds its table `consumer_progress`."""
    database = sqlite3.connect(os.environ["DATABASE"], timeout=60)  # for how long it waits for others
    database.execute("CREATE TABLE IF NOT EXISTS results (topic TEXT, partition INTEGER, result TEXT)")
    return database


def write(transaction: sqlite3.Connection, rows: DataFrame) -> None:
    """Write the results of a batch; those that are stored already are not among its rows."""
    results = [(row.topic, row.partition, f"result of {row.offset}") for row in rows.select(*KEY).collect()]
    time.sleep(float(os.environ.get("WORK_S", "0")))
    transaction.executemany("INSERT INTO results VALUES (?, ?, ?)", results)


KEY = ("topic", "partition", "offset")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m")
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
register(spark)
group, checkpoint = os.environ["GROUP"], os.environ["CHECKPOINT"]
records = (
    spark.readStream.format("consumer_group")
    .option("zookeeper", os.environ["ZOOKEEPER"])
    .option("bootstrap", os.environ["BOOTSTRAP"])
    .option("group", group)
    .option("topics", os.environ["TOPIC"])
    .option("sessionTimeoutMs", os.environ.get("SESSION_TIMEOUT_MS", "10000"))
    .option("maxOffsetsPerTrigger", "10000")
    .load()
)
region = SparkRegion(group=group, checkpoint=checkpoint, open_database=open_database, write=write)
query = records.writeStream.foreachBatch(region.store).option("checkpointLocation", checkpoint).start()
stopping = Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # no exception: py4j would print it
while not stopping.is_set() and not query.awaitTermination(1):
    pass
query.stop()  # leaves the group
