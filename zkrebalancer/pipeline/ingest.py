"""JSON lines in, typed events out: one table partitioned by kind, which also keeps the lines that were rejected.

Each file is read once, in parallel blocks. A line is identified by its block and its row there; `rejects` computes line
numbers from these, so no task has to count lines.
"""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.types import StructType

from zkrebalancer.observe.hosts import REBOOTED_US
from zkrebalancer.observe.reading import NoEventsError
from zkrebalancer.pipeline.schema import (
    BOUNDS,
    BULK,
    COMMON,
    NEEDED,
    NOT_JSON,
    OTHER,
    PLACE,
    REJECTED,
    REST,
    STORED,
    flaw,
)

_BLOCK_BYTES = 32 * 1024 * 1024  # of Parquet; each task writes one block per kind at the same time
_BLOCK = ("run", "file", "block")
OF_TOP_FOLDER, IN_RUN = r"^(events/)?[^/]*$", r"/(events/)?[^/]*$"  # a file's path; the end of one
# Columns whose values rarely repeat: a Parquet dictionary of them would only cost.
DISTINCT = ("ts_us", "mono_us", "row", "first_offset", "last_offset", "offset", "delays_us.list.element")


def require_event_files(folder: str) -> None:
    """Raise NoEventsError if there is no event file below `folder`; a URL is not checked."""
    if "://" not in folder and next(Path(folder).rglob("*.jsonl"), None) is None:
        raise no_event_file(Path(folder).absolute())


def no_event_file(folder: Path) -> NoEventsError:
    """Return the error of a folder without an event file."""
    return NoEventsError(f"{folder} contains no event file (*.jsonl)")


