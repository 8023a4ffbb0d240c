"""The streaming pipeline: keeps the tables up to date while events are still written to a folder or a Kafka topic.

Each micro-batch is stored as Parquet in a folder named by its number; a repeated micro-batch replaces its folder. Then
the batch pipeline's functions rebuild the tables of the runs that it touched. The checkpoint records what was read, so
a watcher that is killed and restarted repeats at most its last micro-batch, and loses and duplicates nothing.

A producer may send lines to Kafka again after a failure. Equal lines of a run that are read within REPEATED_WITHIN of
each other count once; a watermark lets Spark forget older ones. The watermark follows the time of reading, not the time
of the events, so no line is ever too late and only repetitions are dropped.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.streaming.query import StreamingQuery

from zkrebalancer.localcluster.locks import locked
from zkrebalancer.pipeline import batch, ingest, progress
from zkrebalancer.pipeline.tail import EventFiles
from zkrebalancer.pipeline.topic import EventTopic, Place
from zkrebalancer.protocol.errors import ConfigurationError

CHECKPOINT = "checkpoint"
LOCK = ".lock"
REPEATED_WITHIN = "10 minutes"
_ID_DIGITS = 16


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Lock the tables below `out` against other watchers while the block runs.

    Raises:
        LocalClusterError: another watcher has the lock.
        ConfigurationError: a batch wrote the tables there.

    """
    if (out / batch.EVENTS).exists() and not (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has the tables of a batch; name another folder")
    with locked(out / LOCK, 0.0):
        yield


def require_unwatched(out: Path) -> None:
    """Raise ConfigurationError if `out` has a watcher's tables, which its checkpoint would no longer match."""
    if (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has the tables of a watcher; name another folder")


def folder_lines(spark: SparkSession, folder: Path) -> DataFrame:
    """Return present and future lines of the `*.jsonl` files below `folder`, as a stream for `ingest.parse`."""
    spark.dataSource.register(EventFiles)
    lines = spark.readStream.format(EventFiles.name()).load(str(folder.absolute()))
    return lines.select(
        ingest.run_of(F.col("file")).alias("run"), "file", F.lit(0).cast("bigint").alias("block"), "row", "text"
    )


def topic_lines(spark: SparkSession, place: Place) -> DataFrame:
    """Return the present and future records of a topic as lines, a stream for `ingest.parse`.

    A record's key is the path of its file; for a record without a key, the partition takes the place of the file.
    """
    spark.dataSource.register(EventTopic)
    records = spark.readStream.format(EventTopic.name()).options(**place.as_options()).load()
    file = F.coalesce(F.col("key").cast("string"), F.concat_ws("/", "topic", "partition"))
    lines = records.select(
        F.when(F.col("key").isNull(), F.lit(".")).otherwise(ingest.run_of(file)).alias("run"),
        file.alias("file"),
        F.lit(0).cast("bigint").alias("block"),
        (F.col("offset") + 1).alias("row"),
        F.col("value").cast("string").alias("text"),
        F.md5("value").alias("digest"),
        F.current_timestamp().alias("read_at"),
    )
    once = lines.withWatermark("read_at", REPEATED_WITHIN).dropDuplicatesWithinWatermark(["run", "digest"])
    return once.drop("digest", "read_at")


def start(
    spark: SparkSession, lines: DataFrame, out: Path, interval_s: float | None, report: Callable[[str], None]
) -> StreamingQuery:
    """Start keeping the tables below `out` up to date every `interval_s`; None reads what is there, then ends.

    `report` gets one line for each micro-batch.
    """

    def process(frame: DataFrame, number: int) -> None:
        events, runs = store(spark, ingest.parse(frame), out, number)
        if runs:
            refresh(spark, out, runs)
        report(f"batch {number}: {events:,} lines of {len(runs)} runs")

    writer = lines.writeStream.foreachBatch(process).option("checkpointLocation", str(out.absolute() / CHECKPOINT))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def store(spark: SparkSession, events: DataFrame, out: Path, number: int) -> tuple[int, list[str]]:
    """Write the events of a micro-batch into a separate folder; return their number and their runs."""
    folder = f"{out.absolute()}/{batch.EVENTS}/batch={number}"
    ingest.write_events(events, folder)
    rows = ingest.read_events(spark, folder).groupBy("run").count().collect()  # one row per run of the micro-batch
    return sum(row["count"] for row in rows), [row["run"] for row in rows]


def refresh(spark: SparkSession, out: Path, runs: list[str]) -> None:
    """Rebuild the tables of these runs and leave those of other runs. Each run has its own folder in each table."""
    ids = [hashlib.sha256(run.encode()).hexdigest()[:_ID_DIGITS] for run in runs]
    run_id = F.substring(F.sha2("run", 256), 1, _ID_DIGITS)

    def keep(name: str, table: DataFrame) -> DataFrame:
        progress.step(spark.sparkContext, f"table {name}")
        folder = out.absolute() / name
        if not folder.exists():  # an empty file gives the table its columns
            table.limit(0).write.parquet(f"{folder}/run_id=none")
        for each in ids:
            shutil.rmtree(folder / f"run_id={each}", ignore_errors=True)
        table.withColumn("run_id", run_id).write.mode("append").partitionBy("run_id").parquet(str(folder))
        stored = ingest.read_table(spark, str(folder), table.schema.add("run_id", "string"))
        return stored.where(F.col("run_id").isin(ids)).drop("run_id")

    stored = ingest.read_events(spark, f"{out.absolute()}/{batch.EVENTS}")
    batch.tables(stored.where(F.col("run").isin(runs)), keep)
