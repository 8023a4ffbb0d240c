"""A thread of a consumer that ends by a bug is told to the application; it would own partitions that nobody reads."""

from __future__ import annotations

from unittest import mock

import pytest

from consumer_agent import Consumer, ConsumerError
from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY

DEADLINE_S = 10.0
CONFIG = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
a_thread_may_raise = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def new_handover() -> SharedState:
    return SharedState(RecordBuffer(ROOMY), lambda: 0)


def failure_of(shared: SharedState) -> str:
    with shared.lock:
        return str(shared.take_failure())


def test_a_failure_that_may_pass_is_told_once_and_a_breakdown_always() -> None:
    shared = new_handover()
    shared.fail(KafkaUnavailableError("not there"))
    assert [failure_of(shared), failure_of(shared)] == ["not there", "None"]
    shared.break_down(ConsumerError("first"))
    shared.break_down(ConsumerError("second"))
    shared.fail(KafkaUnavailableError("not there"))
    assert [failure_of(shared), failure_of(shared)] == ["first", "first"]


@a_thread_may_raise
def test_a_fetcher_that_ends_by_a_bug() -> None:
    client = mock.Mock(list_topics=mock.Mock(side_effect=RuntimeError("a bug")))
    shared = new_handover()
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=client):
        fetcher = Fetcher(CONFIG, ["orders"], shared)
    fetcher.start()
    fetcher.join(DEADLINE_S)
    assert failure_of(shared) == "the consumer's fetcher has stopped"
    client.close.assert_called_once_with()


def test_a_fetcher_that_is_stopped_has_not_failed() -> None:
    client = mock.Mock(list_topics=mock.Mock(return_value=mock.Mock(topics={})))
    shared = new_handover()
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=client):
        fetcher = Fetcher(CONFIG, ["orders"], shared)
    fetcher.start()
    fetcher.stop()
    fetcher.join(DEADLINE_S)
    assert failure_of(shared) == "None"


@a_thread_may_raise
def test_every_poll_tells_that_the_machine_thread_has_ended_and_close_does_not_wait_for_it() -> None:
    with (
        mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"),
        mock.patch("consumer_agent.membership.state_machine.StateMachine.step", side_effect=RuntimeError("a bug")),
    ):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        for _ in range(2):
            with pytest.raises(ConsumerError, match="machine thread has stopped"):
                consumer.poll(DEADLINE_S)
        consumer.close(DEADLINE_S)
