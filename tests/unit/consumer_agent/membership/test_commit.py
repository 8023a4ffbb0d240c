"""Commits: what is written, under which fence, and what a lost reply leads to."""

from __future__ import annotations

import tracemalloc

import pytest

from consumer_agent.membership.effects import CommitFinished, Effect, ReadProgress, RecordCommitted, StopEmitting, Warn
from consumer_agent.membership.events import CloseRequested, CommitRequested, Position, Progress, Tick
from consumer_agent.membership.fenced_writes import MAX_REFUSALS, MAX_REFUSED_OFFSETS
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CAUSE,
    CONSUMER,
    GROUP,
    OWNERS,
    T0,
    T1,
    Driver,
    of_type,
    offset_path,
    owners_content,
    requests,
)
from zkrebalancer.protocol import command, paths
from zkrebalancer.protocol.calls import Check, Create, Done, Get, Lost, Multi, Refusal, Refused, SetContent, Sync
from zkrebalancer.protocol.ownership import OwnersRecord


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    driver.own({T0: 10, T1: 20})
    return driver


def commit(driver: Driver, finished: dict[tuple[str, int], int], token: int = 99) -> list[Effect]:
    positions = {partition: Position(offset + 1, offset) for partition, offset in finished.items()}
    return driver.progress(driver.step(CommitRequested(token)), positions)


def test_rule_9_a_commit_checks_the_exact_version_and_writes_only_what_changed(driver: Driver) -> None:
    effects = commit(driver, {T0: 12, T1: 20})
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"12")))]
    assert driver.answer_write(Done((None, 1))) == [RecordCommitted(CONSUMER, 4, {T0: 12}), CommitFinished((99,))]


def test_who_has_never_been_in_the_group_has_nothing_to_commit_and_who_has_lost_it_fails() -> None:
    driver = Driver()
    assert driver.step(CommitRequested(98)) == [CommitFinished((98,))]
    driver.register()
    driver.own({T0: 10})
    driver.step(Lost())
    assert driver.step(CommitRequested(99)) == [CommitFinished((99,), "the consumer is in no group")]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_commit_that_waits_fails_if_a_final_offset_was_not_stored(driver: Driver, *, is_cancelled: bool) -> None:
    """In `Member._write_ended`, forget that: the commit was confirmed, and the next owner read the records again.

    In `Commits`, keep the failure: every later commit failed. Or note it although the stop is cancelled.
    """
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(12, 12), T1: Position(21, 21)})
    driver.step(CommitRequested(99))
    driver.answer_write(Refused(Refusal.NO_AUTH, 2))
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1) if is_cancelled else Done((2, None)))
    kept = {T0: Position(10, 10)} if is_cancelled else {}
    driver.progress(effects, {T1: Position(21, 21), **kept})
    (finished,) = of_type(driver.answer_write(Done((None, 1))), CommitFinished)
    assert finished.tokens == (99,)
    assert (finished.error is None) is is_cancelled
    assert commit(driver, {T1: 21} | ({T0: 10} if is_cancelled else {}), 100) == [CommitFinished((100,))]


def test_a_commit_that_waits_fails_so_too_if_the_consumer_is_closed_before_it(driver: Driver) -> None:
    """In `StateMachine._left`, ask only what the last write has left out: the commit was confirmed."""
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(12, 12), T1: Position(21, 21)})
    driver.step(CommitRequested(99))
    driver.answer_write(Refused(Refusal.NO_AUTH, 2))
    driver.step(CloseRequested())
    driver.progress(driver.answer_write(Done((2, None))), {T1: Position(21, 21)})
    driver.answer_write(Done((None, 1)))
    (finished,) = of_type(driver.answer_write(Done()), CommitFinished)
    assert finished.tokens == (99,)
    assert finished.error is not None


def test_a_commit_of_nothing_new_is_over_at_once(driver: Driver) -> None:
    assert commit(driver, {T0: 10, T1: 20}) == [CommitFinished((99,))]


def test_partitions_that_are_not_owned_are_never_committed(driver: Driver) -> None:
    assert commit(driver, {("other", 1): 5}) == [CommitFinished((99,))]


