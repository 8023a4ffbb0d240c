"""The handler of a signal raises while a region keeps a state for each partition, and partitions come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast
from unittest import mock

import pytest

from consumer_agent import Batch, Consumer
from consumer_agent.membership.events import CommitRequested, Event, Revoked, StoredRequested
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.region import Checkpoint, ConsistentRegion
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Finished
from tests.unit.consumer_agent.region.test_region_interrupts import STRIDES, StateSetting
from tests.unit.consumer_agent.runtime.interrupts import (
    COUNT,
    PARTITION,
    Interrupted,
    interrupted_at_each_point,
    uninterrupted,
)
from zkrebalancer.protocol.fields import TopicPartition


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


Moved = TypeVar("Moved", bound=MovedSetting)


def interrupted_polls(
    kind: type[Moved], prepare: Callable[[Any], None], again_after: int, stride: int
) -> Iterator[Moved]:
    """Yield a setting for each point at which its poll was interrupted; it has processed what that returned."""
    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=kind,
        stride=stride,
    ):
        assert isinstance(setting, kind)
        setting.state += [record.offset for record in cast("Batch | None", result) or ()]
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        yield setting


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 3, 20])
def test_no_record_is_lost_if_on_revoke_was_interrupted_and_the_move_cancelled(again_after: int, stride: int) -> None:
    """In `PartitionStates._restore_new`, go on at the position: no copy has the records before it."""

    def prepare(setting: Any) -> None:
        setting.process_next()
        setting.in_own_thread(setting.fetcher_round)
        setting.begin_move()

    for setting in interrupted_polls(MovedSetting, prepare, again_after, stride):
        while len(setting.state) < COUNT:
            setting.process_next()


class KeptSetting(MovedSetting):
    """The same, with commits, and copies that are deleted once they are retired."""

    committed: int | None = None
    is_cancelled_before = is_resumed_late = is_resume_due = False

    def make_database(self) -> None:
        """Let nothing be finished, as the machine does before there is a copy."""
        super().make_database()
        self.shared.buffer.finish_at({PARTITION: Finished(NO_OFFSET)})

    def made(self, **settings: Any) -> Consumer:
        consumer = super().made(**settings)
        own: Any = self.region._own
        own._handlers = replace(own._handlers, retire=self.retire)
        return consumer

    def retire(self, checkpoint: Checkpoint) -> None:
        for offset in (checkpoint.offsets or {}).values():
            for former in [at for at in self.copies if at is not None and at < (offset or 0)]:
                del self.copies[former]

    def begin_move(self) -> None:
        super().begin_move()
        if self.is_cancelled_before:
            super().cancel_move()

    def cancel_move(self) -> None:
        """Tell the application before the partition is returned again, as the machine does."""
        if not self.is_cancelled_before:
            self.shared.tell(Tell.ASSIGNED, [PARTITION])
            self.is_resume_due = True
            if not self.is_resumed_late:
                self.resume()

    def resume(self) -> None:
        if self.is_resume_due:
            self.is_resume_due = False
            self.shared.resume([PARTITION])
            self.fetcher.change(self.shared.buffer.fetched)

    def _wait(self, changes: int, timeout_s: float | None) -> None:
        uninterrupted(self.resume)
        super()._wait(changes, timeout_s)

    def _machine(self, event: Event) -> None:
        if isinstance(event, CommitRequested):
            self.committed = uninterrupted(self.finished)
        if isinstance(event, StoredRequested):
            self.shared.answer(event.token, {PARTITION: self.committed}, None)
        else:
            super()._machine(event)

    def finished(self) -> int:
        return self.shared.positions()[PARTITION].finished

    def check_copies(self) -> None:
        """Whoever owns the partition next finds the copy that belongs to the offset where it begins."""
        for offset in (self.finished(), self.committed):
            assert offset in {NO_OFFSET, None} or self.copies[offset] == list(range(offset or 0))


def one_batch(setting: KeptSetting) -> None:
    setting.process_next()


def a_copy(setting: KeptSetting) -> None:
    setting.process_next()
    setting.region.checkpoint()


def a_batch_behind_a_copy(setting: KeptSetting) -> None:
    a_copy(setting)
    setting.process_next()


def a_reset(setting: KeptSetting) -> None:
    """The partition began in the middle of what Kafka has, and nothing is stored."""
    setting.shared.buffer.seek({PARTITION: 5}, is_finished=True)
    setting.region._own._begins[PARTITION] = (1, 5)  # type: ignore[union-attr]
    with mock.patch.object(setting.consumer, "beginning_offsets", return_value={PARTITION: 0}):
        setting.region.reset(None)
    setting.process_next()


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("when", ["before", "after", "and resumed late"])
@pytest.mark.parametrize("again_after", [0, 20])
@pytest.mark.parametrize("prepare", [one_batch, a_copy, a_batch_behind_a_copy, a_reset])
def test_a_state_goes_on_with_its_copy_if_on_revoke_was_interrupted_and_the_move_cancelled(
    prepare: Callable[[KeptSetting], None], again_after: int, when: str, stride: int
) -> None:
    """In `PartitionStates._behind`, take the position for where the state is; in `reset`, keep where it began."""

    def begin(setting: Any) -> None:
        setting.is_cancelled_before, setting.is_resumed_late = when == "before", when == "and resumed late"
        prepare(setting)
        setting.in_own_thread(setting.fetcher_round)
        setting.begin_move()

    for setting in interrupted_polls(KeptSetting, begin, again_after, stride):
        setting.check_copies()
        while len(setting.state) < COUNT:
            setting.process_next()
            setting.check_copies()
        setting.region.checkpoint()
        assert setting.committed == COUNT
        setting.check_copies()


class NewSetting(KeptSetting):
    """The same, whose partition the application does not know yet."""

    is_announced = False


def nothing(_setting: KeptSetting) -> None: ...


def a_reset_that_is_due(setting: KeptSetting) -> None:
    """A copy is valid, and the state is ahead of it."""
    a_batch_behind_a_copy(setting)

    def beginnings(*_: object, **__: object) -> dict[TopicPartition, int]:
        return {PARTITION: 0}

    setting.consumer.beginning_offsets = beginnings  # type: ignore[method-assign]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 20])
@pytest.mark.parametrize(
    ("kind", "prepare", "call"),
    [
        (NewSetting, nothing, lambda one: one.next_batch()),
        (KeptSetting, a_reset_that_is_due, lambda one: one.region.reset(None)),
    ],
)
def test_whatever_an_unclean_end_commits_has_a_copy(
    kind: type[KeptSetting],
    prepare: Callable[[Any], None],
    call: Callable[[Any], object],
    again_after: int,
    stride: int,
) -> None:
    """In `PartitionStates._continue_at`, do not store what begins: each later owner fails to restore it."""
    finished: int | None = None
    for setting, _, _ in interrupted_at_each_point(call, prepare, again_after, kind=kind, stride=stride):
        assert isinstance(setting, KeptSetting)
        setting.region.__exit__(Interrupted, Interrupted(), None)
        setting.check_copies()
        finished = setting.finished()
    assert finished == 0
