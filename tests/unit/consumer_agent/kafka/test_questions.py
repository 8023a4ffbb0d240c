"""What the application asks Kafka: it waits until all is answered, asks again for what is missing, and names that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from consumer_agent import AsyncConsumer, ConfigurationError, Consumer, ConsumerStateError, KafkaUnavailableError
from consumer_agent.kafka.offset_queries import OffsetQueries
from tests.unit.consumer_agent.admin import NO_ANSWER, Admin

A, B = ("orders", 0), ("orders", 1)
SERVERS: Mapping[str, Any] = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g"}
Answers = Callable[[tuple[str, int], str | int], int]


def ends(_partition: tuple[str, int], where: str | int) -> int:
    return {"earliest": 3, "latest": 7}.get(str(where), -1)


class Broker(Admin):
    """Also describes topics: `orders` has two partitions, `secret` may not be read, others do not exist."""

    def describe_topics(self, topics: TopicCollection, **_: object) -> Any:
        (topic,) = topics.topic_names
        future: Future[Any] = Future()
        if topic == "orders":
            future.set_result(SimpleNamespace(partitions=[SimpleNamespace(id=number) for number in range(2)]))
        else:
            code = KafkaError.TOPIC_AUTHORIZATION_FAILED if topic == "secret" else KafkaError.UNKNOWN_TOPIC_OR_PART
            future.set_exception(KafkaException(KafkaError(code)))
        return {topic: future}


def consumer_of(answers: Answers) -> Consumer:
    """Return a consumer that asks this broker."""
    consumer = Consumer(**SERVERS)
    with mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=Broker(answers)):
        consumer._frontend.queries("test")
    return consumer


def test_ends_are_known_before_the_first_poll() -> None:
    with consumer_of(ends) as consumer:
        assert consumer.beginning_offsets([A, B]) == {A: 3, B: 3}
        assert consumer.end_offsets([B]) == {B: 7}
        assert (consumer.end_offsets(), consumer.lag()) == ({}, {})  # nothing is assigned
        assert consumer.partitions_for_topic("orders") == {0, 1}
        assert consumer.partitions_for_topic("order") is None


def test_a_time_after_the_last_record_is_the_end_and_that_is_asked_first() -> None:
    """A record that comes between the two answers must not be skipped."""
    asked: list[str | int] = []

    def answer(partition: tuple[str, int], where: str | int) -> int:
        asked.append(where)
        return -1 if where == 1 and partition == B else ends(partition, where) if where != 1 else 5

    with consumer_of(answer) as consumer:
        assert consumer.offsets_for_times({A: 1_000, B: 1_000}) == {A: 5, B: 7}
    assert asked == ["latest", "latest", 1, 1]


def test_asks_again_for_what_is_missing() -> None:
    asked: list[tuple[str, int]] = []

    def answer(partition: tuple[str, int], where: str | int) -> int:
        asked.append(partition)
        if len(asked) == 2:
            raise NO_ANSWER
        return ends(partition, where)

    with consumer_of(answer) as consumer:
        assert consumer.end_offsets([A, B]) == {A: 7, B: 7}
    assert sorted(asked[:2]) == [A, B]
    assert asked[2:] == [asked[1]]


def test_what_has_no_answer_is_named_with_the_reason() -> None:
    def answer(partition: tuple[str, int], where: str | int) -> int:
        if partition == B:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return ends(partition, where)

    with consumer_of(answer) as consumer:
        text = r"^end_offsets: no answer about 1 partitions, such as orders/1 \(Broker: Unknown topic or partition\)$"
        with pytest.raises(KafkaUnavailableError, match=text):
            consumer.end_offsets([A, B], timeout_s=2)
        text = r"^partitions_for_topic: no answer about topic secret \(Broker: Topic authorization failed\)$"
        with pytest.raises(KafkaUnavailableError, match=text):
            consumer.partitions_for_topic("secret", timeout_s=0)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda one: one.seek_to_end(), "seek_to_end is possible from the first poll on"),
        (lambda one: one.end_offsets("orders"), r"end_offsets: a partition must be \(topic, partition\), not 'o'"),
        (lambda one: one.end_offsets(timeout_s=None), "end_offsets: timeout_s must be a number of seconds"),
        (lambda one: one.offsets_for_times([A]), "offsets_for_times: times must map"),
        (lambda one: one.offsets_for_times({A: 1.5}), "offsets_for_times: the time of .* must be in milliseconds"),
        (lambda one: one.offsets_for_times({A: -1}), "offsets_for_times: the time of .* must be in milliseconds"),
        (lambda one: one.partitions_for_topic(b"orders"), "partitions_for_topic: a topic must be a string"),
    ],
)
def test_wrong_questions_are_refused(ask: Callable[[Consumer], object], complaint: str) -> None:
    with pytest.raises((ConfigurationError, ConsumerStateError), match=f"^{complaint}"):
        ask(Consumer(**SERVERS))


def test_a_closed_consumer_asks_nothing() -> None:
    consumer = consumer_of(ends)
    consumer.close()
    with pytest.raises(ConsumerStateError, match=r"^end_offsets: the consumer is closed"):
        consumer.end_offsets([A])


def test_closing_ends_a_question_that_waits() -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(**SERVERS)
        with mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=Broker(ends, holds=True)):
            consumer._frontend.queries("test")
        asking = asyncio.create_task(consumer.beginning_offsets([A]))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ConsumerStateError, match="the consumer is closed"):
            await asking

    asyncio.run(scenario())


def test_a_question_after_the_connections_are_closed_makes_no_new_ones() -> None:
    """Nothing would close them."""
    queries = OffsetQueries({"bootstrap.servers": "b:1"})
    queries.close()
    answers: list[object] = []
    with mock.patch("consumer_agent.kafka.offset_queries.AdminClient") as made:
        queries.describe("orders", lambda partitions, trouble: answers.append((partitions, trouble)))
        queries.ask([A], ["latest"], answers.append)
    assert answers == [(None, "the connections are closed"), {"latest": {A: None}}]
    assert not made.called
