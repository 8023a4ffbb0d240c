"""`python -m tests.benchmarks.spark_source`: how fast Spark reads a topic through a group, and through its own source.

One broker, one Spark on two cores with a sink that drops the rows. Each source reads the same topic in two queries, in
batches of the same size, the second time in the opposite order. The first batch of a query warms up the JVM and the
Python workers; the others are measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.filling import fill_topic
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import maven
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.pipeline.session import spark_session
from zkrebalancer.pipeline.source import ConsumerGroupSource, kafka_records

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
# The connector depends on its own version, which some mirrors lack; it is only needed for delegation tokens.
PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
JARS = (f"ivy://{CONNECTOR}?exclude={PROVIDER}&transitive=true", f"ivy://{PROVIDER}:4.0.0?transitive=false")
TOPIC = "benchmark"
RECORDS, RANGES = "consumer_group", "consumer_group, ranges"
OWN, OWN_TUNED = "built-in, defaults", "built-in, tuned"
PARTITIONS = 8
RECORD_BYTES = 100
TUNED = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}


def batches_s(writer: Any, folder: Path) -> list[float]:  # a DataStreamWriter
    """Read everything with one query; return the seconds of each batch."""
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    progress = [each for each in query.recentProgress if each.numInputRows]
    return [each.durationMs["triggerExecution"] / 1_000 for each in progress]


def writer_of(spark: SparkSession, label: str, cluster: LocalCluster, limit: int, turn: int) -> Any:
    """Return the writer of a query that reads the topic and drops its rows."""
    kafka = {"kafka.bootstrap.servers": cluster.bootstrap}
    servers = {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap}
    rows = {RECORDS: "records", RANGES: "ranges"}
    if label in rows:
        options = {**servers, "group": f"{rows[label]}-{turn}", "topics": TOPIC, "rows": rows[label]}
        form = "consumer_group"
    else:
        options = {**kafka, "subscribe": TOPIC, "startingOffsets": "earliest", **(TUNED if label == OWN_TUNED else {})}
        form = "kafka"
    read = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger=str(limit)).load()
    if label != RANGES:
        return read.writeStream.format("noop")

    def drop(batch: DataFrame, _number: int) -> None:
        kafka_records(batch, kafka).write.format("noop").mode("overwrite").save()

    return read.writeStream.foreachBatch(drop)


@contextmanager
def stage(folder: Path, records: int, *, fetches: bool) -> Iterator[tuple[LocalCluster, SparkSession]]:
    """Yield a cluster with a full topic, and Spark with this project's source and, if `fetches`, Spark's own."""
    with LocalCluster() as cluster, Lab(cluster, folder / "events") as lab:
        lab.create_topic(TOPIC, PARTITIONS)
        lab.start_coordinator(1)
        lab.wait_leader()
        fill_topic(cluster.bootstrap, TOPIC, PARTITIONS, records, RECORD_BYTES)
        mirror = maven.mirror_of_central(maven.user_settings())
        settings = {"spark.jars.ivy": str(folder / "ivy")}
        if mirror is not None:
            (folder / "ivysettings.xml").write_text(maven.ivy_settings(mirror))
            settings["spark.jars.ivySettings"] = str(folder / "ivysettings.xml")
        with spark_session("local[2]", "2g", settings) as spark:
            for jar in JARS if fetches else ():
                spark.sql(f"ADD JAR {jar}")
            spark.dataSource.register(ConsumerGroupSource)
            yield cluster, spark


def main() -> None:
    """Measure; print a line for each source and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="records per batch")
    parser.add_argument("--batches", type=int, default=3, help="measured batches per query")
    parser.add_argument("--own-only", action="store_true", help="without Spark's own source, which needs a download")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    arguments = parser.parse_args()
    labels = (RECORDS,) if arguments.own_only else (RECORDS, RANGES, OWN, OWN_TUNED)
    taken: dict[str, list[float]] = {label: [] for label in labels}
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-spark-source-") as name:
        folder = Path(name)
        records = arguments.records * (arguments.batches + 1)
        with stage(folder, records, fetches=not arguments.own_only) as (cluster, spark):
            for turn, order in enumerate((labels, labels[::-1])):
                for label in order:
                    writer = writer_of(spark, label, cluster, arguments.records, turn)
                    taken[label] += batches_s(writer, folder)[1 : arguments.batches + 1]
    medians = {label: statistics.median(seconds) for label, seconds in taken.items()}
    base = medians.get(OWN_TUNED, medians[RECORDS])
    ratios = {label: seconds / base for label, seconds in medians.items()}
    if arguments.json:
        print(json.dumps({"records": arguments.records, "seconds": taken, "ratios": ratios}))
        return
    for label, seconds in taken.items():
        rate = arguments.records / medians[label]
        print(f"{label:22} {medians[label]:6.2f} s {min(seconds):6.2f} to {max(seconds):.2f} {rate:12,.0f} records/s")
        print(f"{'':22} takes {ratios[label]:.2f} times as long as {labels[-1]}")


if __name__ == "__main__":
    main()
