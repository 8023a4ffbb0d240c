"""The engine: what it does of the machine's effects while the application's thread is at work, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast
from unittest import mock

import pytest

from consumer_agent.buffer import RecordBuffer
from consumer_agent.config import ConsumerConfig
from consumer_agent.engine import Engine
from consumer_agent.errors import NoOffsetError
from consumer_agent.handover import Handover
from consumer_agent.keeper import FetcherKeeper
from consumer_agent.signals import ResumeFetching, StartFetching
from consumer_agent.storage import NO_OFFSET
from consumer_agent.telemetry import Telemetry
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
    """An engine that does not run: the test performs effects."""

    def __init__(self, seek: dict[TopicPartition, int]) -> None:
        self.handover = Handover(RecordBuffer(ROOMY), lambda: 0)
        self.fetcher = Fetcher(lambda: self.handover.buffer.seek(seek, is_finished=True))
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
        fetcher = cast("FetcherKeeper", self.fetcher)
        self.engine = Engine(config, mock.Mock(), self.handover, fetcher, Telemetry(None, "g"))

    def perform(self, effect: StartFetching | ResumeFetching) -> None:
        self.engine._performers[type(effect)](effect)

    def failure(self) -> object:
        with self.handover.lock:
            return self.handover.take_failure()


@pytest.mark.parametrize("offset", [5, 20])
def test_who_seeks_in_on_assign_gets_the_records_from_there_on(offset: int) -> None:
    """Also backwards, and while the engine is about to begin to fetch: the partition has been announced by then."""
    setting = Setting({P0: offset})
    setting.perform(StartFetching({P0: 17}, 1))
    assert setting.fetcher.changes == {P0: offset}
    setting.handover.stop([P0])
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0})))
    assert setting.fetcher.changes == {P0: offset}


def test_a_partition_without_a_place_is_told_of_and_not_fetched_unless_on_assign_has_sought() -> None:
    setting = Setting({P1: 3})
    setting.perform(StartFetching({P0: NO_OFFSET, P1: NO_OFFSET}, 1))
    assert setting.fetcher.changes == {P1: 3}
    assert isinstance(setting.failure(), NoOffsetError)
    setting.handover.stop([P0, P1])
    assert setting.failure() is None
    setting.fetcher.changes.clear()
    setting.perform(ResumeFetching(frozenset({P0, P1})))
    assert setting.fetcher.changes == {P1: 3}
    assert str(setting.failure()).startswith("t/0: no offset of group g is stored")