def test_auto_commit_comes_after_its_interval(driver: Driver) -> None:
    driver.now_ms += 4_999
    assert of_type(driver.step(Tick()), ReadProgress) == []
    driver.now_ms += 1
    effects = driver.progress(driver.step(Tick()), {T0: Position(13, 13), T1: Position(20, 20)})
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"13")))]
    assert of_type(driver.answer_write(Done((None, 1))), CommitFinished) == []


def test_without_auto_commit_only_the_application_commits() -> None:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    driver.own({T0: 10})
    driver.now_ms += 1_000_000
    assert of_type(driver.step(Tick()), ReadProgress) == []


def test_offset_nodes_that_are_missing_are_created_and_so_is_their_topic() -> None:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    driver.own({T0: 10})
    driver.machine.member.lane.book.note_read(T0, None)  # type: ignore[union-attr]
    path = offset_path(T0)
    assert requests(commit(driver, {T0: 12})) == [Multi((Check(OWNERS, 1), Create(path, b"12")))]
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1))
    with_topic = Multi((Check(OWNERS, 1), Create(paths.offsets(GROUP, "t")), Create(path, b"12")))
    assert requests(effects) == [with_topic]
    effects = driver.answer_write(Refused(Refusal.NODE_EXISTS, 1))  # somebody created the topic meanwhile
    assert requests(effects) == [Multi((Check(OWNERS, 1), Create(path, b"12")))]
    effects = driver.answer_write(Refused(Refusal.NODE_EXISTS, 1))  # and the partition
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(path, b"12")))]
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1))  # and it was deleted again
    assert requests(effects) == [Multi((Check(OWNERS, 1), Create(path, b"12")))]


def test_one_write_is_under_way_at_a_time(driver: Driver) -> None:
    commit(driver, {T0: 12, T1: 20}, token=98)
    assert driver.step(CommitRequested(99)) == []
    driver.start({("u", 0): 5}, "start-2")
    assert len(driver.writes()) == 1  # the start's ack waits
    effects = driver.answer_write(Done((None, 1)))
    assert CommitFinished((98,)) in effects
    (write,) = driver.writes()  # commands go first
    assert isinstance(write.operations[0], SetContent)
    effects = driver.answer_write(Done((2, None)))
    effects = driver.progress(effects, {T0: Position(14, 14), T1: Position(20, 20)})
    assert requests(effects) == [Multi((Check(OWNERS, 2), SetContent(offset_path(T0), b"14")))]


def test_rule_9_a_lost_reply_is_retried_on_the_same_session(driver: Driver) -> None:
    commit(driver, {T0: 12, T1: 20})
    (write,) = driver.writes()
    driver.break_connection()
    assert write in requests(driver.connect())
    assert CommitFinished((99,)) in driver.answer_write(Done((None, 1)))


def test_rule_9_a_retry_cannot_rewind_because_nothing_newer_was_written_before_it(driver: Driver) -> None:
    commit(driver, {T0: 12, T1: 20})
    driver.break_connection()
    assert driver.step(CommitRequested(100)) == []  # a newer commit waits for the older one
    driver.connect()
    effects = driver.answer_write(Done((None, 1)))
    driver.progress(effects, {T0: Position(15, 15), T1: Position(20, 20)})
    (write,) = driver.writes()
    assert write.operations[1] == SetContent(offset_path(T0), b"15")


def test_a_commit_of_an_evicted_consumer_fails(driver: Driver) -> None:
    commit(driver, {T0: 12, T1: 20})
    (finished,) = of_type(driver.answer_write(Refused(Refusal.NO_NODE, 0)), CommitFinished)
    assert finished.error is not None
    assert driver.machine.state is State.OUT


def test_a_commit_at_the_wrong_version_reads_the_record_and_decides(driver: Driver) -> None:
    commit(driver, {T0: 12, T1: 20})
    driver.answer_write(Refused(Refusal.BAD_VERSION, 0))
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), owners_content(OwnersRecord(4, "start-1", {T0: 0, T1: 0}), 3))
    assert [finished.error is None for finished in of_type(effects, CommitFinished)] == [False]
    assert driver.machine.state is State.OUT


