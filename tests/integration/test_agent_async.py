"""`AsyncConsumer` on real servers: the behaviour of `Consumer`, and turns for other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from consumer_agent import AsyncConsumer, CommitFailedError, ConsumerStateError, TopicPartition
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Stage

POLL_S = 0.05


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Make a thread for the event loop; the test is the coordinator."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def new_consumer(stage: Stage, **settings: Any) -> AsyncConsumer:
    servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
    return AsyncConsumer(**servers, group=stage.group, session_timeout_ms=SESSION_TIMEOUT_MS, **settings)


async def read(consumer: AsyncConsumer, count: int) -> list[int]:
    """Poll until so many records were returned; return their offsets."""
    offsets: list[int] = []
    async with asyncio.timeout(WAIT_S):
        while len(offsets) < count:
            offsets += [record.offset for record in await consumer.poll(POLL_S)]
    return offsets


def in_a_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_records_what_is_stored_and_another_subscription(stage: Stage, executor: ThreadPoolExecutor) -> None:
    stage.produce([0], 5)

    async def consume() -> None:
        async with new_consumer(stage) as consumer:
            consumer.subscribe([stage.topic])
            records = consumer.records()
            assert [(await anext(records)).offset for _ in range(3)] == [0, 1, 2]
            await consumer.commit()
            assert await consumer.committed() == {(stage.topic, 0): 3}
            with pytest.raises(ConsumerStateError, match="committed: other/0 is not assigned"):
                await consumer.committed([("other", 0)])
            await consumer.unsubscribe()
            assert consumer.assignment() == []
            consumer.subscribe([stage.topic])
            assert await read(consumer, 2) == [3, 4]

    consuming = executor.submit(in_a_loop, consume())
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    again = stage.wait_member(member)
    stage.wait_ack(stage.start(again, 0))
    consuming.result(WAIT_S)
    assert stage.offset(0) == 5
    assert stage.members() == ()


def test_other_tasks_have_their_turn_although_no_poll_waits(stage: Stage) -> None:
    turns: list[int] = []

    async def take_turns() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(len(turns))

    async def consume() -> None:
        others = asyncio.create_task(take_turns())
        async with new_consumer(stage) as consumer:
            consumer.subscribe([stage.topic])
            for _ in range(10):
                assert not await consumer.poll(0)
            assert len(turns) >= 8
            first = asyncio.create_task(consumer.poll(POLL_S))
            await asyncio.sleep(0)
            with pytest.raises(ConsumerStateError, match="another poll is under way"):
                await consumer.poll(POLL_S)
            assert not await first
        others.cancel()

    asyncio.run(consume())


def test_a_poll_that_is_cancelled_loses_nothing(stage: Stage, executor: ThreadPoolExecutor) -> None:
    """Cancel it while it waits, and in a waiting callback."""
    told: list[TopicPartition] = []

    async def consume() -> None:
        in_callback = asyncio.Event()

        async def assigned(partitions: list[TopicPartition]) -> None:
            told.extend(partitions)
            in_callback.set()
            await asyncio.sleep(WAIT_S)

        async with new_consumer(stage) as consumer:
            consumer.subscribe([stage.topic], on_assign=assigned)
            polling = asyncio.create_task(consumer.poll(WAIT_S))
            await in_callback.wait()
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            stage.produce([0], 3)
            assert await read(consumer, 3) == [0, 1, 2]
            polling = asyncio.create_task(consumer.poll(WAIT_S))
            await asyncio.sleep(POLL_S)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            stage.produce([0], 3)
            assert await read(consumer, 3) == [3, 4, 5]

    consuming = executor.submit(in_a_loop, consume())
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    consuming.result(WAIT_S)
    assert told == [(stage.topic, 0)]
    assert stage.offset(0) == 6


def test_what_another_task_may_do_beside_a_poll(stage: Stage) -> None:
    """A commit is refused, because it would run callbacks of two tasks at once; `close` ends the poll."""

    async def consume() -> None:
        consumer = new_consumer(stage)
        consumer.subscribe([stage.topic])
        polling = asyncio.create_task(consumer.poll(2 * WAIT_S))
        await asyncio.sleep(POLL_S)
        for call in (consumer.commit(), consumer.committed(), consumer.unsubscribe()):
            with pytest.raises(ConsumerStateError, match="another poll is under way"):
                await call
        with pytest.raises(ConsumerStateError, match="another poll is under way"):
            consumer.commit_async()
        await consumer.close()
        async with asyncio.timeout(WAIT_S):
            assert not await polling
            assert [batch async for batch in consumer] == []

    asyncio.run(consume())
    assert stage.members() == ()


def test_a_callback_that_raises_at_the_end_does_not_keep_what_is_finished_from_being_stored(
    stage: Stage, executor: ThreadPoolExecutor
) -> None:
    stage.produce([0], 5)
    ends: list[CommitFailedError | None] = []

    async def fail(_partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        raise ValueError("on_revoke fails")

    async def consume() -> None:
        consumer = new_consumer(stage, auto_commit_interval_ms=60_000)
        consumer.subscribe([stage.topic], on_revoke=fail)
        assert await read(consumer, 5) == [0, 1, 2, 3, 4]
        consumer.commit_async({(stage.topic, 0): 2}, ends.append)
        with pytest.raises(ValueError, match="on_revoke fails"):
            await consumer.close()
        await consumer.close()

    consuming = executor.submit(in_a_loop, consume())
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    consuming.result(WAIT_S)
    assert ends == [None]
    assert stage.offset(0) == 5
    assert stage.members() == ()


def test_a_loop_that_is_left_leaves_its_last_record_unfinished(stage: Stage, executor: ThreadPoolExecutor) -> None:
    stage.produce([0], 5)

    async def consume() -> None:
        async with new_consumer(stage, auto_commit_interval_ms=60_000) as consumer:
            consumer.subscribe([stage.topic])
            async for record in consumer.records():
                if record.offset == 3:
                    break

    consuming = executor.submit(in_a_loop, consume())
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    consuming.result(WAIT_S)
    assert stage.offset(0) == 3


def test_questions_beside_a_poll(stage: Stage, executor: ThreadPoolExecutor) -> None:
    stage.produce([0], 5)
    sought = asyncio.Event()

    async def consume() -> None:
        async with new_consumer(stage) as consumer:

            async def skip(assigned: list[TopicPartition]) -> None:
                await consumer.seek_to_end()
                sought.set()

            consumer.subscribe([stage.topic], on_assign=skip)
            polling = asyncio.create_task(consumer.poll(None))
            await sought.wait()
            assert await consumer.lag() == {(stage.topic, 0): 0}
            assert await consumer.end_offsets() == {(stage.topic, 0): 5}
            await consumer.seek_to_beginning()
            assert [record.offset for record in await polling] == [0, 1, 2, 3, 4]

    consuming = executor.submit(in_a_loop, consume())
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    consuming.result(WAIT_S)


def test_each_call_may_have_an_event_loop_of_its_own(stage: Stage) -> None:
    stage.produce([0], 5)
    consumer = new_consumer(stage)
    consumer.subscribe([stage.topic])
    asyncio.run(consumer.poll(0))
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    assert asyncio.run(read(consumer, 5)) == [0, 1, 2, 3, 4]
    asyncio.run(consumer.commit())
    assert stage.offset(0) == 5
    asyncio.run(consumer.close())
    assert stage.members() == ()
