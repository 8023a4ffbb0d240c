"""Spark's own Kafka source, fetched like the servers' jars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.3.0"  # PySpark's
NAMES = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13")
SUMS: dict[str, str] = {}


def add_to(spark: SparkSession) -> None:
    """Make `format("kafka")` known to a session."""
    module = jars.ivy_module(*(("org.apache.spark", name, VERSION) for name in NAMES), transitive=False)
    source = jars.JarSource.of(None, None, lambda _line: None)
    folder = jars.fetched(f"Spark connector {VERSION}", module, SUMS, find_java(), source)
    for name in SUMS:
        spark.sql(f"ADD JAR '{folder / name}'")
