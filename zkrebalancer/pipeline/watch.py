"""The streaming pipeline: keeps the tables up to date while events are still written to a folder or a Kafka topic.

Each micro-batch is stored as Parquet, and the tables of the runs it touched are continued (`continued/`), or rebuilt by
the batch pipeline's functions if that is impossible. Both are one commit (`commits.py`), so readers never see
half of a refresh. The checkpoint records what was read, so a killed watcher, when it is restarted, repeats at most its
last micro-batch, which replaces its own part of the events: nothing is lost or duplicated. Micro-batches are merged
MERGED at a time, and so are the merged ones: an event is rewritten as often as the number of micro-batches has digits
to that base.

A producer may send lines to Kafka again after a failure. Equal lines of a run that are read within REPEATED_WITHIN of
each other count once; a watermark lets Spark forget older ones. The watermark follows the time of reading, not the time
of the events, by a clock that never goes back (`topic.py`), so no line is ever too late and only repetitions are
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from zkrebalancer.localcluster.locks import folder_locked
from zkrebalancer.pipeline import batch, ingest, progress, store
from zkrebalancer.pipeline.commits import CHECKPOINT, COMMITS, CURRENT, MERGED, Commits, to_merge
from zkrebalancer.pipeline.continued.keeper import Keeper
from zkrebalancer.pipeline.continued.tables import NO_RUN, part_of, remove, run_id
from zkrebalancer.pipeline.facts.one_pass import File, Pass
from zkrebalancer.pipeline.schema import STORED
from zkrebalancer.pipeline.source.datasource import executor_cores
from zkrebalancer.pipeline.tail import EventFiles
from zkrebalancer.pipeline.topic import EventTopic, Place
from zkrebalancer.protocol.errors import ConfigurationError

REPEATED_WITHIN = "10 minutes"
MAX_WRITERS = 4  # of a micro-batch, which has about 64 MB of lines at most; each writes a file per kind
BYTES_OF_WRITER = 32 * 1024 * 1024  # when micro-batches are merged
_PASSES = "passes"  # where tasks write what is moved to the tables
_PREFIX = "batch="  # parts of the events


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Lock the tables below `out` against other watchers, and batches, while the block runs.

    Raises:
        LocalClusterError: another command has the lock.
        ConfigurationError: a batch wrote the tables there, or those of a watcher are gone.

    """
    if any((out / name).exists() for name in (batch.EVENTS, COMMITS)) and not (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has the tables of a batch; name another folder")
    if (out / batch.EVENTS).is_dir() and not (out / batch.EVENTS).is_symlink():
        raise ConfigurationError(f"--out {out} has the tables of a watcher of an earlier version; name another folder")
    current, ended = out / CURRENT, out / CHECKPOINT / "commits"  # Spark's, of micro-batches that are over
    if ended.is_dir() and any(ended.iterdir()) and not (current.is_symlink() and current.exists()):
        raise ConfigurationError(f"--out {out} has the positions of a watcher without its tables; name another folder")
    with folder_locked(out):
        yield


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
    options = {**place.as_options(), "cores": str(executor_cores(spark))}
    records = spark.readStream.format(EventTopic.name()).options(**options).load()
    file = F.coalesce(F.col("key").cast("string"), F.concat_ws("/", "topic", "partition"))
    lines = records.select(
        F.when(F.col("key").isNull(), F.lit(".")).otherwise(ingest.run_of(file)).alias("run"),
        file.alias("file"),
        F.lit(0).cast("bigint").alias("block"),
        (F.col("offset") + 1).alias("row"),
        F.col("value").cast("string").alias("text"),
        F.md5("value").alias("digest"),
        F.timestamp_millis("generation").alias("read_at"),
    )
    once = lines.withWatermark("read_at", REPEATED_WITHIN).dropDuplicatesWithinWatermark(["run", "digest"])
    return once.drop("digest", "read_at")


def start(
    spark: SparkSession, lines: DataFrame, out: Path, interval_s: float | None, report: Callable[[str], None]
) -> StreamingQuery:
    """Start keeping the tables below `out` up to date every `interval_s`; None reads what is there, then ends.

    `report` gets one line for each micro-batch.
    """
    keeper = Keeper()

    def process(frame: DataFrame, number: int) -> None:
        events, runs = update(spark, ingest.parse(frame), out, number, keeper)
        report(f"batch {number}: {events:,} lines of {runs} runs")

    writer = lines.writeStream.foreachBatch(process).option("checkpointLocation", str(out.absolute() / CHECKPOINT))
    if interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_s} seconds").start()


