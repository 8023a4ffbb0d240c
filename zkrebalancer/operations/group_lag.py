"""A group's lag: its stored offsets compared with the ends of Kafka's logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.lag_age import first_unread_ms
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Offsets of one partition; None: unknown."""

    offset: int | None  # in ZooKeeper
    offset_in_kafka: int | None
    log_end_offset: int | None

    @property
    def stored(self) -> int | None:
        """The higher of the two stored offsets."""
        return max((offset for offset in (self.offset, self.offset_in_kafka) if offset is not None), default=None)

    @property
    def lag(self) -> int | None:
        """The number of records after the higher of the two stored offsets."""
        stored, end = self.stored, self.log_end_offset
        return None if stored is None or end is None else max(0, end - stored)


def read_lag(report: GroupReport, kafka: Mapping[str, str]) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition that the group owns or has an offset of; raises KafkaOffsetsError."""
    in_kafka = StoredInKafka(kafka, report.name).read()
    partitions = sorted(report.owned().keys() | report.offsets.keys() | in_kafka.keys())
    ends = kafka_offsets.known_log_ends(kafka, partitions)
    return {tp: PartitionLag(report.offsets.get(tp), in_kafka.get(tp), ends.get(tp)) for tp in partitions}


def read_lag_times(
    lag: Mapping[TopicPartition, PartitionLag], kafka: Mapping[str, str], now_ms: int
) -> dict[TopicPartition, float | None]:
    """Return partition -> seconds that its first unread record has been waiting, 0 if there is none, None: unknown.

    Raises:
        KafkaOffsetsError: the records cannot be read.

    """
    unread = {tp: known.stored for tp, known in lag.items() if known.lag and known.stored is not None}
    found = first_unread_ms(kafka, unread) if unread else {}
    times: dict[TopicPartition, float | None] = {}
    for tp, known in lag.items():
        if tp in found:
            at_ms = found[tp]
            times[tp] = 0.0 if at_ms is None else max(0, now_ms - at_ms) / 1_000
        else:
            times[tp] = 0.0 if known.lag == 0 else None
    return times
