"""A member of a group that Kafka's group coordinator manages: confluent-kafka, with any of its protocols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from zkrebalancer.experiments.members.reader import KAFKA, Membership
from zkrebalancer.experiments.members.recorder import Received, Recorder
from zkrebalancer.protocol import fields


class KafkaReader:
    """Joins when created; the protocols differ only in their configuration."""

    def __init__(self, membership: Membership, recorder: Recorder) -> None:
        """Subscribe; `membership.config` selects the protocol."""
        self._recorder = recorder
        self._max_poll_records = membership.max_poll_records
        self._is_closing = False
        static = {} if membership.instance_id is None else {"group.instance.id": membership.instance_id}
        self._consumer = Consumer(
            {
                "bootstrap.servers": membership.bootstrap,
                "group.id": membership.group,
                "client.id": membership.member,
                **KAFKA,
                "on_commit": self._committed,
                **static,
                **membership.config,
            }
        )
        self._consumer.subscribe(
            list(membership.topics) if membership.pattern is None else [membership.pattern],
            on_assign=lambda _consumer, partitions: recorder.started(_pairs(partitions)),
            on_revoke=lambda _consumer, partitions: self._stopped(partitions, "revoked"),
            on_lost=lambda _consumer, partitions: self._stopped(partitions, "lost"),
        )

    def poll(self, timeout_s: float) -> Sequence[Received]:
        """Return the available records as soon as there is one; waiting for more would add to their delay."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return ()
        return [*_received([first]), *_received(self._consumer.consume(self._max_poll_records - 1, 0))]

    def close(self) -> None:
        """Leave the group; a static member keeps its partitions for its session."""
        self._is_closing = True
        self._consumer.close()

    def _stopped(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        self._recorder.stopped(_pairs(partitions), "closed" if self._is_closing else reason)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None:
            stored = [part for part in partitions if part.error is None and part.offset >= 0]
            self._recorder.committed(((part.topic, part.partition), part.offset) for part in stored)


def _pairs(partitions: Iterable[TopicPartition]) -> list[fields.TopicPartition]:
    return [(partition.topic, partition.partition) for partition in partitions]


def _received(messages: Iterable[Message]) -> list[Received]:
    """Return the records without messages of transient errors, such as an unavailable broker; raise fatal errors."""
    records = []
    for message in messages:
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)
        if error is None and topic is not None and partition is not None and offset is not None:
            records.append(Received(topic, partition, offset, message.value()))
    return records
