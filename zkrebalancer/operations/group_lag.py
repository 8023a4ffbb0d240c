"""A group's lag: its stored offsets compared with the ends of Kafka's logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Offsets of one partition; None: unknown."""

    offset: int | None  # in ZooKeeper
    offset_in_kafka: int | None
    log_end_offset: int | None

    @property
    def lag(self) -> int | None:
        """The number of records after the higher of the two stored offsets."""
        stored = max((offset for offset in (self.offset, self.offset_in_kafka) if offset is not None), default=None)
        return None if stored is None or self.log_end_offset is None else max(0, self.log_end_offset - stored)


def read_lag(report: GroupReport, kafka: Mapping[str, str]) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition that the group owns or has an offset of; raises KafkaOffsetsError."""
    in_kafka = StoredInKafka(kafka, report.name).read()
    partitions = sorted(report.owned().keys() | report.offsets.keys() | in_kafka.keys())
    ends = kafka_offsets.known_log_ends(kafka, partitions)
    return {tp: PartitionLag(report.offsets.get(tp), in_kafka.get(tp), ends.get(tp)) for tp in partitions}
