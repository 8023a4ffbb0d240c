"""Calls of a consumer within its callbacks and deserializers, and within those of another one; no test has a thread."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from consumer_agent import AsyncConsumer, Consumer
from consumer_agent.errors import ConsumerStateError
from consumer_agent.membership.events import Abandoned, CloseRequested, CommitRequested, Event, Revoked
from consumer_agent.records import Batch, DeserializationError
from consumer_agent.runtime.notices import Tell
from tests.support.deadlines import WITHIN_S
from tests.support.driven import Driven
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting, interrupted_at_each_point

BAD = 3  # the offset of a record that cannot be deserialized


def _refuse(_data: bytes) -> object:
    raise ValueError("no value of mine")


class DecodingSetting(Setting):
    """Its consumer deserializes: `self.decode` does, and `self.on_error` gets what that raises."""

    def __init__(self) -> None:
        self.decode: Callable[[bytes], object] = bytes
        self.on_error: Callable[[DeserializationError], object] = lambda _: None
        super().__init__()

    @property
    def functions(self) -> dict[str, Any]:
        return {
            "value_deserializer": lambda data: self.decode(data),  # noqa: PLW0108  # a test may replace it
            "on_deserialization_error": lambda error: self.on_error(error),  # noqa: PLW0108  # as above
        }

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, **self.functions)

    @property
    def finished(self) -> int:
        return self.shared.positions()[PARTITION].finished


class AsyncDecodingSetting(DecodingSetting):
    """The same with an `AsyncConsumer`, which awaits what `self.on_error` returns."""

    def made(self, **settings: Any) -> Consumer:
        return cast("Consumer", Driven(AsyncConsumer(**settings, **self.functions), asyncio.run))


def test_a_consumer_is_used_in_the_callback_of_another() -> None:
    """In `Usage`, let one flag stand for the callbacks of all consumers: this commit was refused, and close was not."""
    setting, other = Setting(), Setting()
    refused: list[str] = []

    def on_assign(_partitions: list[tuple[str, int]]) -> None:
        other.shared.tell(Tell.ASSIGNED, [PARTITION])
        assert [record.offset for record in other.consumer.poll(0.0)] == [0, 1, 2, 3, 4]
        setting.consumer.commit({PARTITION: 0})
        with pytest.raises(ConsumerStateError, match="close may not be called from within a callback"):
            setting.consumer.close()
        refused.append("close")

    setting.consumer.subscribe(["orders"], on_assign=on_assign)
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    assert setting.read_all() == list(range(COUNT))
    assert refused == ["close"]
    setting.consumer.close()


def test_a_callback_may_close_another_consumer_whose_own_callback_runs() -> None:
    """In `Usage.is_in_own_callback`, ask only whether any callback called this: that one is its own."""
    setting, other = Setting(), Setting()
    other.frontend.in_callback = True  # of another thread
    seen: list[bool] = []
    setting.consumer.subscribe(["orders"], on_assign=lambda _: seen.append(other.frontend.is_in_own_callback))
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    setting.consumer.poll(0.0)
    assert seen == [False]


def test_a_close_by_a_deserializer_finishes_no_record() -> None:
    """In `Frontend.begin_closing`, look at callbacks only: records were finished that no poll had returned."""
    setting = DecodingSetting()
    setting.decode = lambda _data: setting.consumer.close()
    causes: list[object] = []
    setting.on_error = lambda error: causes.append(error.__cause__)
    setting.consumer.poll(0.0)
    assert {type(cause) for cause in causes} == {ConsumerStateError}
    assert setting.finished == 0
    setting.consumer.close()


@pytest.mark.parametrize("kind", [DecodingSetting, AsyncDecodingSetting])
def test_a_close_because_of_a_bad_record_finishes_none(kind: type[DecodingSetting]) -> None:
    """As above; all records are returned again, as after each error of that function."""
    setting = kind()
    consumer: Any = setting.consumer
    close = consumer.consumer.close if isinstance(consumer, Driven) else consumer.close
    setting.decode, setting.on_error = _refuse, lambda _: close()
    with pytest.raises(ConsumerStateError, match="close may not be called from within a callback"):
        setting.consumer.poll(0.0)
    assert setting.finished == 0
    setting.decode = bytes
    setting.in_own_thread(setting.fetcher_round)
    assert setting.read_all() == list(range(COUNT))
    setting.consumer.close()


@pytest.mark.parametrize("finish", [None, True])
def test_the_handler_of_a_signal_may_close_while_records_are_deserialized(finish: bool | None) -> None:
    """In `Usage.is_deserializing`, forget signals: their handlers could not close the consumer then.

    With `finish`, they finished what the poll has yet to return: the handler may end the program next.
    """
    setting = DecodingSetting()

    def close(*_: object) -> None:
        setting.consumer.close(finish=finish)

    former = signal.signal(signal.SIGUSR1, close)
    setting.decode = lambda _data: signal.raise_signal(signal.SIGUSR1)
    try:
        setting.consumer.poll(0.0)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert setting.frontend.is_closed
    assert setting.finished == 0


def test_an_interrupt_while_records_are_deserialized_loses_none_and_leaves_no_mark() -> None:
    """In `Frontend.undo`, do not end the deserializing: its mark stayed where the application polls."""
    for setting, result, _ in interrupted_at_each_point(lambda one: one.consumer.poll(0.0), kind=DecodingSetting):
        first = [] if result is None else [record.offset for record in cast("Batch", result)]
        setting.in_own_thread(setting.fetcher_round)
        assert first + setting.read_all() == list(range(COUNT))
        assert not setting.frontend.is_deserializing


class BadRecordSetting(DecodingSetting):
    """One of its records cannot be deserialized, and it has no function for that error."""

    def __init__(self) -> None:
        super().__init__()
        self.decode = lambda data: _refuse(data) if int(data) == BAD else data

    @property
    def functions(self) -> dict[str, Any]:
        return {key: function for key, function in super().functions.items() if key == "value_deserializer"}


def test_records_before_a_bad_one_come_before_its_error_though_their_poll_was_interrupted() -> None:
    """In `Frontend.undo`, keep the error: who skips the bad record would skip these, too.

    In `Fetcher._begin_round`, prefer changes to what is fetched again: the bad record was fetched first.
    """
    for setting, result, _ in interrupted_at_each_point(lambda one: one.consumer.poll(0.0), kind=BadRecordSetting):
        offsets = [] if result is None else [record.offset for record in cast("Batch", result)]
        setting.in_own_thread(setting.fetcher_round)
        if not offsets:
            offsets += [record.offset for record in setting.consumer.poll(0.0)]
        assert offsets == list(range(BAD))
        with pytest.raises(DeserializationError, match=f"offset {BAD}"):
            setting.consumer.poll(0.0)


def test_what_was_kept_of_a_paused_partition_is_returned_though_the_poll_after_resume_fails() -> None:
    """In `Fetcher._begin_round`, prefer changes to what is fetched again: reading went on behind these records."""

    def give_up(_error: DeserializationError) -> None:
        raise ZeroDivisionError

    setting = DecodingSetting()
    consumer = setting.consumer
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    assert len(consumer.poll(0.0, max_records=2)) == 2
    consumer.pause([PARTITION])
    setting.fetcher_round()
    consumer.resume([PARTITION])
    setting.decode, setting.on_error = _refuse, give_up
    with pytest.raises(ZeroDivisionError):
        consumer.poll(0.0)
    setting.decode = bytes
    setting.in_own_thread(setting.fetcher_round)
    assert setting.read_all() == list(range(2, COUNT))


class HandFinishedSetting(DecodingSetting):
    """Its polls finish no record."""

    @property
    def functions(self) -> dict[str, Any]:
        return super().functions | {"enable_auto_finish": False}


@pytest.mark.parametrize(("sought", "finished"), [(None, 2), (1, 1), (9, 9)])
def test_a_close_elsewhere_finishes_only_what_polls_have_returned(sought: int | None, finished: int) -> None:
    """In `SharedState.finish`, forget what is taken: the records of the poll below were lost.

    In `BufferedPartition.finish`, look at what is taken only: `seek` was undone.
    """
    setting = HandFinishedSetting()
    consumer = setting.consumer
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    consumer.poll(0.0, max_records=2)

    def close() -> None:
        if sought is not None:
            consumer.seek({PARTITION: sought})
        consumer.close(finish=True)

    def decode(_data: bytes) -> object:
        setting.in_own_thread(close)
        raise KeyboardInterrupt

    setting.decode = decode
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(0.0)
    assert setting.frontend.is_closed
    assert setting.finished == finished


def test_a_commit_in_the_last_callback_finishes_only_what_polls_have_returned() -> None:
    """In `SharedState.begin_commit`, forget what is taken: a poll of another thread had not returned it."""
    setting = DecodingSetting()
    consumer, machine_thread = setting.consumer, setting.frontend.machine_thread
    consumer.subscribe(["orders"], on_revoke=lambda _: consumer.commit())
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    consumer.poll(0.0, max_records=2)
    assert machine_thread is not None

    def machine(event: Event) -> None:
        setting.sent.append(event)
        if isinstance(event, CommitRequested):
            setting.shared.commit_finished([event.token], None)
        elif isinstance(event, CloseRequested):
            setting.shared.stop([PARTITION])
            setting.shared.tell(Tell.REVOKE, [PARTITION], 7)
        elif isinstance(event, Revoked):
            setting.shared.become_closed()

    def decode(_data: bytes) -> object:
        setting.in_own_thread(consumer.close)
        raise KeyboardInterrupt

    machine_thread.send = machine  # type: ignore[method-assign]
    setting.decode = decode
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(0.0)
    assert [type(event) for event in setting.sent[-4:]] == [CloseRequested, CommitRequested, Revoked, Abandoned]
    assert setting.finished == 2


def test_skipped_records_are_finished_by_a_close_while_the_poll_waits_for_others() -> None:
    """In `steps.poll`, let them count as taken until it returns: the next owner skipped them once more."""
    setting = DecodingSetting()
    setting.decode = _refuse

    def wait(*_: object) -> None:
        setting.in_own_thread(lambda: setting.consumer.close(finish=True))

    setting.shared.changed.wait_for_change = wait  # type: ignore[method-assign, assignment]
    assert not setting.consumer.poll(WITHIN_S)
    assert setting.finished == COUNT


def test_what_a_consumer_shows_it_may_change() -> None:
    """In `Usage._require_known`, or `marks`, ask only what the application knows: this raised during rebalances."""
    setting = Setting()
    consumer, other = setting.consumer, ("orders", 1)
    consumer.subscribe(["orders"], on_revoke=lambda _: seen.append([consumer.position(), consumer.paused()]))
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    consumer.poll(0.0)
    consumer.commit()
    seen: list[object] = []

    def use_all() -> list[object]:
        consumer.resume(consumer.assignment())
        consumer.pause(consumer.assignment())
        consumer.resume(consumer.paused())
        consumer.pause(consumer.assignment())
        consumer.seek(consumer.position())
        consumer.seek(consumer.finished())
        consumer.commit(consumer.position())
        shown: list[object] = [consumer.paused(), consumer.position(), consumer.finished()]
        return shown

    begun = consumer.position()
    setting.shared.admit(other, 2, 0)
    assert use_all() == [[PARTITION], begun | {other: 0}, begun | {other: 0}]  # no `on_assign` of it has begun
    setting.shared.tell(Tell.ASSIGNED, [other])
    consumer.poll(0.0, max_records=0)
    assert use_all()[0] == [PARTITION, other]

    setting.shared.stop([PARTITION])
    assert use_all() == [[other], begun | {other: 0}, begun | {other: 0}]
    setting.shared.tell(Tell.REVOKE, [PARTITION], 7)
    consumer.poll(0.0, max_records=0)
    assert seen == [[begun | {other: 0}, [other]]]
    assert use_all() == [[other], {other: 0}, {other: 0}]  # it is given up, and the coordinator does not know
    with pytest.raises(ConsumerStateError, match="orders/0 is not assigned"):
        consumer.seek({PARTITION: 0})


@pytest.mark.parametrize("is_skipped", [True, False])
def test_a_task_of_a_callback_may_close_while_a_poll_deserializes_or_waits(is_skipped: bool) -> None:
    """In `Usage.is_deserializing`, ask for any callback while records are taken: a supervisor could not close."""
    setting = AsyncDecodingSetting()

    async def scenario() -> None:
        closing: list[asyncio.Task[None]] = []
        begun, skips = asyncio.Event(), asyncio.Event()

        async def supervise() -> None:
            await begun.wait()
            await consumer.close(WITHIN_S)

        async def on_assign(_partitions: object) -> None:
            closing.append(asyncio.create_task(supervise()))

        async def on_error(_error: DeserializationError) -> None:
            begun.set()
            await skips.wait()

        setting.decode, setting.on_error = _refuse, on_error
        consumer = cast("Any", setting.consumer).consumer
        consumer.subscribe(["orders"], on_assign=on_assign)
        setting.shared.tell(Tell.ASSIGNED, [PARTITION])
        if is_skipped:
            skips.set()
        polling = asyncio.create_task(consumer.poll(WITHIN_S))
        await asyncio.wait_for(begun.wait(), WITHIN_S)
        await asyncio.wait_for(closing[0], WITHIN_S)
        skips.set()
        assert not await asyncio.wait_for(polling, WITHIN_S)
        assert setting.frontend.is_closed

    asyncio.run(scenario())
