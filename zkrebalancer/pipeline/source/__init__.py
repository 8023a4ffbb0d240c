"""Spark as a member of a group: `spark.dataSource.register(ConsumerGroupSource)`, then `format("consumer_group")`."""

from zkrebalancer.pipeline.source.datasource import ConsumerGroupSource

__all__ = ["ConsumerGroupSource"]
