"""Spark's own Kafka source, fetched like the servers' jars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.2.0"  # there may be none yet for the newest PySpark
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", VERSION),
    ("org.apache.kafka", "kafka-clients", "4.1.0"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
SUMS = {
    f"org.apache.spark-spark-sql-kafka-0-10_2.13-{VERSION}.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    f"org.apache.spark-spark-token-provider-kafka-0-10_2.13-{VERSION}.jar": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    "org.apache.kafka-kafka-clients-4.1.0.jar": "eb74709dc3be35e06208827860c87a94872e8a4b00f466880670785c85a20627",
    "org.apache.commons-commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
}


def add_to(spark: SparkSession) -> None:
    """Make `format("kafka")` known to a session."""
    source = jars.JarSource.of(None, None, lambda _line: None)
    module = jars.ivy_module(*ARTIFACTS, transitive=False)
    folder = jars.fetched(f"Spark connector {VERSION}", module, SUMS, find_java(), source)
    for name in SUMS:
        spark.sql(f"ADD JAR '{folder / name}'")
