"""Reads the ranges of a batch with Spark's own Kafka source, which stays in the JVM and makes no Python objects.

With the option `rows=ranges`, a batch of `format("consumer_group")` has a row for each range instead of the records.
The group still decides what is read and when it is committed; only the reading is Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline.source.columns import spark_schema
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.protocol.errors import ConfigurationError

FIRST_VERSION = "spark.sql.sources.useV1SourceList"  # the formats that Spark reads by its first interface
NEEDED = ("topic", "partition", "begin", "end", "generation")
DEFAULTS = {
    "kafka.isolation.level": "read_committed",  # as this project's source reads
    # Nothing is committed under this name: with one of its own for each batch, all consumers would connect anew.
    "kafka.group.id": "consumer_group-ranges",
    "kafka.fetch.max.wait.ms": "10",  # the rest makes it twice as fast as with Kafka's defaults
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}


def kafka_records(batch: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Return the records of a batch of ranges, read by `format("kafka")`; for use in `foreachBatch`.

    `options`: of `format("kafka")`, at least `kafka.bootstrap.servers`. The columns are those of that source.

    Raises:
        ConfigurationError: the batch has no ranges.

    """
    missing = [name for name in NEEDED if name not in batch.columns]
    if missing:
        text = f"the batch has no column {missing[0]}: set the option rows=ranges of consumer_group"
        raise ConfigurationError(f"kafka_records: {text}")
    spark = batch.sparkSession
    ranges = [Range(*row) for row in batch.select(*NEEDED).collect()]
    if not ranges:
        has_headers = {name.lower(): text for name, text in options.items()}.get("includeheaders") == "true"
        return spark.createDataFrame([], spark_schema(has_headers)).drop("generation")
    reader = spark.read.format("kafka").options(**DEFAULTS | dict(options) | where(ranges))
    with _second_version(spark):
        return reader.load()


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
