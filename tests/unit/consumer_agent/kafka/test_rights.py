"""Which right is missing is told once, until Kafka answers again."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from consumer_agent.kafka import rights
from consumer_agent.kafka.rights import MissingRights, explained

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no")


def test_other_errors_are_as_they_are() -> None:
    assert explained(KafkaError(KafkaError._TIMED_OUT, "too slow"), "READ") == "too slow"
    assert explained(REFUSED, "READ") == "the right to READ the topic is missing (no)"


def test_each_refusal_is_told_once_until_kafka_answers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "MAX_TOLD", 2)
    missing = MissingRights("DESCRIBE", "all waits")
    missing.note("a", KafkaError(KafkaError._TIMED_OUT))
    for name in ("a", "a", "b", "a"):
        missing.note(name, REFUSED)
    line = "topic {}: the right to DESCRIBE the topic is missing (no); all waits"
    assert caplog.messages == [line.format("a"), line.format("b")]
    missing.answered(["a"])
    missing.note("a", REFUSED)
    missing.note("c", REFUSED)  # one more than are remembered
    missing.note("a", REFUSED)
    assert caplog.messages[2:] == [line.format("a"), line.format("c"), line.format("a")]
