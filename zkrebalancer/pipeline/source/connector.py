"""Reads the ranges of a batch with Spark's own Kafka source, which stays in the JVM and makes no Python objects.

With the option `rows=ranges`, a batch of `format("consumer_group")` has a row for each range instead of the records.
The group still decides what is read and when it is committed; only the reading is Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline.source.checkpoint import ranges_of
from zkrebalancer.pipeline.source.columns import spark_schema
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.remote import is_remote
from zkrebalancer.protocol.cluster_nodes import is_same_topic
from zkrebalancer.protocol.errors import ConfigurationError

FIRST_VERSION = "spark.sql.sources.useV1SourceList"  # the formats that Spark reads by its first interface
NEEDED = ("topic", "partition", "begin", "end", "generation", "identity")
RUN = "spark.jobGroup.id"  # Spark sets it to a streaming query's runId
GROUP_PREFIX = "consumer_group-ranges"
DEFAULTS = {
    "kafka.isolation.level": "read_committed",  # as this project's source reads
    "kafka.fetch.max.wait.ms": "10",  # the rest makes it twice as fast as with Kafka's defaults
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}


class GroupNames:
    """The group ids by which Spark's consumers read; nothing is committed to them. Pure.

    For the next batch with the same id, Spark keeps consumers, and what they have fetched beyond a range. So the id
    stays the same until a topic is created again: what is kept of the former one are other records.
    """

    def __init__(self) -> None:
        """Begin with the usual name."""
        self._seen: dict[tuple[str, str], str] = {}  # (servers, topic) -> its incarnation
        self._recreated = 0

    def name(self, servers: str, ranges: Iterable[Range]) -> str:
        """Return the group id for a batch with these ranges."""
        now = {(servers, one.topic): one.identity for one in ranges if one.identity}
        before = [(self._seen.get(topic), identity) for topic, identity in now.items()]
        self._recreated += any(known is not None and not is_same_topic(known, identity) for known, identity in before)
        self._seen |= now
        return f"{GROUP_PREFIX}-{self._recreated}" if self._recreated else GROUP_PREFIX


_names = GroupNames()
_runs: dict[str, tuple[str | None, int]] = {}  # checkpoint -> the last run of its query, the number of its first batch


def kafka_records(
    batch: DataFrame, options: Mapping[str, str], *, checkpoint: str | None = None, number: int | None = None
) -> DataFrame:
    """Return the records of a batch of ranges, read by `format("kafka")`; for use in `foreachBatch`.

    `options`: of `format("kafka")`, at least `kafka.bootstrap.servers`. The columns are those of that source.
    With `checkpoint`, the query's `checkpointLocation`, and the batch's `number`, the ranges come from the checkpoint
    instead of the rows of `batch`, which saves a job; `batch` has to be what the source gave.

    Raises:
        ConfigurationError: the batch has no ranges, or only one of `checkpoint` and `number` is given.
        CheckpointError: the checkpoint does not have the ranges of one source of this format.

    """
    missing = [name for name in NEEDED if name not in batch.columns]
    if missing:
        text = f"the batch has no column {missing[0]}: set the option rows=ranges of consumer_group"
        raise ConfigurationError(f"kafka_records: {text}")
    spark = batch.sparkSession
    if _is_in_checkpoint(spark, checkpoint, number):
        ranges = ranges_of(spark, str(checkpoint), int(number or 0))
    else:
        ranges = [Range(*row) for row in batch.select(*NEEDED).collect()]
    if not ranges:
        has_headers = any(f"{name}={text}".lower() == "includeheaders=true" for name, text in options.items())
        return spark.createDataFrame([], spark_schema(has_headers)).drop("generation")
    servers = options.get("kafka.bootstrap.servers", "")
    usual = {**DEFAULTS, "kafka.group.id": _names.name(servers, ranges)}
    reader = spark.read.format("kafka").options(**usual | dict(options) | where(ranges))
    with _second_version(spark):
        return reader.load()


def _is_in_checkpoint(spark: SparkSession, checkpoint: str | None, number: int | None) -> bool:
    """Whether the ranges in the checkpoint are those of the batch.

    They may not be in the first batch of a run, which can be a repetition: the source leaves out deleted topics.
    """
    if checkpoint is None and number is None:
        return False
    if checkpoint is None or number is None:
        raise ConfigurationError("kafka_records: checkpoint and number belong together")
    if is_remote(spark):  # the checkpoint cannot be read
        return False
    run = spark.sparkContext.getLocalProperty(RUN)
    known, first = _runs.get(checkpoint, (None, number))
    if run is None or known != run:
        _runs[checkpoint] = run, number
        return False
    return number > first


@contextmanager
def _second_version(spark: SparkSession) -> Iterator[None]:
    """Let Spark read from Kafka by its second interface in the block.

    For a batch, Spark still chooses the first one, which makes a Scala object of each record and a row of that again.
    """
    usual = spark.conf.get(FIRST_VERSION, None)  # None if it is not set
    spark.conf.set(FIRST_VERSION, "")
    try:
        yield
    finally:
        if usual is None:
            spark.conf.unset(FIRST_VERSION)
        else:
            spark.conf.set(FIRST_VERSION, usual)


def where(ranges: Iterable[Range]) -> dict[str, str]:
    """Return the options by which `format("kafka")` reads these ranges, at most one of each partition. Pure."""
    begins: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        begins.setdefault(one.topic, {})[str(one.partition)] = one.begin
        ends.setdefault(one.topic, {})[str(one.partition)] = one.end
    assigned = {topic: sorted(map(int, partitions)) for topic, partitions in begins.items()}
    named = {"assign": assigned, "startingOffsets": begins, "endingOffsets": ends}
    return {name: json.dumps(value) for name, value in named.items()}