def test_a_commit_while_suspended_waits(driver: Driver) -> None:
    driver.break_connection()
    assert driver.step(CommitRequested(99)) == []
    assert len(of_type(driver.connect(), ReadProgress)) == 1


def test_positions_are_read_after_the_commit_was_asked_for(driver: Driver) -> None:
    effects = driver.step(CommitRequested(99))
    assert len(of_type(effects, ReadProgress)) == 1
    # a stop that comes in between asks for positions of its own; each question gets its own answer
    stop = driver.send(command.encode(command.StopFetcher("stop-1", 1, 5, CAUSE, None)))
    assert len(of_type(stop, StopEmitting)) == 1
    assert requests(driver.progress(stop, {T0: Position(13, 13), T1: Position(20, 20)})) == []
    driver.progress(effects, {T0: Position(12, 12), T1: Position(20, 20)})
    (write,) = driver.writes()
    assert write == Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"12")))
    driver.answer_write(Done((None, 1)))
    (write,) = driver.writes()
    assert SetContent(offset_path(T0), b"13") in write.operations


def test_a_read_of_the_offsets_is_not_repeated_for_a_commit(driver: Driver) -> None:
    assert Get(offset_path(T0)) not in requests(commit(driver, {T0: 11, T1: 20}))


def test_a_commit_costs_the_same_however_many_wait() -> None:
    """With a list that is copied for each, 10,000 that wait make the next one cost as much as they did together."""
    driver = Driver()
    driver.register()
    driver.own({T0: 0})
    driver.break_connection()
    for token in range(10_000):
        driver.step(CommitRequested(token))
    tracemalloc.start()
    driver.step(CommitRequested(10_000))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 20_000
    assert driver.machine.member is not None
    assert driver.machine.member.commits.tokens == tuple(range(10_001))


REFUSED_FOR_GOOD = pytest.mark.parametrize("refusal", [Refusal.QUOTA_EXCEEDED, Refusal.NO_AUTH, Refusal.MARSHALLING])


@REFUSED_FOR_GOOD
def test_an_offset_that_zookeeper_refuses_fails_the_commit_and_the_others_are_stored(
    driver: Driver, refusal: Refusal
) -> None:
    """In `WriteLane._refused`, leave the group: its records would be read again and again."""
    commit(driver, {T0: 12, T1: 22})
    effects = driver.answer_write(Refused(refusal, 1))
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T1), b"22")))]
    effects = driver.answer_write(Done((None, 1)))
    (finished,), (warning,) = of_type(effects, CommitFinished), of_type(effects, Warn)
    for text in (finished.error, warning.text):
        assert text is not None
        assert f"ZooKeeper refuses {offset_path(T0)}: {refusal.value}" in text
    assert driver.machine.state is State.ACTIVE
    assert requests(commit(driver, {T0: 13, T1: 22}, token=100))  # tried again
    effects = driver.answer_write(Refused(refusal, 1))
    assert of_type(effects, Warn) == []  # logged once
    assert of_type(effects, CommitFinished)[0].error is not None
    commit(driver, {T0: 14, T1: 22}, token=101)
    assert CommitFinished((101,)) in driver.answer_write(Done((None, 1)))


def test_offsets_whose_topic_cannot_be_created_fail_together() -> None:
    """In `OffsetBook.without`, leave out none of them: the topic's node would be tried for ever."""
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    driver.own({T0: 10, ("u", 0): 5})
    book = driver.machine.member.lane.book  # type: ignore[union-attr]
    book.note_read(T0, None)
    book.missing_topics.add("t")
    commit(driver, {T0: 12, ("u", 0): 6})
    effects = driver.answer_write(Refused(Refusal.QUOTA_EXCEEDED, 1))
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(("u", 0)), b"6")))]
    assert of_type(driver.answer_write(Done((None, 1))), CommitFinished)[0].error is not None


