"""The handler of a signal raises at any point of a coroutine of `AsyncConsumer`: no record and no callback is lost.

The test drives the coroutines itself; nothing here waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from consumer_agent import AsyncConsumer, Consumer
from consumer_agent.aio import _in_a_thread
from consumer_agent.membership.events import Revoked
from consumer_agent.runtime.notices import Tell
from tests.support.deadlines import WITHIN_S
from tests.support.driven import Driven
from tests.unit.consumer_agent.runtime.interrupts import (
    COUNT,
    PARTITION,
    Interrupt,
    Interrupted,
    Setting,
    interrupted_at_each_point,
)

# Python drops an exception that comes within a deallocation.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
LOOP = asyncio.new_event_loop()  # never runs
LOOP.close()
STRIDES = [pytest.param(1, marks=pytest.mark.long), 29]


@pytest.fixture(autouse=True)
def running_loop() -> Iterator[None]:
    """Let coroutines believe that a loop runs them."""
    asyncio._set_running_loop(LOOP)
    yield
    asyncio._set_running_loop(None)


def driven(coroutine: Coroutine[Any, Any, object]) -> object:
    """Run a coroutine to its end, as if in a task; no call follows that an interrupt could hit."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value


class AsyncSetting(Setting):
    """A setting with an `AsyncConsumer`, whose callbacks are awaited."""

    def made(self, **settings: Any) -> Consumer:
        return cast("Consumer", Driven(AsyncConsumer(**settings), driven))

    def _note(self, what: str) -> Callable[[list[tuple[str, int]]], Any]:
        async def note(partitions: list[tuple[str, int]]) -> None:
            self.told.append((what, len(partitions)))
            await asyncio.sleep(0)

        return note


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("max_records", [5, -1])
def test_no_record_is_lost_or_doubled_by_an_interrupt_of_a_poll(max_records: int, stride: int) -> None:
    for setting, result, _ in interrupted_at_each_point(
        lambda one: one.consumer.poll(0.0, max_records=max_records), kind=AsyncSetting, stride=stride
    ):
        first = [] if result is None else [record.offset for record in cast("Any", result)]
        setting.in_own_thread(setting.fetcher_round)
        assert first + setting.read_all() == list(range(COUNT))
        assert setting.consumer.finished() == {PARTITION: COUNT}


@pytest.mark.parametrize("stride", STRIDES)
def test_callbacks_are_called_though_the_poll_was_interrupted(stride: int) -> None:
    def prepare(setting: Setting) -> None:
        setting.shared.tell(Tell.ASSIGNED, [PARTITION])
        setting.consumer.poll(0.0, max_records=2)
        setting.shared.stop([PARTITION])
        setting.shared.tell(Tell.REVOKE, [PARTITION], 7)

    for setting, _, is_interrupted in interrupted_at_each_point(
        lambda one: one.consumer.poll(0.0), prepare, kind=AsyncSetting, stride=stride
    ):
        setting.consumer.poll(0.0)
        assert Revoked(7) in setting.sent
        assert setting.told == [("assign", 1), ("revoke", 1)] or (is_interrupted and len(setting.told) == 1)
        assert not setting.shared.is_known(PARTITION)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_commit_after_one_that_was_interrupted(stride: int) -> None:
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.consumer.commit(), lambda one: one.consumer.poll(0.0), kind=AsyncSetting, stride=stride
    ):
        setting.consumer.commit()
        assert setting.consumer.finished() == {PARTITION: 5}
        assert setting.read_all() == list(range(5, COUNT))


def test_an_interrupted_start_of_a_call_that_blocks_keeps_no_program_from_its_end() -> None:
    """In `_in_a_thread`, use an executor: its thread could wait for ever for a lock, and the program for that."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    ended, interrupted = threading.Event(), 0
    for at in range(1, 10_000):
        coroutine, interrupt = _in_a_thread(ended.set), Interrupt(at)
        try:
            interrupt.during(lambda: coroutine.send(None))  # noqa: B023
        except Interrupted:
            interrupted += 1
        coroutine.close()
        if interrupt.points < at:
            break
    assert ended.wait(WITHIN_S)
    assert interrupted > 10
    waited_for = [thread for thread in threading.enumerate() if not thread.daemon and "blocking" in thread.name]
    for thread in waited_for:
        thread.join(1.0)
        assert not thread.is_alive()
    loop.close()
