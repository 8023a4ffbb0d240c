"""Partitions that Kafka says nothing about in time are owned without a position, and begin once it answers."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import Effect, PlacePartitions, ResolveOffsets, StartFetching, Warn
from consumer_agent.membership.events import CloseRequested, OffsetsResolved, Position
from consumer_agent.membership.late_beginnings import RETRY_MS
from consumer_agent.membership.start import RESOLVE_LIMIT_MS
from tests.unit.consumer_agent.membership.driver import (
    GROUP,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Done, Get, Refusal, Refused


def question(effects: list[Effect]) -> ResolveOffsets:
    (asked,) = of_type(effects, ResolveOffsets)
    return asked


def unanswered_start(driver: Driver, command_id: str = "start-1") -> list[Effect]:
    """Start T0, whose offset is stored, and T1, which Kafka says nothing about, up to where the ack is written."""
    driver.send_start((T0, T1), command_id)
    driver.answer(Get(offset_path(T0)), content(b"10"))
    asked = question(driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE)))
    driver.now_ms += RESOLVE_LIMIT_MS
    return driver.step(OffsetsResolved(asked.token, {T1: None}))


def late_question(driver: Driver) -> ResolveOffsets:
    return question(driver.tick(RETRY_MS))


def asks_again(driver: Driver) -> bool:
    return bool(of_type(driver.tick(RETRY_MS), ResolveOffsets))


@pytest.fixture
def driver() -> Driver:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    return driver


def test_a_partition_that_kafka_says_nothing_about_keeps_no_other_one_waiting(driver: Driver) -> None:
    """In `Start.handle_resolved`, wait as long as one is missing: a topic without a leader stops the whole start."""
    warned = of_type(unanswered_start(driver), Warn)
    assert [one.text for one in warned] == [f"{T1[0]}/{T1[1]}: Kafka does not say where it begins; asking again"]
    effects = driver.answer_write(Done((1, None)))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 10, T1: -1}, 4)]
    asked = late_question(driver)
    assert asked.partitions == {T1}
    assert of_type(driver.step(OffsetsResolved(asked.token, {T1: None})), PlacePartitions) == []
    asked = late_question(driver)
    effects = driver.step(OffsetsResolved(asked.token, {T1: 5}))
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 5})]
    assert not asks_again(driver)


def test_a_stop_neither_waits_for_such_a_partition_nor_stores_an_offset_of_it(driver: Driver) -> None:
    unanswered_start(driver)
    driver.answer_write(Done((1, None)))
    asked = late_question(driver)
    driver.progress(driver.stop(frozenset({T1})), {T0: Position(10, 10), T1: Position(-1, -1)})
    (ack,) = driver.writes()
    assert [operation.path for operation in ack.operations if operation.path.startswith(offset_path(T1))] == []
    driver.answer_write(Done((2, None)))
    assert of_type(driver.step(OffsetsResolved(asked.token, {T1: 5})), PlacePartitions) == []
    assert not asks_again(driver)


def test_an_answer_from_before_a_stop_does_not_count_for_the_next_start(driver: Driver) -> None:
    """Do not drop them in `Member._write_ended`: meanwhile, another member may have read and stored more."""
    unanswered_start(driver)
    driver.answer_write(Done((1, None)))
    asked = late_question(driver)
    driver.progress(driver.stop(frozenset({T0, T1})), {T0: Position(10, 10), T1: Position(-1, -1)})
    driver.answer_write(Done((2, None)))
    unanswered_start(driver, "start-2")
    driver.answer_write(Done((3, None)))
    assert of_type(driver.step(OffsetsResolved(asked.token, {T1: 5})), PlacePartitions) == []
    asked = late_question(driver)
    effects = driver.step(OffsetsResolved(asked.token, {T1: 7}))
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 7})]


def test_a_cancelled_start_leaves_nothing_to_ask(driver: Driver) -> None:
    unanswered_start(driver)
    (ack,) = driver.writes()
    deleted = next(index for index, operation in enumerate(ack.operations) if operation.path == driver.command_path)
    driver.answer_write(Refused(Refusal.NO_NODE, deleted))
    assert not asks_again(driver)


def test_who_leaves_asks_no_more(driver: Driver) -> None:
    unanswered_start(driver)
    driver.answer_write(Done((1, None)))
    driver.step(CloseRequested())
    assert not asks_again(driver)


@pytest.mark.parametrize("in_region", [True, False])
def test_a_start_of_a_region_waits_for_all_positions(in_region: bool) -> None:
    """That of a Spark query, which may have a sink, does not: one broker that was away stopped all its partitions."""
    driver = Driver(auto_commit_interval_ms=None, tells_origins=True, in_region=in_region)
    driver.register()
    driver.send_start((T1,))
    driver.answer(Get(paths.offsets(GROUP, T1[0])), content(b"id-1 czxid-5"))
    driver.answer(Get(paths.lives(GROUP, T1[0])), Refused(Refusal.NO_NODE))
    asked = question(driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE)))
    driver.now_ms += RESOLVE_LIMIT_MS
    driver.step(OffsetsResolved(asked.token, {T1: None}))
    assert len(driver.writes()) == (not in_region)
