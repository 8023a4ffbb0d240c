"""stop-fetcher: emission ends, the application finishes, the final offsets go with the ack."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import (
    AskRevoke,
    CommitFinished,
    Effect,
    Failpoint,
    Forget,
    ReadProgress,
    RecordCommitted,
    RecordFetcher,
    ResumeFetching,
    StartFetching,
    StopEmitting,
    TellAssigned,
)
from consumer_agent.membership.events import CommitRequested, Position, Revoked
from consumer_agent.membership.offset_books import MAX_OPERATIONS
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CAUSE,
    CHANNEL,
    CONSUMER,
    LIST_CHANNEL,
    OWNERS,
    T0,
    T1,
    Driver,
    of_type,
    offset_path,
    owners_content,
    requests,
)
from zkrebalancer.protocol import ownership
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Create,
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
from zkrebalancer.protocol.ownership import OwnersRecord

NOTHING = OwnersRecord(5, "stop-1", {})
FINISHED = Position(returned=15, finished=15)
IN_HAND = Position(returned=15, finished=12)


def owning(ask_application: bool = False) -> Driver:
    driver = Driver(auto_commit_interval_ms=None, ask_application=ask_application)
    driver.register()
    driver.own({T0: 10, T1: 20})
    return driver


@pytest.fixture
def driver() -> Driver:
    return owning()


def ack(driver: Driver, record: OwnersRecord, *offsets: SetContent | Create) -> Multi:
    return Multi((SetContent(OWNERS, ownership.encode_owners(record), 1), Delete(driver.command_path), *offsets))


def revoke(driver: Driver, effects: list[Effect]) -> list[Effect]:
    (question,) = of_type(effects, AskRevoke)
    return driver.step(Revoked(question.token))


def test_emission_ends_at_once(driver: Driver) -> None:
    effects = driver.stop(frozenset({T0}))
    assert [effect.partitions for effect in of_type(effects, StopEmitting)] == [frozenset({T0})]
    assert requests(effects) == []


def test_an_application_that_has_finished_is_not_waited_for(driver: Driver) -> None:
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: FINISHED, T1: IN_HAND})
    kept = OwnersRecord(5, "stop-1", {T1: 0})
    assert requests(effects) == [ack(driver, kept, SetContent(offset_path(T0), b"15"))]


def test_the_stop_is_recorded_before_its_ack_and_the_commit_after_it(driver: Driver) -> None:
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: FINISHED, T1: IN_HAND})
    stopped = RecordFetcher("fetcher_stopped", CONSUMER, 5, CAUSE.id, {T0: 15}, "revoked", command_id="stop-1")
    assert effects[:2] == [stopped, Failpoint("before-stop-ack")]
    assert driver.answer_write(Done((2, None, 1))) == [
        Failpoint("after-stop-ack"),
        RecordCommitted(CONSUMER, 4, {T0: 15}),
        Forget(frozenset({T0})),
    ]


def test_rule_7_the_final_offset_never_passes_what_the_application_has_finished(driver: Driver) -> None:
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: IN_HAND, T1: FINISHED})
    assert requests(effects) == []
    effects = revoke(driver, effects)
    effects = driver.progress(effects, {T0: Position(15, 14), T1: FINISHED})
    (write,) = driver.writes()
    assert SetContent(offset_path(T0), b"14") in write.operations
    recorded = [(effect.kind, effect.reason, effect.positions) for effect in of_type(effects, RecordFetcher)]
    assert recorded == [("repositioned", "unfinished", {T0: 14}), ("fetcher_stopped", "revoked", {T0: 15})]


def test_on_revoke_is_asked_even_if_all_is_finished() -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.stop(None), {T0: FINISHED, T1: FINISHED})
    assert [question.partitions for question in of_type(effects, AskRevoke)] == [frozenset({T0, T1})]
    assert requests(effects) == []
    assert len(of_type(revoke(driver, effects), ReadProgress)) == 1


def test_a_stop_of_everything_leaves_nothing(driver: Driver) -> None:
    effects = driver.progress(driver.stop(None), {T0: Position(10, 10), T1: Position(20, 20)})
    assert requests(effects) == [ack(driver, NOTHING)]  # no offset has changed, so none is written


def test_a_stop_of_what_is_not_owned_is_only_acknowledged(driver: Driver) -> None:
    effects = driver.stop(frozenset({("other", 3)}))
    assert of_type(effects, StopEmitting) == []
    kept = OwnersRecord(5, "stop-1", {T0: 0, T1: 0})
    assert requests(effects) == [ack(driver, kept)]
    assert of_type(effects, RecordFetcher) == []


def test_the_application_may_commit_while_it_lets_go() -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: IN_HAND, T1: IN_HAND})
    (question,) = of_type(effects, AskRevoke)
    commit = driver.step(CommitRequested(99))
    effects = driver.progress(commit, {T0: FINISHED, T1: FINISHED})
    both = (SetContent(offset_path(T0), b"15"), SetContent(offset_path(T1), b"15"))
    assert requests(effects) == [Multi((Check(OWNERS, 1), *both))]
    assert CommitFinished((99,)) in driver.answer_write(Done((None, 1, 1)))
    effects = driver.progress(driver.step(Revoked(question.token)), {T0: FINISHED, T1: FINISHED})
    kept = OwnersRecord(5, "stop-1", {T1: 0})
    assert requests(effects) == [ack(driver, kept)]  # the offset is stored already


def test_a_revoked_answer_to_an_earlier_question_does_not_count() -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: FINISHED, T1: FINISHED})
    (question,) = of_type(effects, AskRevoke)
    assert driver.step(Revoked(question.token - 1)) == []


def test_rule_10_a_stop_whose_command_is_gone_goes_on_from_where_the_application_is(driver: Driver) -> None:
    driver.progress(driver.stop(frozenset({T0})), {T0: FINISHED, T1: FINISHED})
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1))
    assert effects == [
        RecordFetcher("fetcher_started", CONSUMER, 5, CAUSE.id, {T0: 15}, command_id="stop-1"),
        ResumeFetching(frozenset({T0})),
    ]
    assert driver.machine.state is State.ACTIVE
    # and the record is still that of before the stop
    effects = driver.progress(driver.stop(frozenset({T0}), "stop-2"), {T0: FINISHED, T1: FINISHED})
    (write,) = driver.writes()
    assert write.operations[0] == SetContent(OWNERS, ownership.encode_owners(OwnersRecord(5, "stop-2", {T1: 0})), 1)


def test_rule_10_a_stop_that_is_cancelled_while_the_application_is_asked_gives_the_partitions_back() -> None:
    driver = owning(ask_application=True)
    effects = driver.progress(driver.stop(frozenset({T0})), {T0: IN_HAND, T1: FINISHED})
    (question,) = of_type(effects, AskRevoke)
    driver.step(Watched(CHANNEL, children=True))
    effects = driver.answer(LIST_CHANNEL, Children(()))
    assert effects == [TellAssigned(frozenset({T0})), ResumeFetching(frozenset({T0}))]
    assert driver.step(Revoked(question.token)) == []  # the application's answer comes too late


def test_rule_8_a_lost_reply_to_a_stop_is_looked_up(driver: Driver) -> None:
    driver.progress(driver.stop(None), {T0: FINISHED, T1: FINISHED})
    driver.break_connection()
    driver.connect()
    driver.answer(Sync(OWNERS), Done())
    effects = driver.answer(Get(OWNERS), owners_content(NOTHING, 2))
    assert of_type(effects, Forget) == [Forget(frozenset({T0, T1}))]


def test_rule_8_an_unchanged_record_and_no_command_mean_cancelled(driver: Driver) -> None:
    driver.progress(driver.stop(None), {T0: FINISHED, T1: FINISHED})
    (first,) = driver.writes()
    driver.break_connection()
    driver.connect()
    driver.answer(Sync(OWNERS), Done())
    unchanged = OwnersRecord(4, "start-1", {T0: 0, T1: 0})
    assert requests(driver.answer(Get(OWNERS), owners_content(unchanged, 1))) == [first]
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 1))
    assert of_type(effects, ResumeFetching) == [ResumeFetching(frozenset({T0, T1}))]


def test_rule_7_many_final_offsets_are_written_in_chunks_before_the_ack() -> None:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    many = {("t", number): 0 for number in range(2 * MAX_OPERATIONS + 1)}
    driver.own(many)
    effects = driver.progress(driver.stop(None), dict.fromkeys(many, Position(3, 3)))
    sizes = []
    while driver.writes():
        (write,) = driver.writes()
        sizes.append(len(write.operations))
        is_ack = isinstance(write.operations[0], SetContent)
        assert is_ack or write.operations[0] == Check(OWNERS, 1)
        effects = driver.answer_write(Done((2,) * len(write.operations)))
    assert sizes == [MAX_OPERATIONS + 1, MAX_OPERATIONS + 1, 3]
    assert max(sizes) <= 500
    assert of_type(effects, Forget) == [Forget(frozenset(many))]


def test_a_chunk_whose_reply_is_lost_is_written_again_before_the_ack() -> None:
    driver = Driver(auto_commit_interval_ms=None)
    driver.register()
    many = {("t", number): 0 for number in range(MAX_OPERATIONS + 1)}
    driver.own(many)
    driver.progress(driver.stop(None), dict.fromkeys(many, Position(3, 3)))
    (chunk,) = driver.writes()
    driver.break_connection()
    assert chunk in requests(driver.connect())


def test_the_same_partition_may_be_started_again(driver: Driver) -> None:
    driver.progress(driver.stop(frozenset({T0})), {T0: FINISHED, T1: FINISHED})
    driver.answer_write(Done((2, None, 1)))
    driver.step(Watched(CHANNEL, children=True))
    driver.answer(LIST_CHANNEL, Children(()))
    effects = driver.start({T0: 40}, "start-2")
    assert requests(effects)
    effects = driver.answer_write(Done((3, None)))
    assert of_type(effects, StartFetching) == [StartFetching({T0: 40}, 4)]