def update(
    spark: SparkSession, events: DataFrame, out: Path, number: int, keeper: Keeper | None = None
) -> tuple[int, int]:
    """Store the events of a micro-batch, refresh the tables of its runs, and commit both; return its lines and runs.

    `keeper` knows the runs of earlier micro-batches. Runs that it cannot continue, Spark looks at as a whole.
    """
    commits, keeper = Commits(out), keeper or Keeper()
    parts = commits.parts()
    added = commits.new_folder(batch.EVENTS, _PREFIX)
    progress.step(spark.sparkContext, f"table {batch.EVENTS}")
    writers = min(MAX_WRITERS, spark.sparkContext.defaultParallelism)
    ingest.write_events(events.coalesce(writers), str(commits.path(added)))
    before = _merged(spark, commits, parts.get(batch.EVENTS, {}), number)
    folders = {**before, _part(number, number): added}
    progress.step(spark.sparkContext, "tables")
    paths = [Path(path) for path in commits.paths(folders)]
    lines, runs, whole = keeper.refresh(commits, parts, (paths, commits.path(added)), number)
    if runs:
        parts[batch.EVENTS] = folders
        if whole:
            stored = ingest.read_events(spark, *commits.paths(folders), base=str(commits.path(batch.EVENTS)))
            kinds = ingest.stored_kinds(*paths)
            batch.tables(stored.where(F.col("run").isin(whole)), kinds, _Tables(spark, commits, parts, whole))
    if runs or not parts:  # a first micro-batch may have no line; `claimed` refuses positions without a commit
        commits.commit(parts, keeper.marked_folders())
    return lines, runs


def _part(first: int, last: int) -> str:
    return f"{_PREFIX}{first}" if first == last else f"{_PREFIX}{first}-{last}"


def _span(part: str) -> tuple[int, int]:
    first, _, last = part.removeprefix(_PREFIX).partition("-")
    return int(first), int(last or first)


def _merged(spark: SparkSession, commits: Commits, parts: Mapping[str, str], number: int) -> dict[str, str]:
    """Merge parts of the events where there are too many, but not micro-batch `number`, which may be repeated."""
    kept = {part: folder for part, folder in parts.items() if _span(part) != (number, number)}
    while spans := to_merge(map(_span, kept), MERGED):
        old = {part: kept.pop(part) for part in (_part(*span) for span in spans)}
        folder = commits.new_folder(batch.EVENTS, _PREFIX)
        base = str(commits.path(batch.EVENTS))
        rows = ingest.read_table(spark, *commits.paths(old), schema=STORED, base=base)
        size = sum(file.stat().st_size for path in commits.paths(old) for file in Path(path).rglob("*.parquet"))
        writers = min(-(-size // BYTES_OF_WRITER), spark.sparkContext.defaultParallelism)
        ingest.write_events(rows.select(*STORED.names).coalesce(max(1, writers)), str(commits.path(folder)))
        kept[_part(spans[0][0], spans[-1][1])] = folder
    return kept


class _Tables:
    """The tables of some runs, as parts of a commit; each run has its own part in each table."""

    def __init__(
        self, spark: SparkSession, commits: Commits, parts: dict[str, dict[str, str]], runs: list[str]
    ) -> None:
        self._spark, self._commits, self._parts = spark, commits, parts
        self._runs = runs

    def keep(self, name: str, table: DataFrame) -> DataFrame:
        """Let Spark write the rows of these runs; return them read back."""
        progress.step(self._spark.sparkContext, f"table {name}")
        folder = self._commits.new_folder(name)
        column = F.substring(F.sha2("run", 256), 1, len(run_id("")))
        table.withColumn("run_id", column).write.partitionBy("run_id").parquet(str(self._commits.path(folder)))
        return self._added(name, folder, table.schema)

    def keep_none(self, name: str, schema: StructType) -> DataFrame:
        """Write that these runs have no row of a table; return it."""
        return self._moved(name, schema, [])

    def keep_all(self, title: str, found: Pass) -> dict[str, DataFrame]:
        """Let the tasks of a pass write the rows of these runs; return each table's read back."""
        progress.step(self._spark.sparkContext, title)
        with store.written(self._commits.path(self._commits.new_folder(_PASSES)), found, by_run=True) as files:
            return {name: self._moved(name, schema, files[name]) for name, schema in found.schemas.items()}

    def _moved(self, name: str, schema: StructType, files: list[File]) -> DataFrame:
        folder = self._commits.new_folder(name)
        by_run: dict[str, list[File]] = {}
        for file in files:
            by_run.setdefault(part_of(file.run), []).append(file)
        for part, of_run in by_run.items():
            (self._commits.path(folder) / part).mkdir(parents=True)
            store.move(of_run, self._commits.path(folder) / part, schema)
        return self._added(name, folder, schema)

    def _added(self, name: str, folder: str, schema: StructType) -> DataFrame:
        parts, path = self._parts.setdefault(name, {}), self._commits.path(folder)
        if not parts or not path.exists():  # a file without rows gives the table, or these runs' part, its columns
            (path / NO_RUN).mkdir(parents=True)
            store.move([], path / NO_RUN, schema)
            parts.setdefault(NO_RUN, f"{folder}/{NO_RUN}")
        for part in map(part_of, self._runs):
            remove(parts, part)
            if (path / part).exists():
                parts[part] = f"{folder}/{part}"
        stored = ingest.read_table(self._spark, str(path), schema=schema.add("run_id", "string"))
        return stored.where(F.col("run_id").isin([*map(run_id, self._runs)])).drop("run_id")
