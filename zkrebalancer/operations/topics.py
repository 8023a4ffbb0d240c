"""Creates a topic, and writes records into it, for trying things out.

`kafka` always means the settings of a Kafka client, `bootstrap.servers` included (`runtime/kafka.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswerError
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.kafka import BOOTSTRAP, ConnectionErrors, new_client

REQUEST_TIMEOUT_S = 10.0
VISIBLE_TIMEOUT_S = 15.0  # until every partition of a new topic has a leader
ASK_INTERVAL_S = 0.1
DELIVERY_TIMEOUT_MS = 30_000  # a record that no broker acknowledges within this time has failed
Note = Callable[[KafkaError | None, Message], None]
BROKERS_DEFAULT = -1  # as replication factor: Kafka uses the one in the brokers' configuration


class TopicError(RebalancerError):
    """A topic could not be created, does not exist, or did not accept every record."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Numbers of acknowledged records and of the topic's partitions."""

    records: int
    partitions: int
    elapsed_s: float


def create_topic(kafka: Mapping[str, str], topic: str, partitions: int, replication: int = BROKERS_DEFAULT) -> None:
    """Create a topic and return when each of its partitions has a leader.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
        TopicError: Kafka does not answer, rejects the topic (it may exist), or elects no leader in time.

    """
    errors = ConnectionErrors()
    admin = new_client(AdminClient, errors.settings(kafka))
    wanted = [NewTopic(topic, num_partitions=partitions, replication_factor=replication)]
    try:
        admin.create_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)[topic].result(2 * REQUEST_TIMEOUT_S)
    except (KafkaException, NoAnswerError) as error:
        raise TopicError(f"topic {topic} was not created: {_reason(error, kafka)}{errors.drain(admin)}") from None
    give_up_at = time.monotonic() + VISIBLE_TIMEOUT_S
    while _led_partitions(admin, topic) < partitions:
        if time.monotonic() > give_up_at:
            raise TopicError(f"topic {topic} was created, but not all its partitions have a leader yet")
        time.sleep(ASK_INTERVAL_S)


def produce(kafka: Mapping[str, str], topic: str, values: Iterable[bytes], per_second: float | None) -> Produced:
    """Write records without keys, to the partitions in turn; return when the brokers have acknowledged all of them.

    `per_second`: the rate, None for no limit. `values` may be endless: after KeyboardInterrupt, the call still waits
    for the acknowledgement of the records that it has sent.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
        TopicError: Kafka does not answer, the topic does not exist, or records were not acknowledged.

    """
    errors = ConnectionErrors()
    settings = {"linger.ms": 5, **errors.settings(kafka), "message.timeout.ms": DELIVERY_TIMEOUT_MS}
    producer = new_client(Producer, settings)
    partitions = _partition_count(producer, kafka, topic, errors)
    began_s = time.monotonic()
    failures: list[str] = []
    sent = 0

    def note(error: KafkaError | None, _record: Message) -> None:
        if error is not None:
            failures.append(error.str())

    try:
        for value in values:
            _wait_until(producer, began_s + sent / per_second if per_second else 0.0)
            _send(producer, topic, value, sent % partitions, note)
            sent += 1
    finally:
        unanswered = producer.flush(2 * DELIVERY_TIMEOUT_MS / 1_000)
    if failures or unanswered:
        reason = failures[0] if failures else "no answer"
        raise TopicError(f"topic {topic}: {len(failures) + unanswered} of {sent} records were not stored: {reason}")
    return Produced(sent, partitions, time.monotonic() - began_s)


def _send(producer: Producer, topic: str, value: bytes, partition: int, note: Note) -> None:
    """Send one record; wait while the client's queue is full."""
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=note)
        except BufferError:
            producer.poll(ASK_INTERVAL_S)  # records leave the queue when they are acknowledged or time out
        except KafkaException as error:
            raise TopicError(f"topic {topic}: a record was rejected: {error.args[0].str()}") from None
        else:
            producer.poll(0)
            return


def _wait_until(producer: Producer, moment_s: float) -> None:
    while (wait_s := moment_s - time.monotonic()) > 0:
        producer.poll(wait_s)


def _led_partitions(admin: AdminClient, topic: str) -> int:
    try:
        found = admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    except KafkaException:
        return 0
    return sum(partition.leader >= 0 for partition in found.partitions.values())


def _partition_count(producer: Producer, kafka: Mapping[str, str], topic: str, errors: ConnectionErrors) -> int:
    try:
        found = producer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        producer.poll(0)
        raise TopicError(f"topic {topic}: {_reason(error, kafka)}{errors.drain(producer)}") from None
    if found.error is not None or not found.partitions:
        raise TopicError(
            f"topic {topic} does not exist at {kafka[BOOTSTRAP]}: create it with `zkrebalancer topics create`"
        )
    return len(found.partitions)


def _reason(error: KafkaException | NoAnswerError, kafka: Mapping[str, str]) -> str:
    text = error.args[0].str() if isinstance(error, KafkaException) else f"no answer within {2 * REQUEST_TIMEOUT_S:g} s"
    return f"Kafka at {kafka[BOOTSTRAP]}: {text.rstrip('.')}"
