"""The Spark data source `format("consumer_group")`; Spark finds it through the module `pyspark_consumer_group`."""

from zkrebalancer.pipeline.source.connector import kafka_records
from zkrebalancer.pipeline.source.datasource import ConsumerGroupSource, register
from zkrebalancer.pipeline.source.region import SparkRegion

__all__ = ["ConsumerGroupSource", "SparkRegion", "kafka_records", "register"]
