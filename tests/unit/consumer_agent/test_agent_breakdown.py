"""A thread of a consumer that ends by a bug is told to the application; it would own partitions that nobody reads."""

from __future__ import annotations

from unittest import mock

import pytest

from consumer_agent import Consumer, ConsumerError
from consumer_agent.buffer import RecordBuffer
from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.fetcher import Fetcher
from consumer_agent.handover import Handover
from tests.unit.consumer_agent.messages import ROOMY

DEADLINE_S = 10.0
CONFIG = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
a_thread_may_raise = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def new_handover() -> Handover:
    return Handover(RecordBuffer(ROOMY), lambda: 0)


def failure_of(handover: Handover) -> str:
    with handover.lock:
        return str(handover.take_failure())


def test_a_failure_that_may_pass_is_told_once_and_a_breakdown_always() -> None:
    handover = new_handover()
    handover.fail(KafkaUnavailableError("not there"))
    assert [failure_of(handover), failure_of(handover)] == ["not there", "None"]
    handover.break_down(ConsumerError("first"))
    handover.break_down(ConsumerError("second"))
    handover.fail(KafkaUnavailableError("not there"))
    assert [failure_of(handover), failure_of(handover)] == ["first", "first"]


@a_thread_may_raise
def test_a_fetcher_that_ends_by_a_bug() -> None:
    client = mock.Mock(list_topics=mock.Mock(side_effect=RuntimeError("a bug")))
    handover = new_handover()
    with mock.patch("consumer_agent.fetcher.KafkaConsumer", return_value=client):
        fetcher = Fetcher(CONFIG, ["orders"], handover)
    fetcher.start()
    fetcher.join(DEADLINE_S)
    assert failure_of(handover) == "the consumer's fetcher has stopped"
    client.close.assert_called_once_with()


def test_a_fetcher_that_is_stopped_has_not_failed() -> None:
    client = mock.Mock(list_topics=mock.Mock(return_value=mock.Mock(topics={})))
    handover = new_handover()
    with mock.patch("consumer_agent.fetcher.KafkaConsumer", return_value=client):
        fetcher = Fetcher(CONFIG, ["orders"], handover)
    fetcher.start()
    fetcher.stop()
    fetcher.join(DEADLINE_S)
    assert failure_of(handover) == "None"


@a_thread_may_raise
def test_every_poll_tells_that_the_engine_has_ended_and_close_does_not_wait_for_it() -> None:
    with (
        mock.patch("consumer_agent.fetcher.KafkaConsumer"),
        mock.patch("consumer_agent.machine.Machine.step", side_effect=RuntimeError("a bug")),
    ):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        for _ in range(2):
            with pytest.raises(ConsumerError, match="engine has stopped"):
                consumer.poll(DEADLINE_S)
        consumer.close(DEADLINE_S)
