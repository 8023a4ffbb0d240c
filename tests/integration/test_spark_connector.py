"""The ranges of a batch, read by Spark's own Kafka source."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.integration.fake_coordinator import WAIT_S, Stage
from tests.support import spark_connector
from zkrebalancer.pipeline.source import kafka_records
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime.zk import BlockingZk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

END_DEADLINE_S = 300


def test_spark_reads_just_what_the_group_assigns(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    """Aborted records are left out, as by this project's own reader; batches together have each record once."""
    spark_connector.add_to(spark)
    stage.produce([0, 1, 2], 10)
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": stage.group})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(stage.topic, b"aborted", partition=1)
    assert producer.flush(WAIT_S) == 0
    producer.abort_transaction(WAIT_S)
    stage.produce([1], 1)
    seen: list[tuple[int, int]] = []
    values = set[bytes]()
    counts: list[int] = []
    plans = io.StringIO()

    checkpoint = str(tmp_path / "checkpoint")

    def store(batch: DataFrame, number: int) -> None:
        kafka = {"kafka.bootstrap.servers": stage.cluster.bootstrap}
        known = batch.limit(0) if counts else batch  # after the first, the checkpoint has what a batch reads
        records = kafka_records(known, kafka, checkpoint=checkpoint, number=number)
        if not counts:
            batch.sparkSession.conf.set("spark.sql.maxPlanStringLength", "100000")
            with contextlib.redirect_stdout(plans):
                records.explain()
        rows = records.collect()
        counts.append(len(rows))
        seen.extend((row["partition"], row["offset"]) for row in rows)
        values.update(bytes(row["value"]) for row in rows)

    required = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap, "group": stage.group}
    settings = {"topics": stage.topic, "sessionTimeoutMs": "30000", "maxOffsetsPerTrigger": "8", "rows": "ranges"}
    ranges = spark.readStream.format("consumer_group").options(**required, **settings).load()
    writer = ranges.writeStream.foreachBatch(store).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    stage.zk.close()
    stage.zk = BlockingZk(stage.cluster.zookeeper)  # Spark has kept this thread waiting, with the old session
    stage.start(stage.wait_member(), 0, 1)
    assert query.awaitTermination(END_DEADLINE_S)
    assert [place for place in sorted(seen) if place[1] < 10] == [(p, n) for p in (0, 1) for n in range(10)]
    assert len(seen) == 21
    assert b"aborted" not in values
    assert max(counts) <= 8
    assert "BatchScan" in plans.getvalue()  # Spark's second interface, which makes no Scala objects


def test_a_batch_of_records_is_refused_with_what_to_do(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="set the option rows=ranges"):
        kafka_records(spark.range(1), {})
