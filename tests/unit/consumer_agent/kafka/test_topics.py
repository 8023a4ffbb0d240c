"""What Kafka's client is made to know of topics before their partitions are fetched."""

from __future__ import annotations

from unittest import mock

from confluent_kafka import KafkaError, KafkaException

from consumer_agent.kafka.topics import Topics


class Client:
    """Stands for librdkafka: topics with their numbers of partitions; `away` ones are not described."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.away: set[str] = set()
        self.described: list[str] = []

    def list_topics(self, topic: str, **_: float) -> mock.Mock:
        self.described.append(topic)
        if topic in self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        described = mock.Mock(partitions=dict.fromkeys(range(self.counts[topic])))
        return mock.Mock(topics={topic: described})


def test_partitions_that_are_added_to_a_known_topic_are_described_once() -> None:
    client = Client(orders=2)
    topics = Topics(client, "b:1", lambda: None)  # type: ignore[arg-type]  # it has what is used
    topics.describe_added([("orders", 0), ("orders", 1)])
    topics.describe_added([("orders", 1)])
    assert client.described == ["orders"]
    client.counts["orders"] = 3
    topics.describe_added([("orders", 2)])
    topics.describe_added([("orders", 2)])
    assert client.described == ["orders", "orders"]


def test_a_topic_that_is_not_described_costs_the_others_nothing_and_is_described_with_the_next_change() -> None:
    client = Client(orders=1, payments=1)
    client.away.add("orders")
    topics = Topics(client, "b:1", lambda: None)  # type: ignore[arg-type]
    topics.describe_added([("orders", 0), ("payments", 0)])
    client.away.clear()
    topics.describe_added([("orders", 0), ("payments", 0)])
    assert client.described == ["orders", "payments", "orders"]
