"""Spark as a member of a group: `format("consumer_group")`, which Spark knows by `pyspark_consumer_group`."""

from zkrebalancer.pipeline.source.datasource import ConsumerGroupSource

__all__ = ["ConsumerGroupSource"]
