"""Which last batch a consumer that closes counts as finished: none that the application may be working on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest

from consumer_agent import AsyncConsumer, Batch, Consumer
from tests.support.deadlines import WITHIN_S
from tests.support.driven import Driven
from tests.unit.consumer_agent.runtime.interrupts import PARTITION, Setting


@pytest.mark.parametrize("leave", ["close", "unsubscribe"])
def test_what_ends_by_an_exception_leaves_its_batch_unfinished(leave: str) -> None:
    """In `Usage.is_done`, look at no exceptions: who closes in a `finally` committed records, and lost their rest."""
    setting = Setting()
    shared = setting.shared
    setting.consumer.poll(0.0)
    with suppress(InterruptedError), ExitStack() as stack:
        stack.callback(getattr(setting.consumer, leave))
        raise InterruptedError
    assert shared.positions()[PARTITION].finished == 0


@pytest.mark.parametrize("is_handled", [True, False])
def test_an_exception_from_before_the_poll_does_not_count(is_handled: bool) -> None:
    """In `Usage.is_done`, look whether there is any, or the same: who tries again in a handler reads records twice."""
    setting = Setting()
    try:
        raise InterruptedError
    except InterruptedError:
        setting.consumer.poll(0.0)
        if is_handled:
            setting.consumer.close()
    setting.consumer.close()
    assert setting.shared.positions()[PARTITION].finished == 5


def test_a_new_exception_counts_although_the_poll_came_within_an_older_one() -> None:
    """Keep the number of an exception only, not itself: the next one has its address, and records were lost."""
    setting = Setting()
    try:
        raise InterruptedError
    except InterruptedError:
        setting.consumer.poll(0.0)
    with suppress(InterruptedError), ExitStack() as stack:
        stack.callback(setting.consumer.close)
        raise InterruptedError
    assert setting.shared.positions()[PARTITION].finished == 0


def test_an_exception_that_nobody_has_caught_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Usage._has_raised`, look only at what is handled: `atexit` and a notebook's next cell come after that."""
    setting = Setting()
    setting.consumer.poll(0.0)
    monkeypatch.setattr(sys, "last_value", InterruptedError(), raising=False)
    setting.consumer.close()
    assert setting.shared.positions()[PARTITION].finished == 0


class DecodingSetting(Setting):
    """A consumer with a deserializer."""

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, value_deserializer=bytes)


def leave_the_loop(batch: Batch) -> None:
    for record in batch:
        if record.offset == 3:
            break


def catch_an_exception(batch: Batch) -> None:
    with suppress(InterruptedError):
        for record in batch:
            if record.offset == 4:  # the last one
                raise InterruptedError


def come_to_the_end(batch: Batch) -> None:
    for record in batch:
        assert record in batch
    assert [one.offset for records in dict(batch.items()).values() for one in records] == list(range(5))
    assert None not in batch


@pytest.mark.parametrize(
    ("work", "finished"),
    [
        (leave_the_loop, 0),
        (lambda batch: leave_the_loop(batch[PARTITION]), 0),
        (catch_an_exception, 0),
        (lambda batch: list(zip(range(5), batch, strict=False)), 0),
        (lambda batch: list(zip(batch, range(5), strict=False)), 5),
        (come_to_the_end, 5),
    ],
)
@pytest.mark.parametrize("kind", [Setting, DecodingSetting])
def test_a_batch_whose_loop_was_left_is_unfinished(
    kind: type[Setting], work: Callable[[Batch], None], finished: int
) -> None:
    """In `Usage.is_done`, look at no loops: a program that is told to end committed what it left out, and lost it."""
    setting = kind()
    setting.consumer.poll(0.0, max_records=0)
    work(setting.consumer.poll(0.0))
    setting.consumer.close()
    assert setting.shared.positions()[PARTITION].finished == finished


class AsyncSetting(Setting):
    """A setting with an `AsyncConsumer`."""

    def made(self, **settings: Any) -> Consumer:
        return cast("Consumer", Driven(AsyncConsumer(**settings), asyncio.run))


def test_a_cancelled_task_that_closes_in_the_end_leaves_its_batch_unfinished() -> None:
    """As above, with the usual end of a task: what it was cancelled in was committed, and lost."""

    async def consume(consumer: AsyncConsumer, has_begun: asyncio.Event) -> None:
        try:
            assert await consumer.poll(0.0)
            has_begun.set()
            await asyncio.sleep(WITHIN_S)
        finally:
            await consumer.close()

    async def scenario() -> None:
        has_begun = asyncio.Event()
        task = asyncio.create_task(consume(cast("Any", setting.consumer).consumer, has_begun))
        await asyncio.wait_for(has_begun.wait(), WITHIN_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    setting = AsyncSetting()
    asyncio.run(scenario())
    assert setting.frontend.is_closed
    assert setting.shared.positions()[PARTITION].finished == 0
