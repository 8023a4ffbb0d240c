"""Lag as time: how long the first unread record of a partition has been waiting, by the record's own timestamp."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError, in_thread, new_consumer
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.kafka import BOOTSTRAP, ConnectionErrors

READ_TIMEOUT_S = 10.0  # for one record of each partition
MAX_AT_ONCE = 500  # messages that are taken from the client at once
FETCH_BYTES = 65_536  # of a partition; a larger record is fetched nevertheless


def first_unread_ms(kafka: Mapping[str, str], unread: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """Return partition -> timestamp of the first record at or after an offset, milliseconds since the epoch.

    None: there is no such record, for example only a transaction's marker. A partition is missing if its record
    has no timestamp, could not be read in time, or may be in an open transaction.

    Raises:
        KafkaOffsetsError: the client could not be used at all.

    """
    return in_thread(partial(_first_unread_ms, kafka, unread))


def _first_unread_ms(
    kafka: Mapping[str, str], unread: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    errors = ConnectionErrors()
    consumer = new_consumer(
        {
            **errors.settings(kafka),
            "group.id": "zkrebalancer-offsets",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1,
            "fetch.message.max.bytes": FETCH_BYTES,
        }
    )
    try:
        consumer.assign([KafkaPartition(*partition, offset) for partition, offset in sorted(unread.items())])
        return _read(consumer, set(unread))
    except KafkaException as error:
        reason = f"{error.args[0].str()}{errors.drain(consumer)}"
        raise KafkaOffsetsError(f"no records from Kafka at {kafka[BOOTSTRAP]}: {reason}") from None
    finally:
        consumer.close()


def _read(consumer: Consumer, waiting: set[TopicPartition]) -> dict[TopicPartition, int | None]:
    found: dict[TopicPartition, int | None] = {}
    deadline = time.monotonic() + READ_TIMEOUT_S
    while waiting and time.monotonic() < deadline:
        done: list[KafkaPartition] = []
        for message in consumer.consume(MAX_AT_ONCE, 0.2):
            partition = str(message.topic()), int(message.partition() or 0)
            error = message.error()
            if partition not in waiting:
                continue
            waiting.discard(partition)
            done.append(KafkaPartition(*partition))
            if error is None:
                kind, timestamp_ms = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE:
                    found[partition] = timestamp_ms
            elif error.code() == KafkaError._PARTITION_EOF and not _ends_later(consumer, message):  # noqa: SLF001
                found[partition] = None
        if done:
            consumer.pause(done)
    return found


def _ends_later(consumer: Consumer, at_end: Message) -> bool:
    """Return whether there is more behind the end of what may be read: there, a transaction is open."""
    partition = KafkaPartition(str(at_end.topic()), int(at_end.partition() or 0))
    _first, end = consumer.get_watermark_offsets(partition, cached=True)  # of the last fetch, in any isolation
    return int(at_end.offset() or 0) < int(end)
