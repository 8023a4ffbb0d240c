"""Messages as Kafka's client hands them over, and a buffer that is never full."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message

from consumer_agent.runtime.record_buffer import BufferSettings
from zkrebalancer.protocol.fields import TopicPartition

ROOMY = BufferSettings(limit=100, max_records=1_000, max_bytes=1_000_000)


def messages(partition: TopicPartition, offsets: Iterable[int], value: bytes = b"v") -> list[Message]:
    """Return a message for each offset."""
    topic, number = partition
    return [Message(topic=topic, partition=number, offset=offset, value=value) for offset in offsets]
