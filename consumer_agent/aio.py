"""The consumer for asyncio: the same steps, but a task waits, and callbacks run in its event loop.

There is no busy loop: the machine thread and the fetcher wake the event loop when there is something to do.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Self

from consumer_agent.consumer import CLOSE_TIMEOUT_S, COMMIT_TIMEOUT_S, ITERATION_TIMEOUT_S, QUESTION_TIMEOUT_S
from consumer_agent.consumer_base import ConsumerBase
from consumer_agent.records import Batch, Record
from consumer_agent.runtime import question_steps as questions
from consumer_agent.runtime import steps
from consumer_agent.runtime.frontend import Committable
from consumer_agent.runtime.steps import Block, Callback, Step, Steps, T, Turn, Wait
from consumer_agent.runtime.threads import Thread, while_in_use
from zkrebalancer.protocol.fields import TopicPartition

MAX_TURN_S = 0.005  # how long polls that always find records may run before other tasks do


class AsyncConsumer(ConsumerBase):
    """`Consumer` with `await`: one task polls, commits and closes; its callbacks may be coroutine functions.

    Methods that do not wait (`seek`, `pause`, `position` …) are called without `await`.
    """

    _awaits_callbacks = True
    _loop: asyncio.AbstractEventLoop | None = None
    _turn_ends_s = 0.0

    async def poll(self, timeout_s: float | None = ITERATION_TIMEOUT_S, *, max_records: int | None = None) -> Batch:
        """Return records as soon as there are any, or none after `timeout_s` seconds (None: no limit)."""
        batch = await self._do(steps.poll_batch(self._frontend, timeout_s, max_records))
        if batch is None:
            self._turn_ends_s = 0.0
            return Batch()
        return batch

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Return batches of records, until the consumer is closed."""
        while not self._frontend.is_closed:
            batch = await self.poll(ITERATION_TIMEOUT_S)
            if batch:
                self._frontend.is_iterated = True
                yield batch

    async def records(self) -> AsyncIterator[Record]:
        """Return records one by one, until the consumer is closed; as `Consumer.records`."""
        while not self._frontend.is_closed:
            record = await self._do(steps.poll_record(self._frontend, ITERATION_TIMEOUT_S))
            if record is not None:
                self._frontend.is_iterated = True
                yield record

    async def commit(self, what: Committable = None, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Commit everything returned so far, or `what`; as `Consumer.commit`."""
        await self._do(steps.commit(self._frontend, what, timeout_s))

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offsets of assigned partitions (None: of all); as `Consumer.committed`."""
        return await self._do(steps.committed(self._frontend, partitions, timeout_s))

    async def seek_to_beginning(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> None:
        """Continue from the first records of these partitions (None: of all); as `Consumer.seek_to_beginning`."""
        return await self._ask(
            questions.seek_to(self._frontend, "seek_to_beginning", partitions, "earliest", timeout_s)
        )

    async def seek_to_end(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> None:
        """Continue after the last records of these partitions (None: of all); as `Consumer.seek_to_end`."""
        return await self._ask(questions.seek_to(self._frontend, "seek_to_end", partitions, "latest", timeout_s))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition; as `Consumer.beginning_offsets`."""
        return await self._ask(questions.ends(self._frontend, "beginning_offsets", partitions, "earliest", timeout_s))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition; as `Consumer.end_offsets`."""
        return await self._ask(questions.ends(self._frontend, "end_offsets", partitions, "latest", timeout_s))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; as `Consumer.offsets_for_times`."""
        return await self._ask(questions.offsets_for_times(self._frontend, times, timeout_s))

    async def lag(self, *, timeout_s: float = QUESTION_TIMEOUT_S) -> dict[TopicPartition, int]:
        """Return how far the assigned partitions are behind; as `Consumer.lag`."""
        return await self._ask(questions.lag(self._frontend, timeout_s))

    async def partitions_for_topic(self, topic: str, *, timeout_s: float = QUESTION_TIMEOUT_S) -> set[int] | None:
        """Return the numbers of a topic's partitions, None if it does not exist; as `Consumer.partitions_for_topic`."""
        return await self._ask(questions.partitions_for_topic(self._frontend, topic, timeout_s))

    async def unsubscribe(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group; `subscribe` may follow; as `Consumer.unsubscribe`."""
        await self._do(steps.unsubscribe(self._frontend, timeout_s))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, finish: bool | None = None) -> None:
        """Leave the group; as `Consumer.close`, with tasks instead of threads."""
        await self._do(steps.close(self._frontend, timeout_s, finish=finish))

    async def __aenter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception or a `break` the last batch stays unfinished."""
        await self._do(steps.close(self._frontend, CLOSE_TIMEOUT_S, finish=None if error is None else False))

    # ---- what these methods consist of

    @staticmethod
    def _who() -> object:
        return asyncio.current_task() or asyncio.get_running_loop()

    async def _do(self, generator: Steps[T]) -> T:
        """Do the steps of a method in this task."""
        self._listen()
        frontend = self._frontend
        error: BaseException | None = None
        try:
            frontend.enter(generator)
            while True:
                try:
                    step = next(generator) if error is None else generator.throw(error)
                    error = None
                    await self._perform(step)
                except BaseException as raised:  # the generator raises it again
                    if generator.gi_frame is not None:  # type: ignore[attr-defined]  # it has not ended
                        error = raised  # by a step, or by an interrupt between two: the generator handles it
                        continue
                    if isinstance(raised, StopIteration):
                        result: T = raised.value
                        break
                    raise
        except BaseException:
            frontend.is_broken |= frontend.outer is generator  # no call before this either
            frontend.undo(generator)
            raise
        # No call between here and the application, so that nothing interrupts these assignments.
        if frontend.outer is generator:
            frontend.shared.taken = None
            frontend.outer = None
        return result

    async def _ask(self, generator: Steps[T]) -> T:
        """Do the steps of a query, even while another task is in a method: there is nothing to undo."""
        self._listen()
        while True:
            try:
                step = next(generator)
            except StopIteration as end:
                result: T = end.value
                return result
            await self._perform(step)

    async def _perform(self, step: Step) -> None:
        match step:
            case Turn() if time.monotonic() >= self._turn_ends_s:
                await asyncio.sleep(0)
                self._turn_ends_s = time.monotonic() + MAX_TURN_S
            case Wait(changes, deadline_s):
                await self._wait(changes, deadline_s)
            case Callback(call):
                answer = call()
                if inspect.isawaitable(answer):
                    await answer
            case Block(call):
                await _in_a_thread(call)

    async def _wait(self, changes: int, deadline_s: float) -> None:
        self._changed.clear()  # before the check, so that no later change is missed
        changed = self._frontend.shared.changed
        with changed.lock:
            if changed.changes != changes:
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(deadline_s) else max(0.0, deadline_s - time.monotonic())):
                await self._changed.wait()
        self._turn_ends_s = time.monotonic() + MAX_TURN_S

    def _listen(self) -> None:
        """Make changes wake the loop that runs now, which may be another one than before."""
        before, loop = self._loop, asyncio.get_running_loop()
        if before is not loop:
            self._changed = asyncio.Event()
            self._loop = loop
        if before is None:
            self._frontend.listeners.append(while_in_use(self._wake))

    def _wake(self) -> None:
        """Wake the task, from any thread."""
        if self._loop is not None and not self._changed.is_set():
            with suppress(RuntimeError):  # the loop was closed before the consumer
                self._loop.call_soon_threadsafe(self._changed.set)


async def _in_a_thread(call: Callable[[], object]) -> None:
    """Call it in a thread of its own: the application may keep all threads of the loop's executor busy.

    A signal's exception while an executor starts its thread could leave that waiting for ever, and the program's end.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    ended: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if ended.done():  # the task was cancelled
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            context.run(call)
        except BaseException as raised:  # noqa: BLE001  # the task raises it
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end, error)
        del error  # its traceback refers to this frame

    Thread(run, "consumer-agent-blocking").start()
    await ended
