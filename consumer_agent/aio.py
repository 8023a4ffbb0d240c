"""The consumer for asyncio: the same machine and threads, but who waits is a task, and callbacks run in its event loop.

Nothing polls in between: the machine thread and the fetcher ring the loop when there is something to do.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from consumer_agent import arguments
from consumer_agent.consumer import CLOSE_TIMEOUT_S, COMMIT_TIMEOUT_S, ITERATION_TIMEOUT_S
from consumer_agent.consumer_base import ConsumerBase
from consumer_agent.errors import CommitTimeoutError, ConsumerStateError
from consumer_agent.records import Batch, Record
from consumer_agent.runtime.frontend import Committable
from consumer_agent.runtime.shared_state import Notice
from zkrebalancer.protocol.fields import TopicPartition


class AsyncConsumer(ConsumerBase):
    """`Consumer` with `await`: one task polls, commits and closes; its callbacks may be coroutine functions.

    Everything that does not wait (`seek`, `pause`, `position` …) is called as it is.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def poll(self, timeout_s: float = ITERATION_TIMEOUT_S, *, max_records: int | None = None) -> Batch:
        """Return records as soon as there are any, or none after `timeout_s` seconds; as `Consumer.poll`."""
        arguments.check_timeout("poll", timeout_s)
        arguments.check_max_records(max_records)
        return await self._poll(
            timeout_s, self._frontend.config.max_poll_records if max_records is None else max_records
        )

    async def _poll(self, timeout_s: float, limit: int) -> Batch:
        core = self._frontend
        core.require_usable("poll")
        self._listen()
        deadline_s = time.monotonic() + timeout_s
        try:
            core.begin_poll()
            await asyncio.sleep(0)  # records may be there each time; other tasks have their turn all the same
            while True:
                self._changed.clear()
                with core.shared.lock:
                    step = core.next(limit)
                if isinstance(step, Notice):
                    await self._run(step)
                elif step or core.is_closed or time.monotonic() >= deadline_s:
                    return step
                else:
                    await self._change(deadline_s)
        finally:
            core.end_poll()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Return batches of records, until the consumer is closed."""
        while not self._frontend.is_closed:
            batch = await self.poll(ITERATION_TIMEOUT_S)
            if batch:
                yield batch

    async def records(self) -> AsyncIterator[Record]:
        """Return records one by one, until the consumer is closed; as `Consumer.records`."""
        while not self._frontend.is_closed:
            for record in await self._poll(ITERATION_TIMEOUT_S, 1):
                yield record

    async def commit(self, what: Committable = None, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Store that everything returned so far, or `what`, is finished; as `Consumer.commit`."""
        arguments.check_timeout("commit", timeout_s)
        core = self._frontend
        token = core.begin_commit(what)
        is_over = await self._wait(lambda: core.shared.has_commit(token), time.monotonic() + timeout_s)
        if not core.in_callback:
            await self._run_notices()
        if not is_over:
            raise CommitTimeoutError(f"the commit is not confirmed after {timeout_s:g} s")
        error = core.shared.take_commit(token)
        if error is not None:
            raise error

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offsets of assigned partitions (None: of all); as `Consumer.committed`."""
        arguments.check_timeout("committed", timeout_s)
        shared, token = self._frontend.shared, self._frontend.begin_to_ask(partitions)
        if not await self._wait(lambda: shared.has_stored(token), time.monotonic() + timeout_s):
            raise CommitTimeoutError(f"what is stored is not known after {timeout_s:g} s")
        offsets, error = shared.take_stored(token)
        if error is not None:
            raise ConsumerStateError(f"committed: {error}")
        return dict(offsets)

    async def unsubscribe(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group so that `subscribe` may follow; as `Consumer.unsubscribe`."""
        arguments.check_timeout("unsubscribe", timeout_s)
        self._frontend.require_usable("unsubscribe")
        try:
            if self._frontend.machine_thread is not None:
                await self._leave(timeout_s, is_finished=True)
        finally:
            self._frontend.unsubscribe()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group; as `Consumer.close`."""
        arguments.check_timeout("close", timeout_s)
        await self._close(timeout_s, is_finished=True)

    async def _close(self, timeout_s: float, *, is_finished: bool) -> None:
        if self._frontend.begin_closing():
            try:
                await self._leave(timeout_s, is_finished=is_finished)
            finally:
                self._frontend.listeners.clear()

    async def _leave(self, timeout_s: float, *, is_finished: bool) -> None:
        core = self._frontend
        deadline_s = time.monotonic() + timeout_s
        core.begin_leaving(is_finished=is_finished)
        try:
            await self._take_leave(deadline_s)
        finally:
            await asyncio.to_thread(core.end, deadline_s)
        await self._run_notices()  # commits that could not be stored

    async def _take_leave(self, deadline_s: float) -> None:
        """Run the callbacks until the group is left, all of them also if one raises; that is raised afterwards."""
        shared = self._frontend.shared
        try:
            while not shared.is_closed and time.monotonic() < deadline_s:
                await self._run_notices()
                await self._wait(lambda: shared.is_closed or shared.has_notice, deadline_s)
            await self._run_notices()
        except Exception:
            await self._take_leave(deadline_s)
            raise

    async def __aenter__(self) -> Self:
        """Return the consumer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception the last batch does not count as finished."""
        await self._close(CLOSE_TIMEOUT_S, is_finished=error is None)

    # ---- waiting in the event loop

    def _listen(self) -> None:
        """Be rung in the loop that runs now; it may be another one than before."""
        before, loop = self._loop, asyncio.get_running_loop()
        if before is not loop:
            self._changed = asyncio.Event()
            self._loop = loop
        if before is None:
            self._frontend.listeners.append(self._ring)

    def _ring(self) -> None:
        """Wake the task, from any thread."""
        if self._loop is not None and not self._changed.is_set():
            with suppress(RuntimeError):  # the loop was closed, and the consumer was not
                self._loop.call_soon_threadsafe(self._changed.set)

    async def _change(self, deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                await self._changed.wait()

    async def _wait(self, is_so: Callable[[], bool], deadline_s: float) -> bool:
        self._listen()
        while True:
            self._changed.clear()  # before looking: a change after it is not missed
            with self._frontend.shared.lock:
                if is_so():
                    return True
            if time.monotonic() >= deadline_s:
                return False
            await self._change(deadline_s)

    async def _run_notices(self) -> None:
        while True:
            with self._frontend.shared.lock:
                notice = self._frontend.shared.next_notice()
            if notice is None:
                return
            await self._run(notice)

    async def _run(self, notice: Notice) -> None:
        core = self._frontend
        callback = core.callback(notice)
        core.in_callback = True
        try:
            if callback is not None:
                answer = callback()
                if inspect.isawaitable(answer):
                    await answer
        finally:
            core.in_callback = False
            core.called_back(notice)
