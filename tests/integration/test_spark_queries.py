"""Queries of a real Spark: columns, `Trigger.AvailableNow`, a batch query, and errors of options."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.integration.fake_coordinator import WAIT_S, Stage
from zkrebalancer.runtime.zk import BlockingZk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = datetime.now(UTC).replace(microsecond=123_000)  # recent: brokers delete records of last week
END_DEADLINE_S = 300


def source(reader: Any, stage: Stage, **options: str) -> Any:  # either of Spark's readers
    required = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap, "group": stage.group}
    required |= {"topics": stage.topic, "sessionTimeoutMs": "30000"}
    return reader.format("consumer_group").options(**required | options).load()


def test_rows_come_once_with_all_their_columns(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    """Spark finds the format without registration."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap})
    moment_ms = int(MOMENT.timestamp() * 1_000)
    producer.produce(stage.topic, b"v", b"k", partition=1, timestamp=moment_ms, headers=[("h", b"1"), ("h", None)])
    producer.produce(stage.topic, None, partition=1, timestamp=moment_ms)
    assert producer.flush(WAIT_S) == 0
    rows = source(spark.readStream, stage, includeHeaders="true")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    stage.zk.close()
    stage.zk = BlockingZk(stage.cluster.zookeeper)  # Spark has kept this thread waiting, with the old session
    stage.start(stage.wait_member(), 1)
    assert query.awaitTermination(END_DEADLINE_S)
    first, second = spark.read.parquet(str(tmp_path / "rows")).sort("offset").collect()
    expected = {"key": bytearray(b"k"), "value": bytearray(b"v"), "topic": stage.topic, "partition": 1, "offset": 0}
    assert {name: first[name] for name in expected} == expected
    assert (first.timestamp.replace(tzinfo=UTC), first.timestampType, first.generation) == (MOMENT, 0, 1)
    assert [(header.key, header.value) for header in first.headers] == [("h", bytearray(b"1")), ("h", None)]
    assert (second.key, second.value, second.offset, second.headers) == (None, None, 1, [])
    stage.produce([0, 1], 3)
    left = source(spark.read, stage).select("partition", "offset", "generation").collect()
    assert sorted(map(tuple, left)) == [(0, n, None) for n in range(3)] + [(1, n, None) for n in range(2, 5)]


def test_a_trigger_that_never_says_that_its_batch_is_done_is_refused(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    writer = source(spark.readStream, stage).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(once=True).start()
    with pytest.raises(Exception, match=r"ConfigurationError: consumer_group: trigger\(once=True\) never reports"):
        query.awaitTermination(END_DEADLINE_S)
    assert stage.members() == ()


def test_a_wrong_option_is_one_error_that_names_it(spark: SparkSession, stage: Stage) -> None:
    with pytest.raises(Exception, match=r"ConfigurationError: consumer_group: maxOffsetsPerTrigger: must be 1 to"):
        source(spark.readStream, stage, maxOffsetsPerTrigger="none")
