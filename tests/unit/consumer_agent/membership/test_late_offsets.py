"""Partitions whose stored offsets Kafka does not say are owned without a position, and never begin anywhere else."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import (
    CommitToKafka,
    Effect,
    PlacePartitions,
    ReadKafkaOffsets,
    ResolveOffsets,
    StartFetching,
    TellStored,
    Warn,
)
from consumer_agent.membership.events import (
    CloseRequested,
    CommitRequested,
    KafkaCommitted,
    KafkaOffsetsRead,
    OffsetsResolved,
    Position,
    StoredRequested,
)
from consumer_agent.membership.late_beginnings import RETRY_MS
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.start import KAFKA_READ_LIMIT_MS, UNREAD_LIMIT_MS
from tests.unit.consumer_agent.membership.driver import (
    GROUP,
    OWNERS,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Done, Get, Refusal, Refused, SetContent
from zkrebalancer.protocol.fields import TopicPartition

MARK = Get(paths.offsets(GROUP, "t"))
TEXT = "zkrebalancer:id-1 czxid-5"
T2 = ("t", 2)
Found = dict[TopicPartition, tuple[int, str] | None]


def begin(
    storage: Storage = Storage.KAFKA, *, begins_anywhere: bool = True, in_region: bool | None = None
) -> tuple[Driver, list[Effect]]:
    """Return a driver whose start of three partitions waits for Kafka, and what the start has asked for.

    `in_region`: None for a plain consumer, False for a Spark query.
    """
    is_told = in_region is not None
    driver = Driver(
        storage=storage,
        begins_anywhere=begins_anywhere,
        tells_origins=is_told,
        in_region=bool(in_region),
        auto_commit_interval_ms=None,
    )
    driver.register()
    effects = send_start(driver, "start-1")
    if is_told:
        driver.answer(Get(paths.lives(GROUP, "t")), Refused(Refusal.NO_NODE))
    if storage is Storage.DUAL:
        for number, offset in enumerate((b"1", b"20", None)):
            stored = Refused(Refusal.NO_NODE) if offset is None else content(offset)
            driver.answer(Get(offset_path(("t", number))), stored)
    return driver, effects


def send_start(driver: Driver, name: str) -> list[Effect]:
    effects = driver.send_start((T0, T1, T2), name)
    return effects + driver.answer(MARK, content(b"id-1 czxid-5"))


def question(effects: list[Effect]) -> ReadKafkaOffsets:
    (asked,) = of_type(effects, ReadKafkaOffsets)
    return asked


def say(driver: Driver, asked: ReadKafkaOffsets, found: Found | None) -> list[Effect]:
    return driver.step(KafkaOffsetsRead(asked.token, found))


def wait_in_vain(driver: Driver, effects: list[Effect], found: Found) -> list[Effect]:
    """Let Kafka say nothing of the rest until the start goes on without."""
    asked = question(effects)
    assert of_type(say(driver, asked, found), Warn) == []
    assert driver.writes() == []
    asked = question(driver.tick(UNREAD_LIMIT_MS))
    assert asked.partitions == {tp for tp, one in found.items() if one is None}, "what is known is asked for again"
    return say(driver, asked, dict.fromkeys(asked.partitions))


def owner(storage: Storage = Storage.KAFKA, *, begins_anywhere: bool = True) -> Driver:
    """Return a driver that owns all three: T0 is read, and of T1 and T2 Kafka has not said what is stored."""
    driver, effects = begin(storage, begins_anywhere=begins_anywhere)
    wait_in_vain(driver, effects, {T0: (10, TEXT), T1: None, T2: None})
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 10, T1: -1, T2: -1}
    assert started.unread == {T1, T2}
    return driver


def test_a_topic_whose_offsets_cannot_be_read_keeps_no_other_one_waiting() -> None:
    """In `Start.handle_kafka_offsets`, wait as long as one is missing."""
    driver, effects = begin()
    told = of_type(wait_in_vain(driver, effects, {T0: (10, TEXT), T1: None, T2: None}), Warn)
    text = "t/1 and 1 other partitions: Kafka does not say what is stored; asking again"
    assert [one.text for one in told] == [text]
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 10, T1: -1, T2: -1}
    asked = question(driver.tick(RETRY_MS))
    assert asked.partitions == {T1, T2}
    assert say(driver, asked, None) == []
    effects = say(driver, question(driver.tick(RETRY_MS)), {T1: (7, TEXT), T2: None})
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 7})]
    asked = question(driver.tick(RETRY_MS))
    assert asked.partitions == {T2}
    assert of_type(say(driver, asked, {T2: (8, TEXT)}), PlacePartitions) == [PlacePartitions({T2: 8})]
    assert of_type(driver.tick(RETRY_MS), ReadKafkaOffsets) == []


def test_what_is_said_within_two_seconds_begins_at_once() -> None:
    driver, effects = begin()
    say(driver, question(effects), {T0: (10, TEXT), T1: None, T2: (12, TEXT)})
    asked = question(driver.tick(UNREAD_LIMIT_MS - 1))
    assert asked.partitions == {T1}
    say(driver, asked, {T1: (11, TEXT)})
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert (started.positions, started.unread) == ({T0: 10, T1: 11, T2: 12}, frozenset())


def test_a_group_whose_offsets_cannot_be_read_at_all_waits_until_some_are_known() -> None:
    """And then, no failure of the next request stops what is known. In `Start.handle_kafka_offsets`, forget it."""
    driver, effects = begin()
    for _ in range(20):
        assert of_type(say(driver, question(effects), None), StartFetching) == []
        effects = driver.tick(RETRY_MS)
    assert driver.writes() == []
    say(driver, question(effects), {T0: (10, TEXT), T1: (11, TEXT), T2: None})
    say(driver, question(driver.tick(UNREAD_LIMIT_MS)), None)
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 10, T1: 11, T2: -1}


def test_a_start_whose_topics_cannot_be_read_at_all_does_not_keep_its_consumer_from_other_commands() -> None:
    """They are refused one by one, which is an answer."""
    driver, effects = begin()
    wait_in_vain(driver, effects, dict.fromkeys((T0, T1, T2)))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.unread == {T0, T1, T2}


def test_a_start_of_a_query_with_a_sink_does_not_wait_for_all_offsets() -> None:
    """It may be in a region by its sink only: nobody needs all its positions."""
    driver, effects = begin(in_region=False)
    wait_in_vain(driver, effects, {T0: (10, TEXT), T1: None, T2: None})
    assert len(driver.writes()) == 1


def test_a_start_of_a_region_waits_for_all_offsets() -> None:
    driver, effects = begin(in_region=True)
    asked = question(effects)
    for _ in range(5):
        assert driver.writes() == []
        say(driver, asked, {T0: (10, TEXT), T1: None, T2: (12, TEXT)})
        asked = question(driver.tick(UNREAD_LIMIT_MS))
    say(driver, asked, {T1: (11, TEXT)})
    assert len(driver.writes()) == 1


@pytest.mark.parametrize("begins_anywhere", [True, False])
def test_where_nothing_is_stored_after_all_the_setting_decides(begins_anywhere: bool) -> None:
    """In `LateBeginnings.handle_read`, ask where they begin in any case: with `none`, the application has to say it."""
    driver = owner(begins_anywhere=begins_anywhere)
    effects = say(driver, question(driver.tick(RETRY_MS)), {T1: (7, TEXT)})
    if not begins_anywhere:
        assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 7, T2: -1})]
        return
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 7})]
    (asked,) = of_type(driver.tick(RETRY_MS), ResolveOffsets)
    assert asked.partitions == {T2}
    effects = driver.step(OffsetsResolved(asked.token, {T2: 5}))
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T2: 5})]


@pytest.mark.parametrize(("in_kafka", "begins_at"), [(7, 20), (25, 25), (None, 20)])
def test_in_dual_it_waits_for_kafka_and_then_the_higher_offset_wins(in_kafka: int | None, begins_at: int) -> None:
    """In `Start._read`, begin where ZooKeeper says: consumers that write only Kafka may have finished more."""
    driver = owner(Storage.DUAL)
    found: Found = {T2: None} if in_kafka is None else {T1: (in_kafka, TEXT), T2: None}
    effects = say(driver, question(driver.tick(RETRY_MS)), found)
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: begins_at})]


def test_an_offset_of_an_earlier_topic_of_that_name_does_not_count() -> None:
    driver = owner()
    effects = say(driver, question(driver.tick(RETRY_MS)), {T1: (7, "zkrebalancer:id-0"), T2: (8, "")})
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T2: 8})]
    (asked,) = of_type(driver.tick(RETRY_MS), ResolveOffsets)
    assert asked.partitions == {T1}


def test_what_kafka_has_not_said_is_not_told_as_missing() -> None:
    """In `Commits.tell_stored`, tell what is known: an application that looks begins anew, and loses its place."""
    driver = owner()
    (told,) = of_type(driver.step(StoredRequested(5, None)), TellStored)
    assert told.error == "Kafka does not say what is stored of t/1"
    assert driver.step(StoredRequested(6, frozenset({T0}))) == [TellStored(6, {T0: 10})]
    say(driver, question(driver.tick(RETRY_MS)), {T1: (7, TEXT)})
    assert driver.step(StoredRequested(7, frozenset({T1, T2}))) == [TellStored(7, {T1: 7, T2: None})]


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_is_committed_meanwhile_is_newer_than_an_answer(is_stored: bool) -> None:
    """In `KafkaBook.note_late`, believe the answer: going back to 7 would not be committed."""
    driver = owner()
    asked = question(driver.tick(RETRY_MS))
    positions = {T0: Position(10, 10), T1: Position(99, 99), T2: Position(-1, -1)}  # the application has sought
    driver.progress(driver.step(CommitRequested(99)), positions)
    (committed,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert committed.offsets == {T1: (99, TEXT)}
    failed = {} if is_stored else {T1: "no answer"}  # then it may be stored
    driver.step(KafkaCommitted(committed.token, failed, is_hopeless=True))
    say(driver, asked, {T1: (7, TEXT), T2: None})
    positions[T1] = Position(7, 7)
    driver.progress(driver.step(CommitRequested(100)), positions)
    (committed,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert committed.offsets == {T1: (7, TEXT)}


def test_a_stop_neither_waits_for_such_a_partition_nor_stores_an_offset_of_it() -> None:
    driver = owner(Storage.DUAL)
    asked = question(driver.tick(RETRY_MS))
    nowhere = Position(-1, -1)
    driver.progress(driver.stop(frozenset({T1, T2})), {T0: Position(10, 10), T1: nowhere, T2: nowhere})
    (ack,) = driver.writes()
    assert [one.path for one in ack.operations if isinstance(one, SetContent)] == [OWNERS]
    driver.answer_write(Done((2, None)))
    assert of_type(say(driver, asked, {T1: (7, TEXT)}), PlacePartitions) == []
    assert of_type(driver.tick(RETRY_MS), ReadKafkaOffsets) == []


def test_an_answer_from_before_a_stop_does_not_count_for_the_next_start() -> None:
    """In `LateAnswers.keep`, keep the question: meanwhile, another member may have read and stored more."""
    driver = owner()
    former = question(driver.tick(RETRY_MS))
    driver.progress(driver.stop(frozenset({T0, T1, T2})), {T0: Position(10, 10)})
    driver.answer_write(Done((2, None)))
    wait_in_vain(driver, send_start(driver, "start-2"), {T0: (10, TEXT), T1: None, T2: None})
    driver.answer_write(Done((3, None)))
    asked = question(driver.tick(RETRY_MS))
    assert of_type(say(driver, former, {T1: (7, TEXT)}), PlacePartitions) == []
    effects = say(driver, asked, {T1: (9, TEXT), T2: None})
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 9})]


def test_a_client_that_never_says_what_is_stored_is_asked_again() -> None:
    """In `LateBeginnings.handle_tick`, set no limit: another client may by then be in the place of one that hangs."""
    driver = owner()
    former = question(driver.tick(RETRY_MS))
    asked = question(driver.tick(KAFKA_READ_LIMIT_MS))
    assert say(driver, former, {T1: (3, TEXT)}) == []
    effects = say(driver, asked, {T1: (7, TEXT), T2: None})
    assert of_type(effects, PlacePartitions) == [PlacePartitions({T1: 7})]


def test_a_cancelled_start_and_a_departure_leave_nothing_to_ask() -> None:
    driver, effects = begin()
    wait_in_vain(driver, effects, {T0: (10, TEXT), T1: None, T2: None})
    (ack,) = driver.writes()
    deleted = next(index for index, operation in enumerate(ack.operations) if operation.path == driver.command_path)
    driver.answer_write(Refused(Refusal.NO_NODE, deleted))
    assert of_type(driver.tick(RETRY_MS), ReadKafkaOffsets) == []
    driver = owner()
    driver.step(CloseRequested())
    assert of_type(driver.tick(RETRY_MS), ReadKafkaOffsets) == []
