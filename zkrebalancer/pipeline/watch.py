"""The pipeline while events are still being written: from their folder, or from a Kafka topic.

Each micro-batch is stored as Parquet in a folder of its own number, which a repetition replaces; then the tables of the
runs that it touched are made anew, by the same functions as in a batch. The checkpoint says what was read. So a watcher
that is killed anywhere, and restarted, repeats at most its last micro-batch, and loses and doubles nothing.

Whoever sends lines to Kafka sends some of them again after a failure. Of equal lines of a run one is taken, if they are
read within REPEATED_WITHIN of each other; a watermark lets Spark forget older ones. It goes by the time of reading, not
by that of the events: by this no line is ever late, and nothing is dropped but repetitions.
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
from zkrebalancer.pipeline import batch, ingest
from zkrebalancer.pipeline.tail import EventFiles
from zkrebalancer.pipeline.topic import EventTopic, Place
from zkrebalancer.protocol.errors import ConfigurationError

CHECKPOINT = "checkpoint"
LOCK = ".lock"
REPEATED_WITHIN = "10 minutes"
_ID_DIGITS = 16


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Let nobody else keep the tables below `out` up to date while the block runs.

    Raises:
        LocalClusterError: somebody does.
        ConfigurationError: the tables there were made by a batch.

    """
    if (out / batch.EVENTS).exists() and not (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has tables that no watcher has made; name a folder of its own")
    with locked(out / LOCK, 0.0):
        yield


def require_unwatched(out: Path) -> None:
    """Raise ConfigurationError if a watcher's tables are below `out`: it would go on behind what it has read."""
    if (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has the tables of a watcher; name a folder of its own")


def folder_lines(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the lines of the `*.jsonl` files below `folder`, and of those to come, as a stream for `ingest.parse`."""
    spark.dataSource.register(EventFiles)
    lines = spark.readStream.format(EventFiles.name()).load(str(folder.absolute()))
    return lines.select(
        ingest.run_of(F.col("file")).alias("run"), "file", F.lit(0).cast("bigint").alias("block"), "row", "text"
    )


def topic_lines(spark: SparkSession, place: Place) -> DataFrame:
    """Return the lines that are the records of a topic, and those to come, as a stream for `ingest.parse`.

    A record's key is the path of its file, if it has one; otherwise its partition is the file.
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
    """Begin to keep the tables below `out` up to date, every `interval_s`; None takes what is there and ends.

    `report` gets a line for each micro-batch.
    """

    def take(frame: DataFrame, number: int) -> None:
        events, runs = store(spark, ingest.parse(frame), out, number)
        if runs:
            refresh(spark, out, runs)
        report(f"batch {number}: {events:,} lines of {len(runs)} runs")

    writer = lines.writeStream.foreachBatch(take).option("checkpointLocation", str(out.absolute() / CHECKPOINT))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def store(spark: SparkSession, events: DataFrame, out: Path, number: int) -> tuple[int, list[str]]:
    """Write a micro-batch's events where only they go; return how many there are, and their runs."""
    folder = f"{out.absolute()}/{batch.EVENTS}/batch={number}"
    ingest.write_events(events, folder)
    counts = (
        ingest.read_events(spark, folder).groupBy("run").count().collect()
    )  # as many rows as a micro-batch has runs
    return sum(row["count"] for row in counts), [row["run"] for row in counts]


def refresh(spark: SparkSession, out: Path, runs: list[str]) -> None:
    """Make the tables of these runs anew; those of others stay. Each run has a folder in each table."""
    ids = [hashlib.sha256(run.encode()).hexdigest()[:_ID_DIGITS] for run in runs]
    run_id = F.substring(F.sha2("run", 256), 1, _ID_DIGITS)

    def keep(name: str, table: DataFrame) -> DataFrame:
        folder = out.absolute() / name
        if not folder.exists():  # a file without rows tells the columns of a table that has none yet
            table.limit(0).write.parquet(f"{folder}/run_id=none")
        for each in ids:
            shutil.rmtree(folder / f"run_id={each}", ignore_errors=True)
        table.withColumn("run_id", run_id).write.mode("append").partitionBy("run_id").parquet(str(folder))
        stored = ingest.read_table(spark, str(folder), table.schema.add("run_id", "string"))
        return stored.where(F.col("run_id").isin(ids)).drop("run_id")

    stored = ingest.read_events(spark, f"{out.absolute()}/{batch.EVENTS}")
    batch.tables(stored.where(F.col("run").isin(runs)), keep)
