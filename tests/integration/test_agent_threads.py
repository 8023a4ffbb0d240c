"""`Consumer.run`: handlers that fail, are slow, or call methods refused in handlers. The test plays the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from consumer_agent import Batch, Consumer, ConsumerStateError, TopicPartition
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.protocol.command import Cause, StartFetcher

BLOCKED_S = 0.5  # long enough for a handler to be called, if that is possible


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Make a thread for the application."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def consumer(stage: Stage) -> Consumer:
    """Make a consumer of the stage's group; the caller closes it."""
    servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
    return Consumer(**servers, group=stage.group, session_timeout_ms=SESSION_TIMEOUT_MS, max_poll_records=10)


def running(
    executor: ThreadPoolExecutor, consumer: Consumer, handler: Callable[[Batch], object], threads: int = 1
) -> Future[None]:
    """Run a handler until it raises."""

    def run() -> None:
        with consumer:
            consumer.run(handler, threads=threads)

    return executor.submit(run)


def start(stage: Stage, member: str, threads: dict[int, int]) -> str:
    """Start partitions in given consumer threads."""
    stage.generation += 1
    owned = {(stage.topic, partition): thread for partition, thread in threads.items()}
    cause = Cause(f"cause-{stage.generation}", "test")
    return stage.command(member, StartFetcher(f"start-{stage.generation}", 1, stage.generation, cause, owned))


def end(stage: Stage, member: str, consuming: Future[None]) -> None:
    """Let a handler that raises KeyboardInterrupt at partition 3 do so."""
    stage.produce([3], 1)
    stage.start(member, 3)
    with pytest.raises(KeyboardInterrupt):
        consuming.result(WAIT_S)


def end_at_partition_3(batch: Batch) -> None:
    if batch[0].partition == 3:
        raise KeyboardInterrupt


def test_on_assign_is_over_before_a_handler_gets_the_first_record(
    stage: Stage, consumer: Consumer, executor: ThreadPoolExecutor
) -> None:
    stage.produce([0], 10)
    handled: list[int] = []
    is_handling = threading.Event()

    def handle(batch: Batch) -> None:
        is_handling.set()
        end_at_partition_3(batch)
        handled.extend(record.offset for record in batch)

    def seek(assigned: list[TopicPartition]) -> None:
        if assigned == sorted(stage.of(0)):
            assert not is_handling.wait(BLOCKED_S)
            consumer.seek(dict.fromkeys(assigned, 7))

    consumer.subscribe([stage.topic], on_assign=seek)
    consuming = running(executor, consumer, handle)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(handled) >= 3, "the records")
    end(stage, member, consuming)
    assert handled == [7, 8, 9]


def test_run_may_begin_again_after_a_handler_has_failed_and_what_failed_is_never_finished(
    stage: Stage, consumer: Consumer, executor: ThreadPoolExecutor
) -> None:
    """A revoke does not wait for failed records, which no handler has; close does not finish them."""
    stage.produce([0], 1)
    failed: list[int] = []

    def fail(batch: Batch) -> None:
        failed.append(batch[0].offset)
        raise ValueError("the handler fails")

    def consume() -> None:
        consumer.subscribe([stage.topic], on_revoke=lambda _: None)
        with pytest.raises(ValueError, match="the handler fails"):
            consumer.run(fail)
        consumer.seek(consumer.finished())
        with pytest.raises(ValueError, match="the handler fails"):
            consumer.run(fail)
        with pytest.raises(KeyboardInterrupt):
            consumer.run(end_at_partition_3)
        consumer.close()

    consuming = executor.submit(consume)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: failed == [0, 0], "the record, and the same again")
    stage.wait_ack(stage.stop(member, 0))
    stage.produce([3], 1)
    stage.start(member, 3)
    consuming.result(WAIT_S)
    assert [stage.offset(partition) or 0 for partition in (0, 3)] == [0, 0]
    assert stage.members() == ()


def test_a_handler_that_fails_does_not_let_go_of_what_another_one_works_on(
    stage: Stage, consumer: Consumer, executor: ThreadPoolExecutor
) -> None:
    stage.produce([0], 1)
    told: list[object] = []
    may_return, is_working, has_failed = threading.Event(), threading.Event(), threading.Event()

    def handle(batch: Batch) -> None:
        if batch[0].partition == 1:
            has_failed.set()
            raise ValueError("the handler fails")
        is_working.set()
        assert may_return.wait(WAIT_S)
        told.append("handled")

    consumer.subscribe([stage.topic], on_revoke=told.append)
    consuming = running(executor, consumer, handle, threads=2)
    member = stage.wait_member()
    stage.wait_ack(start(stage, member, {0: 0, 1: 1}))
    assert is_working.wait(WAIT_S)
    stop = stage.stop(member, 0)
    assert_stays(lambda: stage.is_pending(stop), BLOCKED_S)
    stage.produce([1], 1)
    assert has_failed.wait(WAIT_S)
    assert_stays(lambda: stage.is_pending(stop) and told == [], BLOCKED_S)
    may_return.set()
    with pytest.raises(ValueError, match="the handler fails"):
        consuming.result(WAIT_S)
    assert told == ["handled", sorted(stage.of(0)), sorted(stage.of(1))]
    assert [stage.offset(0), stage.offset(1) or 0] == [1, 0]


def test_what_one_thread_may_do_is_refused_in_a_handler(
    stage: Stage, consumer: Consumer, executor: ThreadPoolExecutor
) -> None:
    """A commit would finish records of other handlers; close and run would wait for themselves."""
    stage.produce([0], 1)
    refused: list[str] = []

    def handle(batch: Batch) -> None:
        end_at_partition_3(batch)
        calls: list[Callable[[], object]] = [
            consumer.poll,
            consumer.close,
            consumer.unsubscribe,
            consumer.commit,
            consumer.commit_async,
            consumer.committed,
            partial(consumer.run, print),
        ]
        for call in calls:
            with pytest.raises(ConsumerStateError) as error:
                call()
            refused.append(str(error.value).split()[0].rstrip(":"))

    consumer.subscribe([stage.topic], on_assign=lambda _: consumer.commit())
    consuming = running(executor, consumer, handle)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    wait_until(lambda: len(refused) == 7, "all that is refused")
    end(stage, member, consuming)
    assert refused == ["poll", "close", "unsubscribe", "commit", "commit", "committed", "run"]
    assert stage.offset(0) == 1
