"""`python -m tests.benchmarks.spark_source`: how fast Spark reads a topic through a group, and through its own source.

One broker, one Spark on two cores with a sink that drops the rows. Each source reads the same topic in two queries, in
batches of the same size, the second time in the opposite order. The first batch of a query warms up the JVM and the
Python workers; the others are measured. Spark's connector needs a PySpark of its own version: if another one is
installed, that one is fetched into the cache, and the program starts itself again with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyspark
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.filling import fill_topic
from tests.benchmarks.servers import led
from tests.support import spark_connector
from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.jars import JarSource
from zkrebalancer.pipeline.session import spark_session
from zkrebalancer.pipeline.source import ConsumerGroupSource, kafka_records
from zkrebalancer.pipeline.source.connector import DEFAULTS

TOPIC = "benchmark"
RECORDS, RANGES = "consumer_group", "consumer_group, ranges"
OWN, OWN_TUNED = "built-in, defaults", "built-in, tuned"  # tuned: as `kafka_records` reads
PARTITIONS = 8
RECORD_BYTES = 100
SAMPLE_S = 1.0  # of processor times: a worker's are gone when it has ended


class Batches(NamedTuple):
    """What a query took."""

    seconds: list[float]  # of each batch
    processor_s: float  # of the driver, the JVM and Python workers, for all batches


def run_batches(writer: Any, checkpoint: Path) -> Batches:  # a DataStreamWriter
    """Read everything with one query."""
    before_s = processor_s({})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    used_s = processor_s({})
    while not query.awaitTermination(SAMPLE_S):
        used_s = processor_s(used_s)
    used_s = processor_s(used_s)
    taken = [each.durationMs for each in query.recentProgress if "addBatch" in each.durationMs]
    total_s = sum(seconds - before_s.get(process, 0.0) for process, seconds in used_s.items())
    return Batches([each["triggerExecution"] / 1_000 for each in taken], total_s)


def processor_s(known: dict[psutil.Process, float]) -> dict[psutil.Process, float]:
    """Return the processor time of this process, Spark's JVM and its Python workers; ended ones as last known."""
    assert SparkContext._gateway is not None
    jvm = psutil.Process(SparkContext._gateway.proc.pid)
    found = dict(known)
    for process in (psutil.Process(), jvm, *jvm.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process] = times.user + times.system
    return found


def writer_of(spark: SparkSession, label: str, cluster: LocalCluster, limit: int, turn: int, checkpoint: Path) -> Any:
    """Return the writer of a query that reads the topic and drops its rows."""
    kafka = {"kafka.bootstrap.servers": cluster.bootstrap}
    servers = {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap}
    rows = {RECORDS: "records", RANGES: "ranges"}
    if label in rows:
        options = {**servers, "group": f"{rows[label]}-{turn}", "topics": TOPIC, "rows": rows[label]}
        form = "consumer_group"
    else:
        options = {
            **kafka,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            **(DEFAULTS if label == OWN_TUNED else {}),
        }
        form = "kafka"
    read = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger=str(limit)).load()
    if label != RANGES:
        return read.writeStream.format("noop")

    def drop(batch: DataFrame, number: int) -> None:
        records = kafka_records(batch, kafka, checkpoint=str(checkpoint), number=number)
        records.write.format("noop").mode("overwrite").save()

    return read.writeStream.foreachBatch(drop)


@contextmanager
def stage(records: int, *, fetches: bool) -> Iterator[tuple[LocalCluster, SparkSession]]:
    """Yield a cluster with a full topic, and Spark with this project's source and, if `fetches`, Spark's own."""
    with led(4_000) as lab:
        lab.create_topic(TOPIC, PARTITIONS)
        report(f"writing {records:,} records")
        fill_topic(lab.cluster.bootstrap, TOPIC, PARTITIONS, records, RECORD_BYTES)
        with spark_session("local[2]", "2g", {}) as spark:
            if fetches:
                spark_connector.add_to(spark)
            spark.dataSource.register(ConsumerGroupSource)
            yield lab.cluster, spark


def report(text: str) -> None:
    """Tell on stderr how far the benchmark is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def require_pyspark(version: str) -> None:
    """Start this program again with a PySpark of this version, unless it is the installed one."""
    if pyspark.__version__ == version:
        return
    source = JarSource.of(None, None, report)
    folder = source.cache / f"pyspark-{version}"

    def install(target: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        subprocess.run([*pip, "--target", str(target), f"pyspark=={version}"], check=True)

    if not folder.exists():
        report(f"fetching PySpark {version}, the connector's version")
    make_once(folder, source.cache / "lock", install, report)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "tests.benchmarks.spark_source", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)  # noqa: S606


def measure(labels: tuple[str, ...], records: int, batches: int) -> dict[str, list[Batches]]:
    """Run each source twice, in both orders, and return the measured batches of each query."""
    found: dict[str, list[Batches]] = {label: [] for label in labels}
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-spark-source-") as name:
        folder = Path(name)
        with stage(records * (batches + 1), fetches=OWN in labels) as (cluster, spark):
            for turn, order in enumerate((labels, labels[::-1])):
                for label in order:
                    checkpoint = folder / f"{label}-{turn}".replace(" ", "")
                    taken = run_batches(writer_of(spark, label, cluster, records, turn, checkpoint), checkpoint)
                    found[label].append(Batches(taken.seconds[1 : batches + 1], taken.processor_s))
                    report(f"{label}: {taken.seconds} s, {taken.processor_s:.1f} s of processor time")
    return found


def main() -> None:
    """Measure; print a line for each source and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="records per batch")
    parser.add_argument("--batches", type=int, default=3, help="measured batches per query")
    parser.add_argument("--own-only", action="store_true", help="without Spark's own source, which needs a download")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    arguments = parser.parse_args()
    if not arguments.own_only:
        require_pyspark(spark_connector.VERSION)
    labels = (RECORDS,) if arguments.own_only else (RECORDS, RANGES, OWN, OWN_TUNED)
    found = measure(labels, arguments.records, arguments.batches)
    taken = {label: [seconds for query in queries for seconds in query.seconds] for label, queries in found.items()}
    medians = {label: statistics.median(seconds) for label, seconds in taken.items()}
    base = medians.get(OWN_TUNED, medians[RECORDS])
    ratios = {label: seconds / base for label, seconds in medians.items()}
    if arguments.json:
        print(json.dumps({"records": arguments.records, "seconds": taken, "ratios": ratios}))
        return
    print(f"PySpark {pyspark.__version__}, batches of {arguments.records:,} records, load {os.getloadavg()[0]:.1f}")
    for label, seconds in taken.items():
        rate = arguments.records / medians[label]
        used_s = statistics.median(query.processor_s for query in found[label]) / (arguments.batches + 1)
        print(f"{label:22} {medians[label]:6.2f} s {min(seconds):6.2f} to {max(seconds):.2f} {rate:12,.0f} records/s")
        print(f"{'':22} {ratios[label]:.2f} times as long as {labels[-1]}; {used_s:.2f} s of processor time per batch")


if __name__ == "__main__":
    main()
