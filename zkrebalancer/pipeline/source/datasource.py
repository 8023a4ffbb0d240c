"""The entry point of `format("consumer_group")`: options, columns, readers."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from zkrebalancer.pipeline.source.batch import ConsumerGroupReader
from zkrebalancer.pipeline.source.columns import RANGE_COLUMNS, spark_schema
from zkrebalancer.pipeline.source.options import DRIVER_CORES, parse
from zkrebalancer.pipeline.source.remote import is_remote
from zkrebalancer.pipeline.source.stream import ConsumerGroupStreamReader


class ConsumerGroupSource(DataSource):
    """Kafka topics, shared with the other members of a consumer group (`docs/how-to/spark.md`)."""

    cores = DRIVER_CORES  # Spark plans in a Python process that cannot ask for those of the executors

    def __init__(self, options: dict[str, str]) -> None:
        """Check the options.

        Raises:
            ConfigurationError: names every option that is unknown, missing or not allowed.

        """
        super().__init__(options)
        self._parsed = parse(options, self.cores)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "consumer_group"

    def schema(self) -> str:
        """Return the columns."""
        return RANGE_COLUMNS if self._parsed.gives_ranges else spark_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> ConsumerGroupReader:  # noqa: ARG002  # Spark's name
        """Return the reader of a batch query."""
        return ConsumerGroupReader(self._parsed)

    def streamReader(self, schema: StructType) -> ConsumerGroupStreamReader:  # noqa: ARG002, N802  # Spark's names
        """Return the reader of a streaming query."""
        return ConsumerGroupStreamReader(self._parsed)


def register(spark: SparkSession) -> None:
    """Make the format known to a session; by default, a batch has as many tasks as its executors have cores by now.

    A session of Spark Connect does not say how many these are: there, those of the server's machine count.
    """
    if is_remote(spark):
        spark.dataSource.register(ConsumerGroupSource)
        return

    class OfCluster(ConsumerGroupSource):
        cores = executor_cores(spark)

    spark.dataSource.register(OfCluster)


def executor_cores(spark: SparkSession) -> int:
    """Return how many cores the executors of a session have by now; at least 1."""
    return max(1, spark.sparkContext.defaultParallelism)
