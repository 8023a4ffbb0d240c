"""The batch reader: what the group still has to read of its topics, looked at from outside.

It joins nobody and commits nothing: Spark does not tell a batch source that its query is done. Every partition is read
from the group's offset, or where there is none from `startingOffsets`, to the end of its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from consumer_agent.spark import Storage, parse_offset_reset
from zkrebalancer.observe import inspection
from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.kafka import END, FIRST, DataLossError, KafkaReadError, Logs
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.pipeline.source.stream import RangesPartition, read_ranges
from zkrebalancer.protocol import cluster_nodes
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk


class ConsumerGroupReader(DataSourceReader):
    """Reads what the group has not committed."""

    def __init__(self, options: Options) -> None:
        """Connect nothing yet."""
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ask for offsets and divide what lies between them into tasks; raises RebalancerError if nobody answers."""
        with Logs(self._options) as logs:
            partitions = logs.partitions(self._options.topics)
            ends = logs.offsets(partitions, END)
            stored = self._stored(logs, partitions)
            begins = {**self._where_none_is_stored(logs, set(partitions) - stored.keys()), **stored}
        ranges = [Range(*partition, begins[partition], ends[partition], None) for partition in partitions]
        lost = [whole for whole in ranges if whole.end < whole.begin]
        if lost and self._options.fail_on_data_loss:
            topic, partition, begin, end, _ = lost[0]
            text = f"{topic}/{partition}: the group is at {begin}, and Kafka's log ends at {end}"
            raise DataLossError(f"{text}; option failOnDataLoss=false passes it over")
        ranges = [whole for whole in ranges if whole.begin < whole.end]
        return [RangesPartition(task) for task in offsets.split(ranges, self._options.task_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what a task is given, in an executor."""
        return read_ranges(self._options, partition)

    def _where_none_is_stored(self, logs: Logs, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        where = parse_offset_reset(self._options.agent.get("auto_offset_reset", "earliest"))
        if where == "none" and partitions:
            topic, partition = min(partitions)
            text = f"{topic}/{partition}: no offset of group {self._options.group} is stored"
            raise KafkaReadError(f"{text}, and option startingOffsets is none")
        return logs.offsets(partitions, {"earliest": FIRST, "latest": END}.get(str(where), where))  # type: ignore[arg-type]  # a time

    def _stored(self, logs: Logs, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets in the topics; where both stores have one the higher counts."""
        options = self._options
        storage = Storage(options.agent.get("offsets_storage", Storage.ZOOKEEPER.value))
        found: dict[TopicPartition, int] = {}
        if storage.in_zookeeper:
            with BlockingZk(options.agent["zookeeper"]) as zk:
                for partition, content in inspection.offset_nodes(zk, options.group, options.topics):
                    found[partition] = cluster_nodes.decode_counter(f"offset of {partition}", content)
        if storage.in_kafka:
            for partition, offset in logs.committed(partitions).items():
                found[partition] = max(offset, found.get(partition, 0))
        return found
