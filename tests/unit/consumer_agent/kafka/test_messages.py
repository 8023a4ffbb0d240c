"""Messages of one call of Kafka's client, by partition: all of them, in order, whatever they are mixed with."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Message

from consumer_agent.kafka.messages import by_partition


def mixed(seed: int, topics: list[str]) -> list[Message]:
    """Return messages of some partitions of each topic, each of them in offset order, in stretches of any length."""
    chosen = random.Random(seed)
    ends: dict[tuple[str, int], int] = {}
    messages: list[Message] = []
    while len(messages) < 60:
        place = (chosen.choice(topics), chosen.randrange(3))
        for _ in range(chosen.choice([1, 1, 2, 20])):
            ends[place] = ends.get(place, 0) + 1
            messages.append(Message(topic=place[0], partition=place[1], offset=ends[place]))
    return messages


@pytest.mark.parametrize("topics", [["t"], ["t", "u"]], ids=["one topic", "two topics"])
@pytest.mark.parametrize("seed", range(5))
def test_every_message_is_with_its_partition_in_order(seed: int, topics: list[str]) -> None:
    messages = mixed(seed, topics)
    expected: dict[tuple[str | None, int | None], list[int | None]] = {}
    for message in messages:
        expected.setdefault((message.topic(), message.partition()), []).append(message.offset())
    sorted_out = by_partition(messages, has_one_topic=len(topics) == 1)
    assert {place: [message.offset() for message in found] for place, found in sorted_out.items()} == expected


@pytest.mark.parametrize("has_one_topic", [True, False])
def test_messages_of_one_partition_are_one_list(has_one_topic: bool) -> None:
    messages = [Message(topic="t", partition=4, offset=offset) for offset in range(3)]
    assert by_partition(messages, has_one_topic=has_one_topic) == {("t", 4): messages}
