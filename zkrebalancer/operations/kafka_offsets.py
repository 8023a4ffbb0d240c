"""Where a partition begins and ends, and where it was at some time, asked of Kafka's brokers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

ASK_TIMEOUT_S = 10.0
NO_OFFSET = -1  # Kafka's answer when every record is older than the time asked for


class KafkaOffsetsError(RebalancerError):
    """The brokers gave no answer."""


def log_ends(bootstrap: str, partitions: list[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return partition -> (first offset, offset after the last record); raises KafkaOffsetsError."""
    consumer = _consumer(bootstrap)
    try:
        return {
            (topic, number): consumer.get_watermark_offsets(KafkaPartition(topic, number), timeout=ASK_TIMEOUT_S)
            for topic, number in partitions
        }
    except (KafkaException, TypeError) as error:  # TypeError: None, on a time-out
        raise KafkaOffsetsError(f"no offsets from Kafka at {bootstrap}: {error}") from None
    finally:
        consumer.close()


def offsets_at(bootstrap: str, partitions: list[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int]:
    """Return for each partition the first offset at or after `moment`, its end if there is none.

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    timestamp_ms = int(moment.timestamp() * 1_000)
    consumer = _consumer(bootstrap)
    try:
        asked = [KafkaPartition(topic, number, timestamp_ms) for topic, number in partitions]
        answers = consumer.offsets_for_times(asked, timeout=ASK_TIMEOUT_S)
    except KafkaException as error:
        raise KafkaOffsetsError(f"no offsets from Kafka at {bootstrap}: {error}") from None
    finally:
        consumer.close()
    for answer in answers:
        if answer.error is not None:
            where = f"{answer.topic}/{answer.partition}"
            raise KafkaOffsetsError(f"no offset of {where} from Kafka at {bootstrap}: {answer.error.str()}")
    found = {(answer.topic, answer.partition): answer.offset for answer in answers}
    late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
    ends = log_ends(bootstrap, late) if late else {}
    return {partition: ends[partition][1] if partition in ends else offset for partition, offset in found.items()}


def _consumer(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "zkrebalancer-offsets", "enable.auto.commit": False})
