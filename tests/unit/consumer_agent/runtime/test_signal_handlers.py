"""A signal's handler calls the consumer: it may have interrupted any call of the same thread, also within its lock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest

from consumer_agent import Consumer, ConsumerStateError
from consumer_agent.runtime.threads import within_signal_handler
from tests.support.deadlines import WITHIN_S

PARTITION = ("orders", 0)


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with (
        mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"),
        mock.patch("consumer_agent.runtime.engine.THREAD_END_TIMEOUT_S", 0.2),
    ):
        consumer = Consumer(zookeeper="127.0.0.1:1", bootstrap="b:1", group="g")
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        consumer._frontend.shared.admit(PARTITION, 1, 5)
        yield consumer
        consumer.close(0.1)


def ends(call: Callable[[], object]) -> bool:
    """Whether a call ends; without reentrant locks it would wait for itself."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    return not thread.is_alive()


def test_what_only_shows_something_is_answered(consumer: Consumer) -> None:
    def interrupted() -> None:
        with consumer._frontend.shared.lock:
            for name in ("metrics", "assignment", "position", "finished", "generation", "paused", "known_lag"):
                getattr(consumer, name)()

    assert ends(interrupted)


def test_what_changes_something_is_refused(consumer: Consumer) -> None:
    """The change that was interrupted may be half done."""
    refused: list[str] = []
    calls: list[Callable[[], object]] = [
        partial(consumer.seek, {PARTITION: 1}),
        partial(consumer.pause, [PARTITION]),
        partial(consumer.resume, [PARTITION]),
        consumer.commit,
        consumer.commit_async,
        consumer.committed,
    ]

    def interrupted() -> None:
        with consumer._frontend.shared.lock:
            for call in calls:
                try:
                    call()
                except ConsumerStateError as error:
                    refused.append(str(error))

    assert ends(interrupted)
    assert len(refused) == len(calls)
    assert all("a signal's handler has interrupted another call" in text for text in refused)


def test_a_poll_that_close_interrupts_within_the_lock_closes_at_its_end(consumer: Consumer) -> None:
    """The machine thread needs that lock to leave the group."""
    frontend = consumer._frontend
    next_ = frontend.next
    at_once: list[bool] = []

    def interrupted(max_records: int) -> object:
        consumer.close()
        at_once.append(frontend._is_ended)
        return next_(max_records)

    with mock.patch.object(frontend, "next", interrupted):
        assert ends(lambda: consumer.poll(0.0))
    assert (at_once, frontend._is_ended) == ([False], True)


def test_what_shows_something_and_is_interrupted_lets_the_next_call_close(consumer: Consumer) -> None:
    def interrupted() -> None:
        with consumer._frontend.shared.lock:
            consumer.close()

    assert ends(interrupted)
    assert not consumer._frontend._is_ended
    with pytest.raises(ConsumerStateError, match="the consumer is closed"):
        consumer.poll(0.0)
    assert consumer._frontend._is_ended


class Handler:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __call__(self, *_: object) -> None:
        self.call()

    def method(self, *_: object) -> None:
        self.call()


def lambda_of(call: Callable[[], object]) -> Callable[..., object]:
    return lambda *_: call()


@contextmanager
def handled_by(handler: Callable[..., object]) -> Iterator[None]:
    former = signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, former)


@pytest.mark.parametrize(
    "make",
    [Handler, lambda call: Handler(call).method, lambda_of, lambda call: partial(Handler.method, Handler(call))],
    ids=["an object", "a method", "a function", "a partial one"],
)
def test_any_handler_is_known_by_its_code(make: Callable[[Callable[[], object]], Callable[..., object]]) -> None:
    found: list[bool] = []
    with handled_by(make(lambda: found.append(within_signal_handler()))):
        signal.raise_signal(signal.SIGUSR2)
        assert not within_signal_handler()
    assert found == [True]


def test_records_in_hand_are_not_finished_by_a_close_that_interrupts_the_work(consumer: Consumer) -> None:
    """The handler may end the program next: the records would be committed, and lost."""
    shared = consumer._frontend.shared
    with (
        handled_by(lambda *_: consumer.close(0.1)),
        mock.patch.object(shared, "finish", wraps=shared.finish) as finish,
    ):
        signal.raise_signal(signal.SIGUSR2)
    assert consumer._frontend._is_ended
    finish.assert_not_called()


def test_a_close_that_interrupts_nothing_finishes_them(consumer: Consumer) -> None:
    shared = consumer._frontend.shared
    with mock.patch.object(shared, "finish", wraps=shared.finish) as finish:
        consumer.close(0.1)
    finish.assert_called_once_with()
