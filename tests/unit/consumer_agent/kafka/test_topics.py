"""What Kafka's client is made to know of topics before their partitions are fetched."""

from __future__ import annotations

import logging
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from consumer_agent.kafka.complaints import Complaints
from consumer_agent.kafka.topics import MAX_KNOWN_TOPICS, Topics
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY, messages


class Client:
    """Stands for librdkafka: topics with their numbers of partitions; `away` ones are not described."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.away: set[str] = set()
        self.described: list[str] = []
        self.error: KafkaError | None = None

    def list_topics(self, topic: str, **_: float) -> mock.Mock:
        self.described.append(topic)
        if topic in self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        partitions = dict.fromkeys(range(self.counts[topic]), mock.Mock(leader=-1))
        described = mock.Mock(partitions=partitions, error=self.error)
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


def test_more_topics_than_can_be_described_in_time_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is described when its partitions are assigned; but if none was, no broker has answered."""
    names = [f"t{number}" for number in range(5)]
    client = Client(**dict.fromkeys(names, 1))
    monkeypatch.setattr("consumer_agent.kafka.topics.time.monotonic", lambda: float(len(client.described)))
    monkeypatch.setattr("consumer_agent.kafka.topics.CONNECT_TIMEOUT_S", 2.5)
    Topics(client, "b:1", lambda: None).connect(names)  # type: ignore[arg-type]
    assert client.described == names[:3]
    client.away.add("t1")
    client.described.clear()
    Topics(client, "b:1", lambda: None).connect(names)  # type: ignore[arg-type]
    assert client.described == names[:2]
    with pytest.raises(KafkaException):
        Topics(client, "b:1", lambda: None).connect(["t1", "t0"])  # type: ignore[arg-type]
    assert not caplog.records


def test_why_a_topic_is_not_described_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(t=0)
    client.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    Topics(client, "b:1", lambda: None).connect(["t"])  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "topic t at b:1: the right to DESCRIBE the topic is missing (Broker: Topic authorization failed); still trying"
    ]


def test_many_topics_of_one_change_are_not_described_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(**{f"t{number}": 1 for number in range(5)})
    monkeypatch.setattr("consumer_agent.kafka.topics.time.monotonic", lambda: 0.04 * len(client.described))
    Topics(client, "b:1", lambda: None).describe_added([(name, 0) for name in client.counts])  # type: ignore[arg-type]
    assert client.described == ["t0", "t1", "t2"]


def test_topics_that_come_and_go_are_not_all_remembered() -> None:
    names = [f"t{number}" for number in range(MAX_KNOWN_TOPICS + 10)]
    topics = Topics(Client(**dict.fromkeys(names, 1)), "b:1", lambda: None)  # type: ignore[arg-type]  # as above
    for name in names:
        topics.describe_added([(name, 0)])
    assert len(topics._counts) <= MAX_KNOWN_TOPICS + 1


@pytest.mark.parametrize(
    ("code", "level"),
    [(KafkaError.GROUP_AUTHORIZATION_FAILED, logging.INFO), (KafkaError._FATAL, logging.WARNING)],
)
def test_an_error_about_no_partition_is_told_once(code: int, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """In `Complaints.note_partition`, tell each time, or all at info: only offsets need the right to a group."""
    caplog.set_level(logging.INFO)
    shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
    complaints, message = Complaints("b:1", shared, lambda: False), Message(error=KafkaError(code))
    for _ in range(2):
        complaints.note_partition(message, message.error())
    (record,) = caplog.records
    assert record.levelno == level
    assert "None" not in record.getMessage()
    assert shared.unreadable == set()


def test_complaints_about_partitions_that_are_given_up_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
    complaints, (message,) = Complaints("b:1", shared, lambda: False), messages(("orders", 0), [1])
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    for _ in range(2):
        complaints.note_partition(message, error)
        complaints.note_partition(message, error)
        complaints.forget({("orders", 0)})
    assert len(caplog.records) == 2
    assert complaints._noted == set()
    assert shared.unreadable == set()
