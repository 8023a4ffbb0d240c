"""Kafka has lost records that the state of a partition has: no offset is committed without a copy of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from consumer_agent import Batch
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.region.own_state import Checkpoint
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.out_of_range import OutOfRange
from tests.unit.consumer_agent.region.test_state_interrupts import KeptSetting
from tests.unit.consumer_agent.runtime.interrupts import PARTITION, Interrupted

READ, CUT = [0, 1, 2, 3, 4], 3


class CutSetting(KeptSetting):
    """A region whose log is cut once it has a copy of its state; the state has all that was ever processed."""

    def process_next(self) -> None:
        self.in_own_thread(self.fetcher_round)
        self.state += [record.offset for record in self.next_batch()]

    def cut(self, at: int = CUT) -> None:
        """Do what the fetcher does once a new leader has said where its log ends."""
        with self.shared.lock:
            self.shared.reset(OutOfRange(PARTITION, self.consumer.position()[PARTITION], 0, at, at, is_cut=True))
        self.fetcher.change(self.shared.buffer.fetched)

    def move(self) -> None:
        self.begin_move()
        self.consumer.poll(0.0, max_records=0)


@pytest.fixture
def setting() -> CutSetting:
    made = CutSetting()
    made.process_next()
    made.region.checkpoint()
    assert (made.finished(), made.committed, made.copies[5]) == (5, 5, READ)
    return made


def test_an_unclean_end_after_a_cut_leaves_the_last_copy_the_valid_one(setting: CutSetting) -> None:
    """As it was: the offset of the cut was committed, and each later owner failed to restore a state from there.

    In `Engine`, do not tell the buffer that the region keeps copies.
    """
    setting.cut()
    setting.region.__exit__(Interrupted, Interrupted(), None)
    assert setting.finished() == NO_OFFSET


def test_a_partition_that_moves_after_a_cut_takes_along_a_copy_of_its_state(setting: CutSetting) -> None:
    """In `PartitionStates._note_going_back`, do nothing: the former offset is final, which Kafka does not have."""
    setting.cut()
    setting.move()
    assert (setting.finished(), setting.copies[CUT]) == (CUT, READ)


def test_other_records_at_the_same_offsets_are_in_a_copy_of_their_own(setting: CutSetting) -> None:
    """In `PartitionStates._processed_batch`, keep what is stored: the state seems to be that of the copy at 5."""
    poll = setting.consumer.poll

    def cut_first(timeout_s: float) -> Batch:
        setting.cut()
        setting.in_own_thread(setting.fetcher_round)
        return poll(timeout_s, max_records=2)

    with mock.patch.object(setting.consumer, "poll", cut_first):
        setting.process_next()
    assert setting.state == [*READ, 3, 4]
    setting.region.checkpoint()
    assert (setting.committed, setting.copies[5]) == (5, [*READ, 3, 4])


@pytest.mark.parametrize(("at", "finished"), [(CUT, NO_OFFSET), (7, 5)])
def test_a_cut_while_a_copy_is_stored_ends_no_iteration(setting: CutSetting, at: int, finished: int) -> None:
    """In `RecordBuffer.finish_below`, finish what is left; in `_store_and_commit`, raise what the commit raises."""
    own: Any = setting.region._own
    handlers = own._handlers

    def store_slowly(checkpoint: Checkpoint) -> None:
        handlers.checkpoint(checkpoint)
        setting.cut(at)

    setting.process_next()
    own._handlers, own._due_s = replace(handlers, checkpoint=store_slowly), 0.0
    setting.process_next()
    assert (setting.finished(), setting.committed) == (finished, 5)
    own._handlers = handlers
    setting.region.checkpoint()
    assert setting.committed == setting.finished() > at
    assert setting.copies[setting.committed] == setting.state


def test_where_the_application_seeks_back_its_state_is_stored_anew(setting: CutSetting) -> None:
    """With `auto_offset_reset="none"`, it says itself where to go on after a cut."""
    setting.consumer.seek({PARTITION: 2})
    setting.move()
    assert (setting.finished(), setting.copies[2]) == (2, READ)


def test_a_partition_that_has_no_position_yet_may_move() -> None:
    """With `auto_offset_reset="none"`, until the application seeks. As it was: `on_revoke` failed with a KeyError."""
    setting = CutSetting()
    setting.shared.tell(Tell.LOST)
    setting.shared.admit(PARTITION, 2, NO_OFFSET)
    setting.shared.tell(Tell.ASSIGNED, [PARTITION])
    setting.consumer.poll(0.0, max_records=0)
    setting.move()
    assert setting.finished() == NO_OFFSET
