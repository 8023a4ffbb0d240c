"""Handlers in threads, and the commits of records that they have finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
from confluent_kafka import Message

from consumer_agent import Batch, Consumer, ConsumerStateError
from consumer_agent.membership.events import Resubscribed
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.runtime.interrupts import (
    COUNT,
    PARTITION,
    Setting,
    T,
    interrupted_at_each_point,
    no_longer_than,
)

LIMIT_S = 20.0


class KeepingSetting(Setting):
    """A consumer that commits nothing by itself."""

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, enable_auto_commit=False)


@pytest.mark.parametrize(("kind", "lines"), [(KeepingSetting, 1), (Setting, 0)])
def test_run_says_if_nothing_stores_what_handlers_finish(
    kind: type[Setting], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was: a commit in a handler was refused with the words that its batch is stored anyway."""
    setting = kind()

    def handle(_batch: Batch) -> None:
        setting.consumer.commit()

    with pytest.raises(ConsumerStateError, match="and stored by automatic commits, or with its partition"):
        setting.consumer.run(handle)
    assert len(caplog.messages) == lines


def test_a_handler_from_before_a_loss_finishes_none_of_the_records_that_came_back() -> None:
    """In `Workers._work`, name no generation: after a reset, records that no handler got were skipped."""
    setting = KeepingSetting()
    has_come_back = threading.Event()

    def handle(batch: Batch) -> None:
        if batch[0].generation == 2:  # in the other thread
            has_come_back.set()
            raise EndedError
        setting.shared.forget([PARTITION])
        setting.shared.admit(PARTITION, 2, 0, thread=1)
        setting.fetcher.change(lambda: {PARTITION: 0})
        setting.fetcher_round()
        assert has_come_back.wait(LIMIT_S)

    with pytest.raises(EndedError):
        setting.consumer.run(handle, threads=2)
    assert setting.consumer.finished() == {PARTITION: 0}


def test_a_commit_in_a_callback_finishes_no_batch_of_a_handler() -> None:
    """In `Usage.is_within_batch`, forget handlers: the usual `on_revoke` committed their records: they were lost."""
    setting, has_committed = KeepingSetting(), threading.Event()

    def commit(_partitions: object) -> None:
        setting.consumer.commit()
        has_committed.set()

    def handle(_batch: Batch) -> None:
        setting.shared.admit(("orders", 1), 1, 0)
        setting.shared.tell(Tell.ASSIGNED, [("orders", 1)])
        assert has_committed.wait(LIMIT_S)
        raise EndedError

    setting.consumer.subscribe(["orders"], on_assign=commit, on_revoke=commit)
    with pytest.raises(EndedError):
        setting.consumer.run(handle)
    assert setting.shared.positions()[PARTITION].finished == 0


def test_a_commit_after_run_finishes_no_batch_whose_handler_has_failed() -> None:
    """As above, in the `finally` of an application: its usual `commit()` finished the batch, which was lost."""
    setting = KeepingSetting()

    def handle(_batch: Batch) -> None:
        raise EndedError

    with pytest.raises(EndedError):
        setting.consumer.run(handle)
    setting.consumer.commit()
    assert setting.shared.positions()[PARTITION].finished == 0


@pytest.mark.parametrize(
    ("wanted", "threads"),
    [
        ({"topics": ["orders", "new"]}, {"orders": 3, "new": 3}),
        ({"pattern": "o.*"}, {"o.*": 3}),
        ({"topics": {"orders": 2}}, {"orders": 2}),
    ],
)
def test_a_subscription_within_run_keeps_its_threads(wanted: dict[str, Any], threads: dict[str, int]) -> None:
    """In `subscribe`, register one thread: one handler got all partitions from then on, and the others nothing."""
    setting = Setting()

    def handle(_batch: Batch) -> None:
        setting.consumer.subscribe(**wanted)
        raise EndedError

    with pytest.raises(EndedError):
        setting.consumer.run(handle, threads=3)
    registered = [event.registration.subscription for event in setting.sent if isinstance(event, Resubscribed)]
    assert registered == [{"orders": 3}, threads]
    setting.consumer.subscribe(["orders"])
    assert isinstance(setting.sent[-1], Resubscribed)
    assert setting.sent[-1].registration.subscription == {"orders": 1}


