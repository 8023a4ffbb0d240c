"""Reads offsets from Kafka: the ends of partitions, offsets at a time, and a group's committed offsets.

`kafka` always means the settings of a Kafka client, `bootstrap.servers` included (`runtime/kafka.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswerError
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.kafka import BOOTSTRAP, UNREACHED_S, ConnectionErrors

REQUEST_TIMEOUT_S = 10.0
FIRST, END = -2, -1  # special times of Kafka's ListOffsets request
NO_OFFSET = -1  # Kafka's answer if all records are older than the requested time


class KafkaOffsetsError(RebalancerError):
    """The brokers did not answer, or rejected the request."""


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
    """Return partition -> offset after the last record, without unknown partitions; raises KafkaOffsetsError."""
    answers = _answers(kafka, list(partitions), END)
    return {(tp.topic, tp.partition): tp.offset for tp in answers if tp.error is None and tp.offset >= 0}


def offsets_at(
    kafka: Mapping[str, str], partitions: list[TopicPartition], moment: datetime
) -> Mapping[TopicPartition, int]:
    """Return partition -> first offset at or after `moment`, or the partition's end if there is none.

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    found = _ask(kafka, partitions, int(moment.timestamp() * 1_000))
    late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
    return {**found, **(_ask(kafka, late, END) if late else {})}


class StoredInKafka:
    """The committed offsets of one group in Kafka."""

    def __init__(self, kafka: Mapping[str, str], group: str) -> None:
        """Create a client; sends no request yet."""
        self._group = group
        self._errors = ConnectionErrors()
        self._settings = self._errors.settings(kafka)
        self._admin = AdminClient(self._settings)

    def read(self) -> dict[TopicPartition, int]:
        """Return every committed offset; raises KafkaOffsetsError."""
        request = [ConsumerGroupTopicPartitions(self._group)]
        try:
            answers = self._admin.list_consumer_group_offsets(request, request_timeout=UNREACHED_S)
            found = answers[self._group].result(REQUEST_TIMEOUT_S).topic_partitions
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"no offsets of group {self._group} from Kafka: {self._reason(error)}") from None
        return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def refuse_members(self) -> None:
        """Raise KafkaOffsetsError if the group has members of Kafka's own protocols: they would keep committing."""
        try:
            answers = self._admin.describe_consumer_groups([self._group], request_timeout=UNREACHED_S)
            members = answers[self._group].result(REQUEST_TIMEOUT_S).members
        except (KafkaException, NoAnswerError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            raise KafkaOffsetsError(f"no members of group {self._group} from Kafka: {self._reason(error)}") from None
        if members:
            some = ", ".join(member.client_id for member in members[:3])
            raise KafkaOffsetsError(f"group {self._group} has members in Kafka ({some}); stop them first")

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace committed offsets; raises KafkaOffsetsError, also if only some were rejected."""
        partitions = [KafkaPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(self._group, partitions)]
        try:
            answers = self._admin.alter_consumer_group_offsets(request, request_timeout=UNREACHED_S)
            rejected = [tp for tp in answers[self._group].result(REQUEST_TIMEOUT_S).topic_partitions if tp.error]
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"Kafka rejected the offsets of {self._group}: {self._reason(error)}") from None
        if rejected:
            where = f"{rejected[0].topic}/{rejected[0].partition}"
            raise KafkaOffsetsError(f"Kafka rejected the offset of {where}: {rejected[0].error.str()}")

    def _reason(self, error: KafkaException | NoAnswerError) -> str:
        if isinstance(error, KafkaException):
            return f"{error.args[0].str()}{self._errors.drain(self._admin)}"
        reason = f"no answer within {REQUEST_TIMEOUT_S:g} s{self._errors.drain(self._admin)}"
        self._admin = AdminClient(self._settings)  # the former one, now closed, would send the request later
        return reason


def _ask(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    answers = _answers(kafka, partitions, time_ms)
    for answer in answers:
        if answer.error is not None or answer.offset < NO_OFFSET:  # an invalid offset: its leader did not answer
            where, why = f"{answer.topic}/{answer.partition}", answer.error.str() if answer.error else "no answer"
            raise KafkaOffsetsError(f"no offset of {where} from Kafka at {kafka[BOOTSTRAP]}: {why}")
    return {(answer.topic, answer.partition): answer.offset for answer in answers}


def _answers(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> list[KafkaPartition]:
    errors = ConnectionErrors()
    consumer = _consumer(errors.settings(kafka))
    asked = [KafkaPartition(*partition, time_ms) for partition in partitions]
    try:
        return consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        reason = f"{error.args[0].str()}{errors.drain(consumer)}"
        raise KafkaOffsetsError(f"no offsets from Kafka at {kafka[BOOTSTRAP]}: {reason}") from None
    finally:
        consumer.close()


def _consumer(settings: dict[str, Any]) -> Consumer:
    return Consumer({**settings, "group.id": "zkrebalancer-offsets", "enable.auto.commit": False})
