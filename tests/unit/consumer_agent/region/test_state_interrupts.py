"""The handler of a signal raises while a region keeps a state for each partition, and partitions come and go."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumer_agent import Batch, Consumer
from consumer_agent.membership.events import CommitRequested, Event, Revoked, StoredRequested
from consumer_agent.region import Checkpoint, ConsistentRegion
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.region.test_region_interrupts import STRIDES, StateSetting
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, interrupted_at_each_point, uninterrupted


class LosingSetting(StateSetting):
    """The same, whose partition is lost while a checkpoint is committed."""

    is_lost = False

    def _machine(self, event: Event) -> None:
        if isinstance(event, CommitRequested):
            self.is_lost = True
            uninterrupted(self.lose)
        super()._machine(event)


class MovedSetting(StateSetting):
    """The same, whose state is the list of the records that it has processed. Each move is cancelled."""

    def made(self, **settings: Any) -> Consumer:
        self.state: list[int] = []
        self.copies: dict[int | None, list[int]] = {None: []}
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(
            consumer, name="r", recovery="partition", on_checkpoint=self.store, on_reset=self.restore
        )
        return consumer

    def store(self, checkpoint: Checkpoint) -> None:
        for offset in (checkpoint.offsets or {}).values():
            self.copies[offset] = list(self.state)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        assert checkpoint is not None
        for offset in (checkpoint.offsets or {}).values():
            self.state[:] = self.copies[offset]

    def process_next(self) -> None:
        self.in_own_thread(self.fetcher_round)
        self.state += [record.offset for record in self.next_batch()]
        assert self.state == list(range(len(self.state)))

    def begin_move(self) -> None:
        self.shared.stop([PARTITION])
        self.fetcher.unassign([PARTITION])
        self.shared.tell(Tell.REVOKE, [PARTITION], 7)

    def cancel_move(self) -> None:
        self.shared.resume([PARTITION])
        self.fetcher.change(self.shared.buffer.fetched)
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

    def _machine(self, event: Event) -> None:
        if isinstance(event, Revoked):
            uninterrupted(self.cancel_move)
        elif isinstance(event, StoredRequested):
            self.shared.answer(event.token, {PARTITION: None}, None)
        else:
            super()._machine(event)


@pytest.mark.parametrize("stride", STRIDES)
def test_an_iteration_that_goes_on_after_an_interrupted_checkpoint_restores_what_has_come_back(stride: int) -> None:
    def prepare(setting: Any) -> None:
        setting.next_batch()
        setting.in_own_thread(setting.fetcher_round)
        setting.restored.clear()

    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.region.checkpoint(),  # type: ignore[attr-defined]
        prepare,
        kind=LosingSetting,
        stride=stride,
    ):
        assert isinstance(setting, LosingSetting)
        assert setting.next_batch()[0].offset == (0 if setting.is_lost else 5)
        assert bool(setting.restored) == setting.is_lost


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 3, 20])
def test_no_record_is_lost_if_on_revoke_was_interrupted_and_the_move_cancelled(again_after: int, stride: int) -> None:
    """In `PartitionStates._restore_new`, go on at the position: no copy has the records before it."""

    def prepare(setting: Any) -> None:
        setting.process_next()
        setting.in_own_thread(setting.fetcher_round)
        setting.begin_move()

    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=MovedSetting,
        stride=stride,
    ):
        assert isinstance(setting, MovedSetting)
        setting.state += [record.offset for record in cast("Batch | None", result) or ()]
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        while len(setting.state) < COUNT:
            setting.process_next()
