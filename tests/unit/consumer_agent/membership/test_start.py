"""start-fetcher: offsets first, then the ack, then the records."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import (
    Failpoint,
    RecordFetcher,
    ResolveOffsets,
    StartFetching,
    TellAssigned,
    TellOrigins,
    Warn,
)
from consumer_agent.membership.events import CloseRequested, CommitRequested, OffsetsResolved, Origin, Position, Tick
from consumer_agent.membership.start import MAX_RESOLVE_RETRY_MS
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CAUSE,
    CHANNEL,
    CONSUMER,
    GROUP,
    LEASE_MS,
    LIST_CHANNEL,
    OWNERS,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
    owners_content,
    requests,
)
from zkrebalancer.protocol import command, offset_lives, ownership, paths
from zkrebalancer.protocol.calls import (
    Children,
    Delete,
    Done,
    Get,
    Multi,
    Refusal,
    Refused,
    SetContent,
    Sync,
    Watched,
)
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.ownership import OwnersRecord

START = StartFetcher("start-1", 1, 4, CAUSE, {T0: 0, T1: 1})
OWNED = OwnersRecord(4, "start-1", {T0: 0})


def ack(driver: Driver, record: OwnersRecord = OWNED, version: int = 0) -> Multi:
    return Multi((SetContent(OWNERS, ownership.encode_owners(record), version), Delete(driver.command_path)))


@pytest.fixture
def driver() -> Driver:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    return driver


def test_offsets_are_read_together_and_nothing_is_emitted_before_the_ack(driver: Driver) -> None:
    effects = driver.send(command.encode(START))
    assert requests(effects) == [Get(offset_path(T0)), Get(offset_path(T1))]
    driver.answer(Get(offset_path(T0)), content(b"10"))
    effects = driver.answer(Get(offset_path(T1)), content(b"20"))
    record = OwnersRecord(4, "start-1", {T0: 0, T1: 1})
    assert requests(effects) == [ack(driver, record)]
    assert of_type(effects, StartFetching) == []
    effects = driver.answer_write(Done((1, None)))
    positions = {T0: 10, T1: 20}
    assert effects == [
        Failpoint("after-ack"),
        RecordFetcher("fetcher_started", CONSUMER, 4, CAUSE.id, positions, command_id="start-1"),
        TellAssigned(frozenset(positions)),
        StartFetching(positions, 4, {T1: 1}),
    ]


def test_an_ack_that_a_frozen_process_learns_of_late_counts_from_when_it_was_certainly_alive(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.now_ms += LEASE_MS + 700
    (recorded,) = of_type(driver.answer_write(Done((1, None))), RecordFetcher)
    assert recorded.late_ms == 700


def test_rule_7_an_ack_deletes_the_command_and_sets_the_record_at_its_known_version(driver: Driver) -> None:
    driver.own({T0: 10})
    driver.start({T1: 20}, "start-2")
    (write,) = driver.writes()
    assert write == ack(driver, OwnersRecord(4, "start-2", {T0: 0, T1: 0}), version=1)


def test_partitions_without_a_stored_offset_are_resolved_before_the_ack(driver: Driver) -> None:
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"10"))
    effects = driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE))
    (question,) = of_type(effects, ResolveOffsets)
    assert question.partitions == frozenset({T1})
    assert driver.writes() == []
    driver.step(OffsetsResolved(question.token, {T1: 5}))
    effects = driver.answer_write(Done((1, None)))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 10, T1: 5}, 4, {T1: 1})]


def test_kafka_is_asked_again_ever_more_slowly_when_it_gives_no_answer(driver: Driver) -> None:
    """The first retries are quick and silent: ZooKeeper has a new topic a moment before the brokers know it."""
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"10"))
    (question,) = of_type(driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE)), ResolveOffsets)
    for delay_ms in (50, 100, 200, 400, 800):
        assert of_type(driver.step(OffsetsResolved(question.token, {T1: None})), Warn) == []
        driver.now_ms += delay_ms - 1
        assert of_type(driver.step(Tick()), ResolveOffsets) == []
        driver.now_ms += 1
        (again,) = of_type(driver.step(Tick()), ResolveOffsets)
        assert again.token != question.token
        assert driver.step(OffsetsResolved(question.token, {T1: 1})) == []  # an answer to the earlier question
        question = again
    assert of_type(driver.step(OffsetsResolved(question.token, {T1: None})), Warn) == []
    assert driver.writes() == []
    driver.now_ms += 1_600
    (question,) = of_type(driver.step(Tick()), ResolveOffsets)
    assert len(of_type(driver.step(OffsetsResolved(question.token, {T1: None})), Warn)) == 1
    assert len(driver.writes()) == 1


def test_a_stored_offset_that_is_no_number_counts_as_none_and_is_told(driver: Driver) -> None:
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"10"))
    effects = driver.answer(Get(offset_path(T1)), content(b"ten"))
    assert len(of_type(effects, Warn)) == 1
    assert [question.partitions for question in of_type(effects, ResolveOffsets)] == [frozenset({T1})]


def test_a_start_of_what_is_owned_already_is_acknowledged_and_changes_nothing(driver: Driver) -> None:
    driver.own({T0: 10})
    effects = driver.send(command.encode(StartFetcher("start-2", 1, 6, CAUSE, {T0: 0})))
    assert requests(effects) == [ack(driver, OwnersRecord(6, "start-2", {T0: 0}), version=1)]
    assert driver.answer_write(Done((2, None))) == [Failpoint("after-ack")]


def test_commands_are_taken_one_at_a_time_in_order(driver: Driver) -> None:
    driver.step(Watched(CHANNEL, children=True))
    names = ("command-0000000009", "command-0000000010", "garbage")
    effects = driver.answer(LIST_CHANNEL, Children(names))
    assert requests(effects) == [Get(f"{CHANNEL}/command-0000000009")]
    driver.sequence = 9
    data = command.encode(StartFetcher("start-1", 1, 4, CAUSE, {}))
    assert len(requests(driver.answer(Get(f"{CHANNEL}/command-0000000009"), content(data)))) == 1
    effects = driver.answer_write(Done((1, None)))
    assert requests(effects) == [Get(f"{CHANNEL}/command-0000000010")]


def test_a_listing_from_before_the_ack_does_not_bring_the_command_back(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.step(Watched(CHANNEL, children=True))
    driver.answer_write(Done((1, None)))
    effects = driver.answer(LIST_CHANNEL, Children(("command-0000000000",)))
    assert requests(effects) == []


def test_rule_8_after_a_lost_reply_the_record_that_names_the_command_means_done(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.break_connection()
    effects = driver.connect()
    assert [call for call in requests(effects) if isinstance(call, Sync | Get)] == [Sync(OWNERS), Get(OWNERS)]
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), owners_content(OWNED, 1))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 10}, 4)]
    driver.answer(LIST_CHANNEL, Children(()))
    driver.start({T1: 1}, "start-2")
    (write,) = driver.writes()
    assert write.operations[0].version == 1  # type: ignore[union-attr]


def test_rule_8_after_a_lost_reply_an_unchanged_record_means_send_again(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.break_connection()
    driver.connect()
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), owners_content(OwnersRecord(0, None, {}), 0))
    assert requests(effects) == [ack(driver)]


def test_rule_8_after_a_lost_reply_a_missing_record_means_evicted(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.break_connection()
    driver.connect()
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), Refused(Refusal.NO_NODE))
    assert of_type(effects, StartFetching) == []
    assert driver.machine.state is State.OUT


def test_rule_8_reads_that_break_again_are_made_again(driver: Driver) -> None:
    driver.start({T0: 10})
    for _ in range(3):
        driver.break_connection()
        driver.connect()
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), owners_content(OWNED, 1))
    assert len(of_type(effects, StartFetching)) == 1


def test_rule_10_a_start_whose_command_is_gone_is_dropped(driver: Driver) -> None:
    driver.start({T0: 10})
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1))
    assert of_type(effects, StartFetching) == []
    assert driver.machine.state is State.ACTIVE


@pytest.mark.parametrize("leaves", [False, True])
def test_late_answers_to_a_start_that_was_dropped_lead_to_nothing(driver: Driver, leaves: bool) -> None:
    driver.send(command.encode(START))
    if leaves:
        driver.step(CloseRequested())
    else:
        driver.step(Watched(CHANNEL, children=True))
        driver.answer(LIST_CHANNEL, Children(()))
    effects = driver.answer(Get(offset_path(T0)), content(b"10"))
    effects += driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE))
    assert effects == []


def test_an_ack_that_finds_no_record_means_evicted(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.answer_write(Refused(Refusal.NO_NODE, 0))
    assert driver.machine.state is State.OUT


def test_an_ack_at_the_wrong_version_reads_again_and_decides(driver: Driver) -> None:
    driver.start({T0: 10})
    effects = driver.answer_write(Refused(Refusal.BAD_VERSION, 0))
    assert requests(effects) == [Sync(OWNERS), Get(OWNERS)]
    driver.answer(Sync(OWNERS), Done())
    foreign = OwnersRecord(9, "somebody else's", {})
    driver.answer(Get(OWNERS), owners_content(foreign, 5))
    assert driver.machine.state is State.OUT


def test_a_start_that_is_cancelled_while_kafka_is_asked_is_dropped(driver: Driver) -> None:
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"10"))
    (question,) = of_type(driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE)), ResolveOffsets)
    driver.step(Watched(CHANNEL, children=True))
    driver.answer(LIST_CHANNEL, Children(()))
    assert driver.step(OffsetsResolved(question.token, {T1: 5})) == []


def test_a_command_that_is_gone_before_it_is_read_is_skipped(driver: Driver) -> None:
    driver.step(Watched(CHANNEL, children=True))
    driver.answer(LIST_CHANNEL, Children(("command-0000000000", "command-0000000001")))
    effects = driver.answer(Get(f"{CHANNEL}/command-0000000000"), Refused(Refusal.NO_NODE))
    assert requests(effects) == [Get(f"{CHANNEL}/command-0000000001")]


@pytest.mark.parametrize("broken_reads", [1, 2])
def test_reads_that_a_broken_connection_interrupted_are_made_again(driver: Driver, broken_reads: int) -> None:
    driver.step(Watched(CHANNEL, children=True))
    driver.answer(LIST_CHANNEL, Children(("command-0000000000",)))
    driver.sequence = 0
    driver.break_connection()
    assert Get(driver.command_path) in requests(driver.connect())
    driver.answer(Get(driver.command_path), content(command.encode(START)))
    if broken_reads == 2:
        driver.answer(Get(offset_path(T0)), content(b"10"))
    driver.break_connection()
    expected = [Get(offset_path(T0)), Get(offset_path(T1))][broken_reads - 1 :]
    reread = [call for call in requests(driver.connect()) if isinstance(call, Get)]
    assert sorted(reread, key=str) == expected


def test_what_stood_in_an_earlier_life_of_a_partition_is_forgotten_when_it_cannot_be_read(driver: Driver) -> None:
    driver.own({T0: 10})
    driver.progress(driver.stop(None), {T0: Position(10, 10)})
    driver.answer_write(Done((2, None)))
    driver.send(command.encode(StartFetcher("start-2", 1, 6, CAUSE, {T0: 0})))
    (question,) = of_type(driver.answer(Get(offset_path(T0)), content(b"ten")), ResolveOffsets)
    driver.step(OffsetsResolved(question.token, {T0: 3}))
    driver.answer_write(Done((3, None)))
    driver.progress(driver.step(CommitRequested(99)), {T0: Position(10, 10)})
    (write,) = driver.writes()
    assert write.operations[1] == SetContent(offset_path(T0), b"10")


def test_the_next_question_to_kafka_is_due_when_the_machine_says_so(driver: Driver) -> None:
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"10"))
    (question,) = of_type(driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE)), ResolveOffsets)
    driver.step(OffsetsResolved(question.token, {T1: None}))
    assert driver.machine.wake_at_ms == driver.now_ms + 50


@pytest.mark.parametrize("reply", [Refused(Refusal.NO_AUTH), Refused(Refusal.NO_AUTH, 2), Refused(Refusal.NO_AUTH, 9)])
def test_an_ack_that_is_refused_for_no_known_reason_is_not_repeated(driver: Driver, reply: Refused) -> None:
    """ZooKeeper does not say which operation, or names one that was not sent: nothing can be learned from it."""
    driver.start({T0: 10})
    effects = driver.answer_write(reply)
    assert driver.writes() == []
    assert of_type(effects, StartFetching) == []


def test_a_member_of_a_region_learns_what_its_partitions_progress_belongs_to() -> None:
    driver = Driver(auto_commit_interval_ms=None, in_region=True)
    driver.register()
    effects = driver.send(command.encode(START))
    lives, mark = Get(paths.lives(GROUP, "t")), Get(paths.offsets(GROUP, "t"))
    assert {lives, mark} <= set(requests(effects))
    driver.answer(mark, content(b"id-1 czxid-7"))
    for partition in (T0, T1):
        driver.answer(Get(offset_path(partition)), content(b"7"))
    again = driver.answer(lives, Refused(Refusal.CONNECTION_LOST))
    assert requests(again) == [lives]
    driver.answer(lives, content(offset_lives.encode({1: 4})))
    effects = driver.answer_write(Done((1, None)))
    assert of_type(effects, TellOrigins) == [
        TellOrigins({T0: Origin("id-1 czxid-7", 0), T1: Origin("id-1 czxid-7", 4)})
    ]


def test_unreadable_lives_are_ignored_with_a_warning() -> None:
    driver = Driver(auto_commit_interval_ms=None, in_region=True)
    driver.register()
    driver.send(command.encode(START))
    driver.answer(Get(paths.offsets(GROUP, "t")), content(b"czxid-7"))
    effects = driver.answer(Get(paths.lives(GROUP, "t")), content(b"junk"))
    assert "its sink continues at its own offsets" in of_type(effects, Warn)[0].text


@pytest.mark.parametrize(
    ("in_region", "keeps_copies", "copyless"), [(True, True, {T1}), (True, False, set()), (False, False, set())]
)
def test_where_a_partition_begins_is_not_stored_if_that_would_name_a_copy_of_its_state(
    in_region: bool, keeps_copies: bool, copyless: set[tuple[str, int]]
) -> None:
    """In `Start._resolve`, leave it out: the next owner looks for a copy that was never stored."""
    driver = Driver(auto_commit_interval_ms=None, in_region=in_region, keeps_copies=keeps_copies)
    driver.register()
    driver.send(command.encode(START))
    driver.answer(Get(offset_path(T0)), content(b"7"))
    effects = driver.answer(Get(offset_path(T1)), Refused(Refusal.NO_NODE))
    if in_region:
        driver.answer(Get(paths.offsets(GROUP, "t")), content(b"czxid-7"))
        effects = driver.answer(Get(paths.lives(GROUP, "t")), Refused(Refusal.NO_NODE))
    (asked,) = of_type(effects, ResolveOffsets)
    driver.step(OffsetsResolved(asked.token, {T1: 3}))
    effects = driver.answer_write(Done((1, None)))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 7, T1: 3}, 4, {T1: 1}, copyless=frozenset(copyless))]


def test_what_has_no_copy_is_known_too_if_kafka_says_in_parts_where_partitions_begin() -> None:
    """In `Start._resolve`, forget those that Kafka has answered about."""
    driver = Driver(auto_commit_interval_ms=None, in_region=True, keeps_copies=True)
    driver.register()
    driver.send(command.encode(START))
    for partition in (T0, T1):
        driver.answer(Get(offset_path(partition)), Refused(Refusal.NO_NODE))
    driver.answer(Get(paths.offsets(GROUP, "t")), content(b"czxid-7"))
    effects = driver.answer(Get(paths.lives(GROUP, "t")), Refused(Refusal.NO_NODE))
    (asked,) = of_type(effects, ResolveOffsets)
    driver.step(OffsetsResolved(asked.token, {T0: 5, T1: None}))
    driver.now_ms += MAX_RESOLVE_RETRY_MS
    (again,) = of_type(driver.step(Tick()), ResolveOffsets)
    assert again.partitions == {T1}
    driver.step(OffsetsResolved(again.token, {T1: 3}))
    effects = driver.answer_write(Done((1, None)))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 5, T1: 3}, 4, {T1: 1}, copyless=frozenset({T0, T1}))]
