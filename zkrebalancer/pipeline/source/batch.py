"""The batch reader: reads the records that the group has not yet committed.

It does not join the group and commits nothing, because a batch source does not learn when its query has finished.
Each partition is read from the group's offset, or without one from `startingOffsets`, to the end of its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from consumer_agent.spark import Storage, is_of_another_topic, look_at_kafka, parse_offset_reset
from zkrebalancer.observe import inspection
from zkrebalancer.pipeline.source.incarnations import present_identities
from zkrebalancer.pipeline.source.kafka import END, FIRST, DataLossError, KafkaReadError, Logs
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.pipeline.source.stream import read_ranges, tasks
from zkrebalancer.protocol import cluster_nodes
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

LOOK_TIMEOUT_S = 30.0  # the coordinator of the group in Kafka may just move


class ConsumerGroupReader(DataSourceReader):
    """Reads the records from the group's committed offsets to the ends of the logs."""

    def __init__(self, options: Options) -> None:
        """Store the options; nothing is connected yet."""
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Divide the unread offsets into tasks.

        Raises:
            RebalancerError: ZooKeeper or Kafka does not answer, or Kafka has offsets or members of the group.

        """
        with Logs(self._options) as logs:
            partitions = logs.partitions(self._options.topics)
            stored = self._stored(logs, partitions)
            self._look_at_kafka({partition: stored.get(partition) for partition in partitions})
            begins = {**self._where_none_is_stored(logs, set(partitions) - stored.keys()), **stored}
            ends = logs.offsets(partitions, END)  # after all others: members may commit what comes meanwhile
        ranges = [Range(*partition, begins[partition], ends[partition], None) for partition in partitions]
        lost = [whole for whole in ranges if whole.end < whole.begin]
        if lost and self._options.fail_on_data_loss:
            topic, partition, begin, end = lost[0][:4]
            text = f"{topic}/{partition}: the group is at {begin}, and Kafka's log ends at {end}"
            raise DataLossError(f"{text}; option failOnDataLoss=false skips the partition")
        ranges = [whole for whole in ranges if whole.begin < whole.end]
        return [*tasks(self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task, in an executor."""
        return read_ranges(self._options, partition)

    def _where_none_is_stored(self, logs: Logs, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        where = parse_offset_reset(self._options.agent.get("auto_offset_reset", "earliest"))
        if where == "none" and partitions:
            topic, partition = min(partitions)
            text = f"{topic}/{partition}: no offset of group {self._options.group} is stored"
            raise KafkaReadError(f"{text}, and option startingOffsets is none")
        return logs.offsets(partitions, {"earliest": FIRST, "latest": END}.get(str(where), where))  # type: ignore[arg-type]  # a time

    @property
    def _storage(self) -> Storage:
        return Storage(self._options.agent.get("offsets_storage", Storage.ZOOKEEPER.value))

    def _look_at_kafka(self, begins: Mapping[TopicPartition, int | None]) -> None:
        """Fail where a streaming query would: it would read what plain Kafka consumers of the group have read."""
        agent = self._options.agent
        if not self._storage.in_kafka and not agent.get("ignore_kafka_offsets"):
            look_at_kafka(agent, begins, LOOK_TIMEOUT_S)

    def _stored(self, logs: Logs, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets in the topics; if both stores have one, the higher one.

        Those of a deleted topic of the same name say nothing about the present one.
        """
        options, storage = self._options, self._storage
        found: dict[TopicPartition, int] = {}
        with BlockingZk(options.agent["zookeeper"]) as zk:
            if storage.in_zookeeper:
                present = {*options.topics} - inspection.former_topics(zk, options.group, options.topics)
                for partition, content in inspection.offset_nodes(zk, options.group, present):
                    found[partition] = cluster_nodes.decode_counter(f"offset of {partition}", content)
            identities = present_identities(zk, options.topics) if storage.in_kafka else {}
        for partition, (offset, metadata) in (logs.committed(partitions) if storage.in_kafka else {}).items():
            if not is_of_another_topic(metadata, identities.get(partition[0], "")):
                found[partition] = max(offset, found.get(partition, 0))
        return found
