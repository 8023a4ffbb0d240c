"""The ends of logs that Kafka reports while a broker is away."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from zkrebalancer.pipeline.source import kafka
from zkrebalancer.pipeline.source.kafka import END, FIRST, Logs
from zkrebalancer.pipeline.source.options import parse

LEADERS = {0: 1, 1: 2, 2: 1}  # of partitions; broker 2 is away


def offsets_for_times(asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
    """As librdkafka: one broker that does not answer within the time leaves no answer at all."""
    assert timeout < kafka.ASK_TIMEOUT_S
    if any(LEADERS[one.partition] == 2 for one in asked):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return [TopicPartition(one.topic, one.partition, 9 if one.offset == END else 3) for one in asked]


def test_a_broker_that_is_away_hides_only_the_ends_of_its_own_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Logs.ends`, ask for all at once."""
    partitions = {number: SimpleNamespace(leader=leader) for number, leader in LEADERS.items()}
    client = mock.Mock(spec=Consumer)
    client.list_topics.return_value.topics = {"t": SimpleNamespace(error=None, partitions=partitions)}
    client.offsets_for_times.side_effect = offsets_for_times
    monkeypatch.setattr(kafka, "new_client", lambda _settings: client)
    logs = Logs(parse({"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": "t"}))
    known = logs.partitions(["t"])
    assert known == [("t", 0), ("t", 1), ("t", 2)]
    assert logs.ends(known) == {("t", 0): 9, ("t", 2): 9}
    assert logs.ends(known, FIRST) == {("t", 0): 3, ("t", 2): 3}
    assert all("the ends of logs, such as t/1 (1 in all): " in message for message in caplog.messages)
    assert len(caplog.messages) == 2
