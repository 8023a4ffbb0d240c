"""A task closes a consumer while another one's callback is awaited."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from consumer_agent import AsyncConsumer, ConsumerStateError
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.steps import Block
from tests.support.deadlines import WITHIN_S

DEADLINE_S = WITHIN_S


class Setting:
    """A consumer whose `on_assign` is awaited until `released`."""

    def __init__(self) -> None:
        self.begun, self.refused, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.refusals: list[str] = []
        self.consumer = AsyncConsumer(zookeeper="z:1", bootstrap="b:1", group="g")
        self.consumer.subscribe(["orders"], on_assign=self._on_assign)

    async def _on_assign(self, _partitions: object) -> None:
        self.begun.set()
        await asyncio.create_task(self._close_within())
        self.refused.set()
        await self.released.wait()

    async def _close_within(self) -> None:
        with pytest.raises(ConsumerStateError) as raised:
            await self.consumer.close()
        self.refusals.append(str(raised.value))

    async def begin(self) -> asyncio.Task[object]:
        with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
            await self.consumer.poll(0.0)
        shared = self.consumer._frontend.shared
        shared.admit(("orders", 0), 1, 0)
        shared.tell(Tell.ASSIGNED, [("orders", 0)])
        task: asyncio.Task[object] = asyncio.create_task(self.consumer.poll(DEADLINE_S))
        await asyncio.wait_for(self.begun.wait(), DEADLINE_S)
        return task


def test_close_waits_for_the_callback_of_another_task_and_is_refused_within_it() -> None:
    async def scenario() -> None:
        setting = Setting()
        polling = await setting.begin()
        frontend = setting.consumer._frontend
        leaves_within: list[bool] = []
        leave = frontend.begin_leaving

        def begin_leaving(*, finish: bool | None) -> None:
            leaves_within.append(frontend.in_callback)
            leave(finish=finish)

        frontend.begin_leaving = begin_leaving  # type: ignore[method-assign]
        closing = asyncio.create_task(setting.consumer.close(DEADLINE_S))
        await asyncio.wait_for(setting.refused.wait(), DEADLINE_S)
        assert frontend.is_closed
        assert not closing.done()
        setting.released.set()
        await asyncio.wait_for(closing, DEADLINE_S)
        assert not await polling
        assert leaves_within == [False]
        assert setting.refusals == ["close may not be called from within a callback or a deserializer"]
        assert frontend._is_ended

    asyncio.run(scenario())


def test_close_does_not_wait_for_threads_that_the_application_keeps_busy() -> None:
    """They may never be free again: a record hangs in each of them."""
    released = threading.Event()

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(released.wait))
        consumer = AsyncConsumer(zookeeper="z:1", bootstrap="b:1", group="g")
        consumer.subscribe(["orders"])
        with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
            await consumer.poll(0.0)
        try:
            await asyncio.wait_for(consumer.close(0.1), DEADLINE_S)
        finally:
            released.set()
            await busy

    asyncio.run(scenario())


def test_what_a_thread_raises_reaches_the_task() -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(zookeeper="z:1", bootstrap="b:1", group="g")
        with pytest.raises(ZeroDivisionError):
            await consumer._perform(Block(lambda: 1 // 0))
        waiting = asyncio.create_task(consumer._perform(Block(released.wait)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        released.set()

    released = threading.Event()
    asyncio.run(scenario())