def test_a_commit_gives_up_after_some_refusals() -> None:
    """In `WriteLane._go_on_without`, try each offset: a thousand refusals for each commit of a thousand partitions."""
    driver, partitions = Driver(), {("t", number): 10 for number in range(MAX_REFUSED_OFFSETS + 2)}
    driver.register()
    driver.own(partitions)
    commit(driver, dict.fromkeys(partitions, 11))
    refusals = 0
    while driver.writes():
        driver.answer_write(Refused(Refusal.QUOTA_EXCEEDED, 1))
        refusals += 1
    assert refusals == MAX_REFUSED_OFFSETS
    assert driver.machine.state is State.ACTIVE


def test_a_topic_whose_offsets_are_refused_keeps_no_other_topic_from_being_stored() -> None:
    """In `WriteLane._go_on_without`, leave out everything at the tenth refusal."""
    driver, good = Driver(), ("u", 0)
    driver.register()
    stored = {("t", number): 10 for number in range(MAX_REFUSED_OFFSETS + 2)} | {good: 10}
    driver.own(stored)
    commit(driver, dict.fromkeys(stored, 11))
    for _ in range(MAX_REFUSED_OFFSETS):
        (write,) = driver.writes()
        assert write.operations[1] != SetContent(offset_path(good), b"11")
        driver.answer_write(Refused(Refusal.NO_AUTH, 1))
    (write,) = driver.writes()
    assert write == Multi((Check(OWNERS, 1), SetContent(offset_path(good), b"11")))
    effects = driver.answer_write(Done((None, 1)))
    assert RecordCommitted(CONSUMER, 4, {good: 11}) in effects
    assert of_type(effects, CommitFinished)[0].error is not None


def test_a_commit_gives_up_after_many_topics_were_refused() -> None:
    """In `WriteLane._go_on_without`, try each topic: a refusal for each of a thousand topics, with each commit."""
    driver, partitions = Driver(), {(f"t{number}", 0): 10 for number in range(MAX_REFUSALS + 2)}
    driver.register()
    driver.own(partitions)
    commit(driver, dict.fromkeys(partitions, 11))
    refusals = 0
    while driver.writes():
        driver.answer_write(Refused(Refusal.NO_AUTH, 1))
        refusals += 1
    assert refusals == MAX_REFUSALS


def test_a_stop_is_acknowledged_without_an_offset_that_zookeeper_refuses(driver: Driver) -> None:
    """In `WriteLane._go_on_without`, end the write: the stop would not be acknowledged, and its partitions wait."""
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(12, 12)})
    (write,) = driver.writes()
    assert write.operations[2] == SetContent(offset_path(T0), b"12")
    (again,) = requests(driver.answer_write(Refused(Refusal.QUOTA_EXCEEDED, 2)))
    assert again == Multi(write.operations[:2])


@REFUSED_FOR_GOOD
@pytest.mark.parametrize("is_stop", [False, True])
def test_a_consumer_that_may_not_write_its_record_leaves_with_a_reason(
    driver: Driver, refusal: Refusal, is_stop: bool
) -> None:
    """In `WriteLane._refused`, read the record again: it is unchanged, and it would be written for ever."""
    if is_stop:
        driver.progress(driver.stop(frozenset({T0})), {T0: Position(12, 12)})
    else:
        commit(driver, {T0: 12})
    (warning,) = of_type(driver.answer_write(Refused(refusal, 0)), Warn)
    assert f"ZooKeeper refuses {OWNERS}: {refusal.value}" in warning.text
    assert driver.writes() == []
    assert driver.machine.state is State.OUT


def test_each_request_is_answered_once(driver: Driver) -> None:
    """In `Commits.begin`, keep one of them waiting: it was answered again by the next commit, which nobody wanted."""
    commit(driver, {T0: 12, T1: 20}, 97)
    assert driver.step(CommitRequested(98)) == driver.step(CommitRequested(99)) == []
    (after,) = [effect for effect in driver.answer_write(Done((None, 1))) if isinstance(effect, ReadProgress)]
    ended = driver.step(Progress(after.token, {T0: Position(13, 12)}))
    assert ended == [CommitFinished((98, 99))]
