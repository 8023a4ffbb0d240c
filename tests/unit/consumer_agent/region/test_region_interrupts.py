"""The handler of a signal raises at any point of a batch and its transaction: each result is stored once, as before."""

from __future__ import annotations

import sqlite3
from typing import Any, cast

import pytest

from consumer_agent import Batch, Consumer
from consumer_agent.membership.events import Origin
from consumer_agent.region import ConsistentRegion
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting, interrupted_at_each_point
from zkrebalancer.protocol.fields import TopicPartition

STRIDES = [pytest.param(1, marks=pytest.mark.long), 31]


class RegionSetting(Setting):
    """A setting whose consumer is in a region, with a sink in SQLite that allows the same result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared.origins[PARTITION] = Origin("id", 0)
        self.shared.tell(Tell.ASSIGNED, [PARTITION])
        self.consumer.poll(0.0, max_records=0)
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE results (number INTEGER)")
        self.waits = 0
        self.shared.changed.wait_for_change = self._wait  # type: ignore[method-assign, assignment]

    def _wait(self, _changes: int, _timeout_s: float | None) -> None:
        self.waits += 1
        assert self.waits < COUNT, "it waits, and no record comes"
        self.in_own_thread(self.fetcher_round)

    def made(self, **settings: Any) -> Consumer:
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(consumer, name="r")
        return consumer

    def one_batch(self) -> None:
        for batch in self.region:
            with self.region.transaction(self.database) as database:
                database.executemany("INSERT INTO results VALUES (?)", [(record.offset,) for record in batch])
            return

    def rest(self) -> list[int]:
        """Process the rest; return all results."""
        for _ in range(COUNT):
            self.in_own_thread(self.fetcher_round)
            if self.consumer.finished() == {PARTITION: COUNT}:
                break
            self.one_batch()
        return [number for (number,) in self.database.execute("SELECT number FROM results ORDER BY rowid")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops one in a deallocation
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("before", [0, 1])
def test_no_result_is_lost_or_doubled_by_an_interrupt(before: int, stride: int) -> None:
    def prepare(setting: Any) -> None:
        for _ in range(before):
            setting.one_batch()
            setting.in_own_thread(setting.fetcher_round)

    left_open = 0
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.one_batch(),  # type: ignore[attr-defined]
        prepare,
        kind=RegionSetting,
        stride=stride,
    ):
        assert isinstance(setting, RegionSetting)
        if setting.database.in_transaction:  # at the point where `__exit__` begins, and has done nothing yet
            left_open += 1
            setting.database.rollback()
        assert setting.rest() == list(range(COUNT))
        assert setting.consumer.paused() == []
        setting.database.close()
    assert left_open <= 1


class StateSetting(RegionSetting):
    """A region whose application keeps a state for each partition."""

    def made(self, **settings: Any) -> Consumer:
        self.stored: dict[TopicPartition, int | None] = {}
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(
            consumer,
            name="r",
            recovery="partition",
            on_checkpoint=lambda checkpoint: self.stored.update(checkpoint.offsets or {}),
            on_reset=lambda _checkpoint: None,
        )
        return consumer

    def next_batch(self) -> Batch:
        if not self.told_to_iterate:
            self.batches, self.told_to_iterate = iter(self.region), True
        for batch in self.batches:  # not `next`: what follows a call would be interrupted, too
            return batch
        raise AssertionError("it has ended")

    told_to_iterate = False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("before", [0, 1])
def test_no_batch_counts_as_processed_that_the_application_did_not_get(before: int, stride: int) -> None:
    state: list[int] = []

    def prepare(setting: Any) -> None:
        state.clear()
        for _ in range(before):
            state.extend(record.offset for record in setting.next_batch())
            setting.in_own_thread(setting.fetcher_round)

    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        kind=StateSetting,
        stride=stride,
    ):
        assert isinstance(setting, StateSetting)
        state.extend(record.offset for record in cast("Batch | None", result) or ())
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        while len(state) < COUNT:
            setting.in_own_thread(setting.fetcher_round)
            state.extend(record.offset for record in setting.next_batch())
        assert state == list(range(COUNT))
        setting.region.checkpoint()
        assert setting.stored == {PARTITION: COUNT}
