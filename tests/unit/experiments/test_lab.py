"""How the lab handles a broker's answers, without a broker."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from zkrebalancer.experiments.lab import Lab, NotReachedError


def served_by(*answers: object) -> Lab:
    """Return a lab whose broker gives these answers in turn."""
    lab = Lab(mock.Mock(bootstrap="b:1"), Path("events"))
    admin = mock.Mock(list_topics=mock.Mock(side_effect=answers))
    return mock.Mock(wraps=lab, _admin=lambda: admin, wait_for=lab.wait_for)


def described(*leaders: int) -> mock.Mock:
    partitions = {number: mock.Mock(leader=leader) for number, leader in enumerate(leaders)}
    return mock.Mock(topics={"t": mock.Mock(partitions=partitions)})


BUSY = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_a_topic_is_served_when_every_partition_has_a_leader() -> None:
    Lab._wait_served(served_by(BUSY, described(1), described(1, -1), described(1, 1)), "t", 2)


def test_a_broker_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = served_by(*[BUSY] * 1_000)
    monkeypatch.setattr(Lab.wait_for, "__defaults__", (0.05,))
    with pytest.raises(NotReachedError, match="2 partitions of topic t: not reached"):
        Lab._wait_served(lab, "t", 2)
