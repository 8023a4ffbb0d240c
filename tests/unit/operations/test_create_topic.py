"""A topic is ready once each of its partitions has a leader; with a fake of Kafka's admin client."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from zkrebalancer.operations import topics
from zkrebalancer.operations.topics import TopicError, create_topic
from zkrebalancer.protocol.errors import ConfigurationError

KAFKA = {"bootstrap.servers": "b:1"}
EXISTS = KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "it exists."))


class Admin:
    """A fake admin client: `error` is its answer to a creation; `leaders` those of each later question."""

    def __init__(self, leaders: list[list[int] | None], error: Exception | None = None) -> None:
        self.leaders = leaders
        self.error = error
        self.created: list[Any] = []
        self.timeouts: list[float] = []

    def create_topics(self, wanted: list[Any], *, request_timeout: float) -> dict[str, Future[None]]:
        self.created += wanted
        self.timeouts.append(request_timeout)
        answer: Future[None] = Future()
        if self.error is None:
            answer.set_result(None)
        elif not isinstance(self.error, TimeoutError):
            answer.set_exception(self.error)
        return {topic.topic: answer for topic in wanted}

    def list_topics(self, topic: str, *, timeout: float) -> object:
        self.timeouts.append(timeout)
        leaders = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        if leaders is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        found = {number: SimpleNamespace(leader=leader) for number, leader in enumerate(leaders)}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=found)})

    def poll(self, _timeout: float) -> int:
        return 0


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only while the operation waits."""
    waits: list[float] = []
    monkeypatch.setattr("zkrebalancer.operations.topics.time.sleep", waits.append)
    monkeypatch.setattr("zkrebalancer.operations.topics.time.monotonic", lambda: sum(waits))
    return waits


def use(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> Admin:
    monkeypatch.setattr(topics, "AdminClient", lambda _settings: admin)
    return admin


def test_a_file_that_has_gone_since_the_settings_were_checked_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^no client of Kafka at b:1: .*ssl\.ca\.location"):
        create_topic({**KAFKA, "security.protocol": "ssl", "ssl.ca.location": "/missing"}, "t", 1)


def test_it_waits_until_each_partition_has_a_leader(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    admin = use(monkeypatch, Admin([[], None, [0, -1], [1, 0]]))

    create_topic(KAFKA, "t", 2, 3)

    (topic,) = admin.created
    assert (topic.topic, topic.num_partitions, topic.replication_factor) == ("t", 2, 3)
    assert slept == [topics.ASK_INTERVAL_S] * 3
    assert set(admin.timeouts) == {topics.REQUEST_TIMEOUT_S}


def test_without_a_replication_factor_the_brokers_decide(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    admin = use(monkeypatch, Admin([[0]]))

    create_topic(KAFKA, "t", 1)

    assert (admin.created[0].replication_factor, slept) == (topics.BROKERS_DEFAULT, [])


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    use(monkeypatch, Admin([[0, -1]]))

    with pytest.raises(TopicError, match="topic t was created, but not all its partitions have a leader yet"):
        create_topic(KAFKA, "t", 2)
    assert sum(slept) == pytest.approx(topics.VISIBLE_TIMEOUT_S, abs=2 * topics.ASK_INTERVAL_S)


def test_a_topic_that_exists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Admin([[0]], EXISTS))

    with pytest.raises(TopicError, match=r"^topic t was not created: Kafka at b:1: it exists$"):
        create_topic(KAFKA, "t", 1)


def test_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 0.01)
    use(monkeypatch, Admin([[0]], TimeoutError()))

    with pytest.raises(TopicError, match=r"^topic t was not created: Kafka at b:1: no answer within 0.02 s$"):
        create_topic(KAFKA, "t", 1)
