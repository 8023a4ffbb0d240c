"""Offsets asked of Kafka: where partitions begin and end, and were at some time, and what a group stores there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswerError
from datetime import datetime

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

ASK_TIMEOUT_S = 10.0
FIRST, END = -2, -1  # the times by which Kafka's ListOffsets names the two ends
NO_OFFSET = -1  # Kafka's answer when every record is older than the time asked for


class KafkaOffsetsError(RebalancerError):
    """The brokers gave no answer, or refused."""


def log_ends(bootstrap: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return partition -> (first offset, offset after the last record).

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    asked = list(partitions)
    first, end = _ask(bootstrap, asked, FIRST), _ask(bootstrap, asked, END)
    return {partition: (first[partition], end[partition]) for partition in asked}


def known_log_ends(bootstrap: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset after the last record of those partitions that Kafka knows; raises KafkaOffsetsError."""
    answers = _answers(bootstrap, list(partitions), END)
    return {(tp.topic, tp.partition): tp.offset for tp in answers if tp.error is None and tp.offset >= 0}


def offsets_at(bootstrap: str, partitions: list[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int]:
    """Return for each partition the first offset at or after `moment`, its end if there is none.

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    found = _ask(bootstrap, partitions, int(moment.timestamp() * 1_000))
    late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
    return {**found, **(_ask(bootstrap, late, END) if late else {})}


class StoredInKafka:
    """The offsets of one group in Kafka's own store."""

    def __init__(self, bootstrap: str, group: str) -> None:
        """Prepare; nothing is asked yet."""
        self._bootstrap = bootstrap
        self._group = group
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def read(self) -> dict[TopicPartition, int]:
        """Return every stored offset; raises KafkaOffsetsError."""
        request = [ConsumerGroupTopicPartitions(self._group)]
        try:
            answers = self._admin.list_consumer_group_offsets(request, request_timeout=ASK_TIMEOUT_S)
            found = answers[self._group].result(2 * ASK_TIMEOUT_S).topic_partitions
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"no offsets of group {self._group} from Kafka: {_reason(error)}") from None
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Give stored offsets new values; raises KafkaOffsetsError, also if only some were refused."""
        partitions = [KafkaPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(self._group, partitions)]
        try:
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=ASK_TIMEOUT_S)
            refused = [tp for tp in answers[self._group].result(2 * ASK_TIMEOUT_S).topic_partitions if tp.error]
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"Kafka did not take the offsets of {self._group}: {_reason(error)}") from None
        if refused:
            where = f"{refused[0].topic}/{refused[0].partition}"
            raise KafkaOffsetsError(f"Kafka did not take the offset of {where}: {refused[0].error.str()}")


def _ask(bootstrap: str, partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    answers = _answers(bootstrap, partitions, time_ms)
    for answer in answers:
        if answer.error is not None:
            where = f"{answer.topic}/{answer.partition}"
            raise KafkaOffsetsError(f"no offset of {where} from Kafka at {bootstrap}: {answer.error.str()}")
    return {(answer.topic, answer.partition): answer.offset for answer in answers}


def _answers(bootstrap: str, partitions: list[TopicPartition], time_ms: int) -> list[KafkaPartition]:
    consumer = _consumer(bootstrap)
    try:
        return consumer.offsets_for_times([KafkaPartition(*tp, time_ms) for tp in partitions], timeout=ASK_TIMEOUT_S)
    except KafkaException as error:
        raise KafkaOffsetsError(f"no offsets from Kafka at {bootstrap}: {_reason(error)}") from None
    finally:
        consumer.close()


def _reason(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else f"no answer within {2 * ASK_TIMEOUT_S:g} s"


def _consumer(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "zkrebalancer-offsets", "enable.auto.commit": False})
