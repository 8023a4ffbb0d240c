"""Whatever gives the application something to do wakes it: a poll without a timeout, and an idle thread of `run`."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from consumer_agent import Batch
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.workers import Workers
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from tests.unit.consumer_agent.messages import messages
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting
from zkrebalancer.protocol.fields import TopicPartition

OTHERS = [("orders", 1), ("orders", 2)]


class EndedError(Exception): ...


class Walk:
    """Random steps of all three threads, without a wait."""

    def __init__(self, seed: int) -> None:
        self.random, self.setting = random.Random(seed), Setting()
        self.shared = self.setting.shared
        self.told: set[TopicPartition] = set()
        self.tokens = 0

    def step(self) -> None:
        """Take a step, and compare what there is to do with before. A poll looks itself for what it brings."""
        others = self.put, self.stop, self.cancel, self.forget, self.admit, self.tell
        step = self.random.choice([*others, self.put, self.pause, self.resume, self.seek, self.poll, self.poll])
        before, changes = self.to_do(), self.shared.changed.changes
        step(self.random.choice([PARTITION, *OTHERS]))
        new = self.to_do() - before
        assert not new or step == self.poll or self.shared.changed.changes > changes, (step.__name__, new)

    def to_do(self) -> set[object]:
        with self.shared.lock:
            found: set[object] = {"a callback"} if self.shared.has_notice else set()
            return found.union(set(self.shared.buffer._ready) - self.shared.unannounced)

    # ---- the machine thread, and the fetcher's

    def admit(self, partition: TopicPartition) -> None:
        if not self.shared.buffer.holds([partition]):
            self.shared.admit(partition, 1, 0)

    def tell(self, partition: TopicPartition) -> None:
        """An assignment may be told before its partition has a position."""
        if partition not in self.told:
            self.told.add(partition)
            self.shared.tell(Tell.ASSIGNED, [partition])

    def put(self, partition: TopicPartition) -> None:
        offset = self.shared.buffer.next_offset(partition)
        if offset is not None:
            put = {partition: messages(partition, range(offset, offset + 2))}
            self.setting.fetcher._changes.clear()
            self.setting.fetcher._put(put, is_drawn=False, are_awaited=False)

    def stop(self, partition: TopicPartition) -> None:
        if partition in self.told and partition in self.shared.buffer.emitting():
            self.tokens += 1
            self.shared.stop([partition])
            self.shared.tell(Tell.REVOKE, [partition], self.tokens)

    def cancel(self, partition: TopicPartition) -> None:
        if self.shared.buffer.holds([partition]) and partition not in self.shared.buffer.emitting():
            self.shared.tell(Tell.ASSIGNED, [partition])
            self.shared.resume([partition])

    def forget(self, partition: TopicPartition) -> None:
        self.told.discard(partition)
        self.shared.forget([partition])

    # ---- the application's thread

    def pause(self, partition: TopicPartition) -> None:
        self.if_known(partition, lambda: self.setting.consumer.pause([partition]))

    def resume(self, partition: TopicPartition) -> None:
        self.if_known(partition, lambda: self.setting.consumer.resume([partition]))

    def seek(self, partition: TopicPartition) -> None:
        self.if_known(partition, lambda: self.setting.consumer.seek({partition: self.random.randrange(COUNT)}))

    def poll(self, _partition: TopicPartition) -> None:
        self.setting.consumer.poll(0.0, max_records=self.random.randrange(3))

    def if_known(self, partition: TopicPartition, call: Callable[[], object]) -> None:
        if self.shared.is_known(partition):
            call()


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 2_000), marks=pytest.mark.long)])
def test_whatever_there_is_to_do_wakes_the_application(seeds: range) -> None:
    """In `Frontend.change`, or in `SharedState.forget`, notify nobody."""
    for seed in seeds:
        walk = Walk(seed)
        for _ in range(60):
            walk.step()


def test_an_idle_thread_gets_what_was_set_aside_once_it_is_resumed() -> None:
    """In `Frontend.change`, notify nobody: on a quiet topic, records stayed beside an idle thread for ever."""
    setting, offsets = Setting(), list[int]()
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    setting.consumer.poll(0.0, max_records=0)

    def handle(batch: Batch) -> None:
        offsets.extend(record.offset for record in batch)
        if offsets[-1] == 4:
            setting.fetcher._put({PARTITION: messages(PARTITION, range(5, 10))}, is_drawn=False, are_awaited=False)
            setting.consumer.pause([PARTITION])
        else:
            raise EndedError

    ends: list[BaseException] = []

    def run() -> None:
        try:
            setting.consumer.run(handle)
        except EndedError as end:
            ends.append(end)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    wait_until(lambda: offsets and _is_idle(setting), "the threads wait")
    setting.consumer.resume([PARTITION])
    running.join(WITHIN_S)
    assert len(ends) == 1
    assert offsets == list(range(10))


def _is_idle(setting: Setting) -> bool:
    """Whether the handler has paused, and its thread waits."""
    (listener,) = setting.frontend.listeners
    workers = listener.__self__  # type: ignore[attr-defined]
    assert isinstance(workers, Workers)
    return bool(setting.consumer.paused()) and not workers._in_hand and bool(workers._idle[0]._waiting)