def read_lines(spark: SparkSession, folder: str) -> DataFrame:
    """Return (run, file, block, row, text): every line of the `*.jsonl` files below `folder`, a path or a URL.

    Raises:
        NoEventsError: there is no such file.

    """
    require_event_files(folder)
    if "://" not in folder:
        folder = str(Path(folder).absolute())
    files = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.jsonl")
    lines = files.option("lineSep", "\n").text(literal(folder))  # by default a lone \r also ends a line
    # One column after the other: Spark recomputes what an expression uses twice, for each line.
    placed = lines.select(
        F.regexp_replace("_metadata.file_path", r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?", "").alias("path"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("row"),
        F.col("value").alias("text"),
    )
    decoded = F.url_decode(F.replace("path", F.lit("+"), F.lit("%2B")))
    whole = F.when(F.contains("path", F.lit("%")), decoded).otherwise(F.col("path"))
    placed = placed.withColumn("file", F.substring(whole, len(_path(folder)) + 2, 1 << 20))
    return placed.select(run_of(F.col("file")).alias("run"), "file", "block", "row", "text")


def run_of(file: Column) -> Column:
    """Return the run of a file: its folder without a trailing `events`; "." for the top folder."""
    return F.regexp_replace(F.regexp_replace(file, OF_TOP_FOLDER, "."), IN_RUN, "")


def _path(folder: str) -> str:
    root = folder.rstrip("/").split("://", 1)[-1]
    return root if root.startswith("/") else "/" + root.partition("/")[2]


def parse(lines: DataFrame) -> DataFrame:
    """Return lines as rows of `schema.STORED`; a rejected line has a `flaw`, its text and the kind REJECTED."""
    event, rest = F.from_json("text", COMMON), F.from_json("text", REST)
    is_bulk = F.coalesce(F.col("kind").isin(*BULK), F.lit(col=False))
    parsed = lines.select(*PLACE.names, "text", event.alias("event")).select(*PLACE.names, "text", "event.*")
    parsed = parsed.withColumn("rest", F.when(~is_bulk, rest))
    kind = F.when(F.col("flaw").isNotNull(), REJECTED).when(F.col("kind").isin(*NEEDED), F.col("kind")).otherwise(OTHER)
    return (
        parsed.withColumn("flaw", flaw())
        .withColumn("text", F.when(F.col("flaw").isNotNull() | ~F.col("kind").isin(*NEEDED), F.make_valid_utf8("text")))
        .withColumn("kind", kind)
        .select(*STORED.names)
    )


def write_events(events: DataFrame, folder: str) -> None:
    """Write events as Parquet below `folder`, one folder per kind, replacing what was there."""
    writer = events.write.mode("overwrite").partitionBy("kind").option("parquet.block.size", _BLOCK_BYTES)
    for name in DISTINCT:
        writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
    writer.parquet(folder)


def read_events(spark: SparkSession, *folders: str, base: str | None = None) -> DataFrame:
    """Read what `write_events` wrote, with one column for every key, and BOUNDS: 0."""
    stored = read_table(spark, *folders, schema=STORED, base=base)
    columns = [name for name in STORED.names if name != "rest"]
    return stored.select(*columns, "rest.*", *[F.lit(0).cast("bigint").alias(name) for name in BOUNDS])


def read_table(spark: SparkSession, *folders: str, schema: StructType, base: str | None = None) -> DataFrame:
    """Read the Parquet files of folders, paths or URLs; `base`: the folder of several folders."""
    reader = spark.read.schema(schema)
    if base is not None:
        reader = reader.option("basePath", base)
    return reader.parquet(*map(literal, folders))


def literal(folder: str) -> str:
    """Escape a path so that Spark does not read it as a pattern; a URL may be a pattern."""
    return folder if "://" in folder else re.sub(r"[\\*?\[\]{}]", r"\\\g<0>", folder)


def stored_kinds(*folders: Path) -> frozenset[str]:
    """Return the kinds of the events that `write_events` wrote: one folder for each."""
    return frozenset(path.name.partition("=")[2] for folder in folders for path in folder.glob("kind=*"))


def blocks(events: DataFrame) -> DataFrame:
    """Return (run, file, block, row, lines, events, kinds, began_us, ended_us, clocks) of each block.

    `row` is its first row, `kinds` are the kinds of its events, and `clocks` tells the boots of hosts apart.
    """
    nearby = F.floor((F.col("ts_us") - F.col("mono_us")) / REBOOTED_US).alias("nearby")
    alike = events.groupBy(*_BLOCK, "kind", "host", "boot", nearby).agg(  # sets are slow, so few rows are added to them
        F.min("row").alias("row"),
        F.count("*").alias("lines"),
        F.min("mono_us").alias("began_us"),
        F.max("mono_us").alias("ended_us"),
    )
    clock = F.struct("host", "boot", "nearby")
    # A set of structs may have one of them twice, and has its own order: tables of equal events have to be equal.
    return (
        alike.coalesce(1)
        .groupBy(*_BLOCK)
        .agg(
            F.min("row").alias("row"),
            F.sum("lines").alias("lines"),
            F.sum(F.when(F.col("kind") != REJECTED, F.col("lines")).otherwise(0)).alias("events"),
            F.sort_array(F.collect_set("kind")).alias("kinds"),
            F.min("began_us").alias("began_us"),
            F.max("ended_us").alias("ended_us"),
            F.sort_array(F.array_distinct(F.collect_set(F.when(F.col("began_us").isNotNull(), clock)))).alias("clocks"),
        )
    )


def rejects(events: DataFrame, blocks: DataFrame) -> DataFrame:
    """Return (run, file, line, reason, text, is_torn): the rejected lines.

    `is_torn` marks the last line of a file if it is not JSON: a killed process leaves such a line.
    """
    by_file = Window.partitionBy("file")
    before = F.sum("lines").over(by_file.orderBy("block").rowsBetween(Window.unboundedPreceding, -1))
    placed = blocks.select(
        "file",
        "block",
        F.col("row").alias("first_row"),
        F.coalesce(before, F.lit(0)).alias("before"),
        F.sum("lines").over(by_file).alias("lines"),
    )
    line = F.col("row") - F.col("first_row") + F.col("before") + 1
    is_last = line == F.col("lines")
    return (
        events.where(F.col("kind") == REJECTED)
        .join(placed, ["file", "block"])
        .select(
            "run",
            "file",
            line.alias("line"),
            F.col("flaw").alias("reason"),
            "text",
            (is_last & (F.col("flaw") == NOT_JSON)).alias("is_torn"),
        )
    )
