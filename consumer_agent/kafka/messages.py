"""What Kafka's client hands over in one go, by partition and by size, in functions of C that go over whole columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

from confluent_kafka import Message

from zkrebalancer.protocol import fields

MESSAGE_OVERHEAD_BYTES = 256


def by_partition(messages: list[Message], *, has_one_topic: bool) -> dict[fields.TopicPartition, list[Message]]:
    """Sort messages; they mostly come partition by partition."""
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
    """Return about how much memory messages take, keys and headers as overhead; a message's length is its value's."""
    return len(messages) * MESSAGE_OVERHEAD_BYTES + sum(map(len, messages))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector from walking over messages while they come: it doubles what they cost."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
