"""The machine thread: what it does of the machine's effects while the application's thread is at work, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast
from unittest import mock

import pytest

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import NoOffsetError
from consumer_agent.kafka.watchdog import WatchedFetcher
from consumer_agent.membership.effects import ResumeFetching, StartFetching
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.runtime.machine_thread import MachineThread
from consumer_agent.runtime.record_buffer import RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from tests.unit.consumer_agent.messages import ROOMY
from zkrebalancer.protocol.fields import TopicPartition

P0, P1 = ("t", 0), ("t", 1)


class Fetcher:
    """Notes what is to be fetched; before it takes the lock, the application may seek."""

    def __init__(self, seek: Callable[[], object]) -> None:
        self.seek = seek
        self.changes: dict[TopicPartition, int | None] = {}

    def change(self, decide: Callable[[], Mapping[TopicPartition, int | None]]) -> None:
        self.seek()
        self.changes |= decide()


class Setting:
    """A machine thread that does not run: the test performs effects."""

    def __init__(self, seek: dict[TopicPartition, int]) -> None:
        self.shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
        self.fetcher = Fetcher(lambda: self.shared.buffer.seek(seek, is_finished=True))
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
        fetcher = cast("WatchedFetcher", self.fetcher)
        self.machine_thread = MachineThread(config, mock.Mock(), self.shared, fetcher, Telemetry(None, "g"))

    def perform(self, effect: StartFetching | ResumeFetching) -> None:
        self.machine_thread._performers[type(effect)](effect)

    def failure(self) -> object:
        with self.shared.lock:
            return self.shared.take_failure()


@pytest.mark.parametrize("offset", [5, 20])
def test_who_seeks_in_on_assign_gets_the_records_from_there_on(offset: int) -> None:
    """Also backwards, and while the machine thread is about to begin to fetch: the partition has been announced."""
    setting = Setting({P0: offset})
    setting.perform(StartFetching({P0: 17}, 1))
    assert setting.fetcher.changes == {P0: offset}
    setting.shared.stop([P0])
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0})))
    assert setting.fetcher.changes == {P0: offset}


def test_a_partition_without_a_place_is_told_of_and_not_fetched_unless_on_assign_has_sought() -> None:
    setting = Setting({P1: 3})
    setting.perform(StartFetching({P0: NO_OFFSET, P1: NO_OFFSET}, 1))
    assert setting.fetcher.changes == {P1: 3}
    assert isinstance(setting.failure(), NoOffsetError)
    setting.shared.stop([P0, P1])
    assert setting.failure() is None
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0, P1})))
    assert setting.fetcher.changes == {P1: 3}
    assert str(setting.failure()).startswith("t/0: no offset of group g is stored")
