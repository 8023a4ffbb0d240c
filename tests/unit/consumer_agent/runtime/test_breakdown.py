"""If a consumer's thread dies of a bug, the application gets an error; else its partitions would stay unread."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gevent
import pytest

from consumer_agent import AsyncConsumer, Consumer, ConsumerError
from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import CommitFailedError, KafkaUnavailableError
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.membership.events import GaveUp, Tick
from consumer_agent.runtime.engine import Engine
from consumer_agent.runtime.machine_thread import MachineThread
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.threads import Thread
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.messages import ROOMY
from tests.unit.consumer_agent.runtime.interrupts import Setting
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import ConfigurationError

DEADLINE_S = WITHIN_S
NOBODY = "127.0.0.1:1"  # which is known at once: to look up a name may take 10 s
CONFIG = ConsumerConfig(zookeeper=NOBODY, bootstrap=NOBODY, group="g")
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
    assert failure_of(shared) == "the consumer's fetcher has stopped: RuntimeError: a bug"
    assert isinstance(shared.breakdown and shared.breakdown.__cause__, RuntimeError)
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
        depths = []
        for _ in range(2):
            with pytest.raises(ConsumerError, match="machine thread has stopped: RuntimeError: a bug") as raised:
                consumer.poll(DEADLINE_S)
            assert str(raised.value.__cause__) == "a bug"
            depths.append(len(raised.traceback))
        assert depths[0] == depths[1]  # the error does not grow
        with pytest.raises(CommitFailedError, match="RuntimeError: a bug"):
            consumer.commit()
        consumer.close(DEADLINE_S)


NO_THREADS = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("what", "failure", "text"),
    [
        ("os.open", OSError(24, "Too many open files"), "Too many open files"),
        ("consumer_agent.runtime.machine_thread.Flag", MemoryError("no memory"), "no memory"),
        ("gevent.get_hub", SystemError("(libev) error creating pipe"), "creating pipe"),
        ("threading.Thread.start", NO_THREADS, "can't start new thread"),
        ("consumer_agent.kafka.fetcher.Thread.start", NO_THREADS, "can't start new thread"),
        ("consumer_agent.kafka.fetcher.Fetcher.start", NO_THREADS, "can't start new thread"),  # the other one runs
    ],
)
def test_a_start_that_fails_raises_its_cause_leaves_no_thread_and_may_be_tried_again(
    what: str, failure: Exception, text: str
) -> None:
    before = set(threading.enumerate())
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer") as client:
        client.return_value.list_topics.return_value = mock.Mock(topics={})
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        with mock.patch(what, side_effect=failure), pytest.raises(ConsumerError, match=text) as raised:
            consumer.poll(DEADLINE_S)
        assert raised.value.__cause__ is not None
        for thread in set(threading.enumerate()) - before:
            thread.join(DEADLINE_S)  # what limits a request may wait for its limit
            assert not thread.is_alive()
        client.return_value.close.assert_called_once_with()
        consumer.poll(0.0)
        assert not consumer._frontend.shared.is_closed  # else all commits fail, and `close` does not wait
        consumer.close(0.1)


def test_a_start_that_ctrl_c_ends_before_its_thread_works_leaves_none() -> None:
    """It would make a Kafka client every 30 s, as the fetcher that it watches never moves."""
    released, real, before = threading.Event(), gevent.get_hub, set(threading.enumerate())
    with (
        mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"),
        mock.patch("gevent.get_hub", side_effect=lambda: released.wait(DEADLINE_S) and real()),
        mock.patch("consumer_agent.runtime.engine.THREAD_END_TIMEOUT_S", 0.0),
    ):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        waiting = "consumer_agent.runtime.machine_thread.MachineThread._wait_for_begin"
        with mock.patch(waiting, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            consumer.poll(DEADLINE_S)
        late = [thread for thread in set(threading.enumerate()) - before if thread.name == "consumer-agent-machine"]
        released.set()
        for thread in late:
            thread.join(DEADLINE_S)
        assert late
        assert not any(thread.is_alive() for thread in late)
        assert not consumer._frontend.shared.is_closed


def test_in_an_own_thread_of_the_consumer_nothing_waits_for_that_thread() -> None:
    """The garbage collector may run an application's `__del__` there, and a log's handler runs there."""
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        frontend, refusals, steps = consumer._frontend, list[str](), list[object]()
        machine_thread = frontend.machine_thread
        assert machine_thread is not None
        step = machine_thread._step

        def call_within(event: object) -> None:
            steps.append(event)
            if len(steps) == 1:
                for call in (consumer.poll, consumer.commit, consumer.committed, consumer.unsubscribe):
                    try:
                        call()
                    except ConsumerError as error:
                        refusals.append(str(error))
                with warnings.catch_warnings(action="ignore"):
                    consumer.close()
            step(event)  # type: ignore[arg-type]

        waits = mock.Mock(side_effect=AssertionError("it waits for itself"))
        with (
            mock.patch.object(machine_thread, "_step", side_effect=call_within),
            mock.patch("consumer_agent.runtime.machine_thread.DROPPED_TIMEOUT_MS", 0),  # there is no ZooKeeper
            mock.patch.object(frontend.shared.changed, "wait_for_change", waits),
        ):
            machine_thread.send(Tick())
            machine_thread.join(DEADLINE_S)
        waits.assert_not_called()
        assert len(refusals) == 4
        assert all("may not be called in a consumer's own threads" in text for text in refusals)
        assert GaveUp("the consumer was closed in a consumer's own thread") in steps
        assert machine_thread._is_over
        consumer.close(0.1)


def test_a_close_in_a_thread_of_another_consumer_does_not_keep_that_waiting() -> None:
    """In `in_own_thread`, ask for its own ones: the other consumer stood still for 10 s, and lost its lease."""
    setting = Setting()

    def close() -> None:
        with warnings.catch_warnings(action="ignore"):
            setting.consumer.close()

    thread = Thread(close, "a machine thread")
    thread.start()
    thread.join(DEADLINE_S)
    assert setting.frontend.is_closed
    assert setting.sent == []
    assert setting.frontend.machine_thread is not None
    assert setting.frontend.machine_thread.dropped == "was closed in a consumer's own thread"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_close_in_an_own_thread_wakes_a_poll_unless_it_had_to_wait_for_the_lock(is_held: bool) -> None:
    frontend = Consumer(CONFIG)._frontend
    frontend._engine = engine = mock.Mock()

    def close() -> None:
        frontend.begin_closing()

    closing = Thread(close, "a machine thread")
    with frontend.shared.lock if is_held else nullcontext():
        closing.start()
        closing.join(DEADLINE_S)
        assert frontend.is_closed
    engine.drop.assert_called_once()
    assert frontend.shared.changed.changes == (0 if is_held else 1)


def test_a_consumer_that_was_closed_in_its_own_thread_is_not_said_to_be_dropped_later() -> None:
    thread = mock.Mock(dropped="")
    with mock.patch("consumer_agent.runtime.engine.warnings") as warned:
        for how in ("was closed somewhere", "was dropped later"):
            Engine.drop(mock.Mock(_process=os.getpid(), machine_thread=thread), how)
    assert thread.dropped == "was closed somewhere"
    assert "was closed somewhere" in str(warned.warn.call_args_list)
    assert "was dropped later" not in str(warned.warn.call_args_list)


@a_thread_may_raise
def test_a_start_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer_agent.runtime.machine_thread.START_TIMEOUT_S", 0.01)
    released = threading.Event()
    with (
        mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"),
        mock.patch("gevent.get_hub", side_effect=lambda: released.wait(DEADLINE_S)),
        mock.patch("consumer_agent.runtime.engine.THREAD_END_TIMEOUT_S", 0.0),
    ):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        with pytest.raises(ConsumerError, match="did not begin to work within 0"):
            consumer.poll(DEADLINE_S)
        late = [thread for thread in threading.enumerate() if thread.name == "consumer-agent-machine"]
        released.set()
        assert late
        for thread in late:
            thread.join(DEADLINE_S)  # it raises, which is to be reported while this test runs


@pytest.mark.parametrize("failure", [OSError(24, "Too many open files"), NO_THREADS])
def test_event_files_that_cannot_be_opened_are_an_error_and_may_be_tried_again(
    failure: Exception, tmp_path: Path
) -> None:
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
        consumer = Consumer(zookeeper=NOBODY, bootstrap=NOBODY, group="g", events_directory=tmp_path)
        consumer.subscribe(["orders"])
        patched = mock.patch("consumer_agent.runtime.engine.EventLog", side_effect=failure)
        with patched, pytest.raises(ConfigurationError, match=f"events_directory: .*{failure.args[-1]}"):
            consumer.poll(DEADLINE_S)
        consumer.poll(0.0)
        consumer.close(0.1)


def test_a_broken_fetcher_gives_its_partitions_up() -> None:
    """Others shall read them; the application learns it by its next poll, and may never poll again."""
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        machine_thread = consumer._frontend.machine_thread
        assert machine_thread is not None
        with mock.patch.object(machine_thread, "_step", wraps=machine_thread._step) as step:
            consumer._frontend.shared.break_down(KafkaUnavailableError("failed 21 times"))
            machine_thread.send(Tick())
            machine_thread.join(DEADLINE_S)
        assert mock.call(GaveUp("failed 21 times")) in step.call_args_list
        with pytest.raises(KafkaUnavailableError, match="failed 21 times"):
            consumer.poll(0.0)
        consumer.close(0.1)


def dropped_consumer(*, in_cycle: bool) -> MachineThread:
    consumer = Consumer(CONFIG)
    cycle = [consumer]
    consumer.subscribe(["orders"], on_revoke=lambda _: cycle if in_cycle else None)
    consumer.poll(0.0)
    assert consumer._frontend.machine_thread is not None
    if not in_cycle:
        cycle.clear()
    return consumer._frontend.machine_thread


def dropped_async_consumer() -> MachineThread:
    async def poll() -> MachineThread:
        consumer = AsyncConsumer(CONFIG)
        consumer.subscribe(["orders"])
        await consumer.poll(0.0)
        assert consumer._frontend.machine_thread is not None
        return consumer._frontend.machine_thread

    return asyncio.run(poll())


class Service:
    """Has a consumer whose functions are its own methods."""

    def __init__(self) -> None:
        own: dict[str, Any] = {"kafka_config": {"error_cb": self.note}, "value_deserializer": self.note}
        self.consumer = Consumer(
            zookeeper=NOBODY, bootstrap=NOBODY, group="g", on_deserialization_error=self.note, **own
        )

    def note(self, *_: object) -> None: ...


def dropped_with_its_service() -> MachineThread:
    service = Service()
    service.consumer.subscribe(["orders"])
    service.consumer.poll(0.0)
    assert service.consumer._frontend.machine_thread is not None
    return service.consumer._frontend.machine_thread


DROPPED = {
    "at once": partial(dropped_consumer, in_cycle=False),
    "in a cycle": partial(dropped_consumer, in_cycle=True),
    "of a task": dropped_async_consumer,
    "with its functions": dropped_with_its_service,
}


@pytest.mark.parametrize("dropped", DROPPED.values(), ids=DROPPED)
def test_a_consumer_that_is_dropped_warns_and_its_engine_ends(dropped: Callable[[], MachineThread]) -> None:
    """No running thread may refer to the consumer: in `AsyncConsumer._listen`, append `self._wake` itself."""
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
        with warnings.catch_warnings(record=True, action="always") as caught:
            machine_thread = dropped()
            gc.collect()
        named = [warning.category for warning in caught if "dropped without close" in str(warning.message)]
        assert named == [ResourceWarning]
        machine_thread.send(Tick())
        machine_thread.join(DEADLINE_S)
        assert machine_thread._is_over
        machine_thread._fetcher.current.join(DEADLINE_S)
        assert not machine_thread._fetcher.current.thread.is_alive


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_consumer_that_is_dropped_closes_its_file_of_events(tmp_path: Path, is_broken: bool) -> None:
    """Its writing thread would last as long as the process."""
    with (
        mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"),
        warnings.catch_warnings(action="ignore"),
        mock.patch("consumer_agent.runtime.engine.EventLog.close", autospec=True, side_effect=EventLog.close) as closed,
    ):
        consumer = Consumer(zookeeper=NOBODY, bootstrap=NOBODY, group="g", events_directory=tmp_path)
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        machine_thread = consumer._frontend.machine_thread
        assert machine_thread is not None
        if is_broken:
            consumer._frontend.shared.break_down(KafkaUnavailableError("failed 21 times"))
            machine_thread.send(Tick())
            machine_thread.join(DEADLINE_S)
        del consumer
        gc.collect()
        machine_thread.send(Tick())
        machine_thread.join(DEADLINE_S)
        closed.assert_called_once()


def test_a_consumer_that_is_closed_does_not_warn() -> None:
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"), warnings.catch_warnings():
        warnings.simplefilter("error")
        consumer = Consumer(CONFIG)
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        consumer.close(0.1)
        finalizer = consumer._frontend._dropped
        assert finalizer is not None
        assert not finalizer.alive
