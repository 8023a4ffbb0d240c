"""Offsets asked of Kafka: where partitions begin and end, and were at some time, and what a group stores there.

`kafka` are the settings of its clients, with `bootstrap.servers` among them (`runtime/kafka.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswerError
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.kafka import BOOTSTRAP, ConnectionErrors

ASK_TIMEOUT_S = 10.0
FIRST, END = -2, -1  # the times by which Kafka's ListOffsets names the two ends
NO_OFFSET = -1  # Kafka's answer when every record is older than the time asked for


class KafkaOffsetsError(RebalancerError):
    """The brokers gave no answer, or refused."""


def log_ends(
    kafka: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return partition -> (first offset, offset after the last record).

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    asked = list(partitions)
    first, end = _ask(kafka, asked, FIRST), _ask(kafka, asked, END)
    return {partition: (first[partition], end[partition]) for partition in asked}


def known_log_ends(kafka: Mapping[str, str], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset after the last record of those partitions that Kafka knows; raises KafkaOffsetsError."""
    answers = _answers(kafka, list(partitions), END)
    return {(tp.topic, tp.partition): tp.offset for tp in answers if tp.error is None and tp.offset >= 0}


def offsets_at(
    kafka: Mapping[str, str], partitions: list[TopicPartition], moment: datetime
) -> Mapping[TopicPartition, int]:
    """Return for each partition the first offset at or after `moment`, its end if there is none.

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    found = _ask(kafka, partitions, int(moment.timestamp() * 1_000))
    late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
    return {**found, **(_ask(kafka, late, END) if late else {})}


class StoredInKafka:
    """The offsets of one group in Kafka's own store."""

    def __init__(self, kafka: Mapping[str, str], group: str) -> None:
        """Prepare; nothing is asked yet."""
        self._group = group
        self._errors = ConnectionErrors()
        self._admin = AdminClient(self._errors.settings(kafka))

    def read(self) -> dict[TopicPartition, int]:
        """Return every stored offset; raises KafkaOffsetsError."""
        request = [ConsumerGroupTopicPartitions(self._group)]
        try:
            answers = self._admin.list_consumer_group_offsets(request, request_timeout=ASK_TIMEOUT_S)
            found = answers[self._group].result(2 * ASK_TIMEOUT_S).topic_partitions
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"no offsets of group {self._group} from Kafka: {self._reason(error)}") from None
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Give stored offsets new values; raises KafkaOffsetsError, also if only some were refused."""
        partitions = [KafkaPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(self._group, partitions)]
        try:
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=ASK_TIMEOUT_S)
            refused = [tp for tp in answers[self._group].result(2 * ASK_TIMEOUT_S).topic_partitions if tp.error]
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"Kafka did not take the offsets of {self._group}: {self._reason(error)}") from None
        if refused:
            where = f"{refused[0].topic}/{refused[0].partition}"
            raise KafkaOffsetsError(f"Kafka did not take the offset of {where}: {refused[0].error.str()}")

    def _reason(self, error: KafkaException | NoAnswerError) -> str:
        in_vain = f"no answer within {2 * ASK_TIMEOUT_S:g} s"
        text = error.args[0].str() if isinstance(error, KafkaException) else in_vain
        return f"{text}{self._errors.drain(self._admin)}"


def _ask(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    answers = _answers(kafka, partitions, time_ms)
    for answer in answers:
        if answer.error is not None:
            where = f"{answer.topic}/{answer.partition}"
            raise KafkaOffsetsError(f"no offset of {where} from Kafka at {kafka[BOOTSTRAP]}: {answer.error.str()}")
    return {(answer.topic, answer.partition): answer.offset for answer in answers}


def _answers(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> list[KafkaPartition]:
    errors = ConnectionErrors()
    consumer = _consumer(errors.settings(kafka))
    try:
        return consumer.offsets_for_times([KafkaPartition(*tp, time_ms) for tp in partitions], timeout=ASK_TIMEOUT_S)
    except KafkaException as error:
        reason = f"{error.args[0].str()}{errors.drain(consumer)}"
        raise KafkaOffsetsError(f"no offsets from Kafka at {kafka[BOOTSTRAP]}: {reason}") from None
    finally:
        consumer.close()


def _consumer(settings: dict[str, Any]) -> Consumer:
    return Consumer({**settings, "group.id": "zkrebalancer-offsets", "enable.auto.commit": False})
