"""Sorts the messages of one call of Kafka's client by partition, and measures them. C code does the loops."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

from confluent_kafka import Message

from zkrebalancer.protocol import fields

MESSAGE_OVERHEAD_BYTES = 256


def by_partition(messages: list[Message], *, has_one_topic: bool) -> dict[fields.TopicPartition, list[Message]]:
    """Sort messages by partition; fast if they come partition by partition, as they mostly do."""
    if has_one_topic:
        numbers = list(map(Message.partition, messages))
        if numbers.count(numbers[0]) == len(messages):
            return {(messages[0].topic() or "", numbers[0] or 0): messages}
    sorted_out: dict[fields.TopicPartition, list[Message]] = {}
    by_topic = [(messages[0].topic(), iter(messages))] if has_one_topic else groupby(messages, Message.topic)
    for topic, of_topic in by_topic:
        for number, stretch in groupby(of_topic, Message.partition):
            sorted_out.setdefault((topic or "", number or 0), []).extend(stretch)
    return sorted_out


def size_bytes(messages: list[Message]) -> int:
    """Return roughly the memory of messages: the lengths of the values, and an overhead for keys and headers."""
    return len(messages) * MESSAGE_OVERHEAD_BYTES + sum(map(len, messages))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would double the cost of fetching messages."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