def test_another_greenlet_of_the_thread_that_fetches_does_not_overtake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `draw_for_threads`, ask only the lock, which is reentrant: with gevent, a log's handler may let others run.

    What the first one had was dropped then, as it came after later records.
    """
    setting = Setting()
    consume, calls = setting.client.consume, list[object]()

    def consume_slowly(count: int, **options: float) -> list[Message]:
        found = consume(count, **options)
        calls.append(found and len(calls) == 0 and setting.frontend.draw_for_threads())
        return found

    monkeypatch.setattr(setting.client, "consume", consume_slowly)
    setting.frontend.draw_for_threads()
    with setting.shared.lock:
        (run,) = setting.shared.buffer.take(None)
    assert [message.offset() for message in run.messages] == [0, 1, 2, 3, 4]


class DecodingSetting(Setting):
    """A consumer whose partition is lost, and comes back, while a thread deserializes its first record."""

    def __init__(self) -> None:
        self.has_lost = False
        super().__init__()
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, value_deserializer=self.decode)

    def decode(self, data: bytes) -> bytes:
        if self.has_lost:
            return data
        self.has_lost = True
        self.shared.tell(Tell.LOST)
        deadline_s = time.monotonic() + LIMIT_S
        while self.shared.was_known(PARTITION):  # until the other thread has run `on_lost`
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        self.shared.forget([PARTITION])
        self.shared.admit(PARTITION, 2, 0)
        self.fetcher.change(lambda: {PARTITION: 0})
        self.fetcher_round()
        raise ValueError("no number")


def test_a_bad_record_of_a_lost_partition_ends_no_run() -> None:
    """In `stay_at`, name its partition: `run` raised that this is not assigned, in words about a poll."""
    setting, offsets = DecodingSetting(), list[int]()

    def handle(batch: Batch) -> None:
        offsets.extend(record.offset for record in batch)
        raise EndedError

    with pytest.raises(EndedError):
        setting.consumer.run(handle)
    assert offsets[0] == 0


class HandlingSetting(Setting):
    """A consumer whose handler gets one batch, and ends `run`."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.is_handling = False
        super().__init__()
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

    def handle(self, batch: Batch) -> None:
        self.is_handling = True
        self.offsets += [record.offset for record in batch]
        until_s = time.monotonic() + 0.001
        while time.monotonic() < until_s:  # it works, so that `run` has to wait for it
            time.sleep(0)
        self.is_handling = False
        raise EndedError

    def run(self) -> None:
        with suppress(EndedError):
            self.consumer.run(self.handle, threads=2)


class EndedError(Exception): ...


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops one in a deallocation
@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=pytest.mark.long)])
def test_an_interrupt_ends_run_with_all_its_threads(rounds: int) -> None:
    """In `Workers.run`, use an executor, or do not repeat `_end`: it hung, or left threads that nobody ended.

    What a point is differs from round to round: the threads run beside it.
    """
    interrupted = 0
    runs = chain.from_iterable(interrupted_runs() for _ in range(rounds))
    for setting, _, is_interrupted in each_within(LIMIT_S, runs):
        assert isinstance(setting, HandlingSetting)
        frontend = setting.frontend
        assert not setting.is_handling
        assert (frontend.listeners, frontend._in_poll, frontend.runner) == ([], False, None)
        assert not setting.shared.presence.is_working
        assert setting.offsets + setting.read_all() == list(range(COUNT))
        interrupted += is_interrupted
    assert interrupted > 100 * rounds


def interrupted_runs() -> Iterator[tuple[Setting, object, bool]]:
    return interrupted_at_each_point(HandlingSetting.run, kind=HandlingSetting)  # type: ignore[arg-type]


def each_within(limit_s: float, found: Iterator[T]) -> Iterator[T]:
    """Return what an iterator returns, each within a time."""
    while True:
        with no_longer_than(limit_s):
            one = next(found, None)
        if one is None:
            return
        yield one
