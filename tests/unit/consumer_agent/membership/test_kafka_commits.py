"""Offsets in Kafka: read at a start, written after a check of `owners/C` and within the lease that it proves."""

from __future__ import annotations

import pytest

from consumer_agent.membership.commit import KAFKA_REFRESH_MS
from consumer_agent.membership.effects import (
    CloseSession,
    CommitFinished,
    CommitToKafka,
    Effect,
    ReadKafkaOffsets,
    ReadProgress,
    RecordCommitted,
    ResolveOffsets,
    StartFetching,
    TellStored,
    Warn,
)
from consumer_agent.membership.events import (
    CommitRequested,
    KafkaCommitted,
    KafkaOffsetsRead,
    OffsetsResolved,
    Position,
    StoredRequested,
    Tick,
)
from consumer_agent.membership.fenced_writes import (
    KAFKA_ANSWER_LIMIT_MS,
    KAFKA_COMMIT_LIMIT_MS,
    KAFKA_REQUEST_LIMIT_MS,
    KAFKA_RETRY_MS,
)
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.start import KAFKA_READ_LIMIT_MS, MAX_RESOLVE_RETRY_MS
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CAUSE,
    CONSUMER,
    GROUP,
    LEASE_MS,
    OWNERS,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
    requests,
)
from zkrebalancer.protocol import command, paths
from zkrebalancer.protocol.calls import (
    Check,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    SetContent,
    Suspended,
)
from zkrebalancer.protocol.command import StartFetcher

CHECK = Multi((Check(OWNERS, 1),))
MARK = Get(paths.offsets(GROUP, "t"))
RECORD = Get(paths.incarnations(GROUP, "t"))
TEXT = "zkrebalancer:id-1 czxid-5"


def driver_with(storage: Storage, *, begins_anywhere: bool = True) -> Driver:
    driver = Driver(storage=storage, begins_anywhere=begins_anywhere)
    driver.register()
    return driver


def start(driver: Driver, *partitions: tuple[str, int]) -> list[Effect]:
    return driver.send_start(partitions)


def kafka_has(driver: Driver, effects: list[Effect], found: dict[tuple[str, int], tuple[int, str]]) -> list[Effect]:
    (asked,) = of_type(effects, ReadKafkaOffsets)
    return driver.step(KafkaOffsetsRead(asked.token, found))


def owner(storage: Storage = Storage.KAFKA) -> Driver:
    """Return a driver whose consumer owns T0 from 10 and T1 from 20 on."""
    driver = driver_with(storage)
    effects = start(driver, T0, T1)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    if storage is Storage.DUAL:
        driver.answer(Get(offset_path(T0)), content(b"10"))
        driver.answer(Get(offset_path(T1)), content(b"20"))
    kafka_has(driver, effects, {T0: (10, TEXT), T1: (20, TEXT)})
    driver.answer_write(Done((1, None)))
    return driver


def commit(driver: Driver, offset: int, token: int = 99) -> list[Effect]:
    """Commit T0 at an offset, up to the check of `owners/C`."""
    positions = {T0: Position(offset, offset), T1: Position(20, 20)}
    return driver.progress(driver.step(CommitRequested(token)), positions)


def kafka_commits(driver: Driver, effects: list[Effect], **failed: str) -> list[Effect]:
    """Answer the commit to Kafka in `effects`; `failed=reason` refuses all of it."""
    (asked,) = of_type(effects, CommitToKafka)
    reasons = dict.fromkeys(asked.offsets, failed["failed"]) if failed else {}
    return driver.step(KafkaCommitted(asked.token, reasons))


# ---- where a partition begins


def test_a_start_waits_for_kafka_and_for_the_topics_mark() -> None:
    driver = driver_with(Storage.KAFKA)
    effects = start(driver, T0)
    assert requests(effects) == [MARK]
    assert kafka_has(driver, effects, {T0: (7, TEXT)}) == []
    driver.answer(MARK, content(b"id-1 czxid-5"))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 7}


@pytest.mark.parametrize("mark", [b"null", b"", b"\xff"])
def test_what_somebody_wrote_over_a_mark_costs_no_offset_in_kafka(mark: bytes) -> None:
    """In `Start.handle_mark`, believe every mark."""
    driver = driver_with(Storage.KAFKA)
    effects = start(driver, T0)
    kafka_has(driver, effects, {T0: (7, TEXT)})
    driver.answer(MARK, content(mark))
    driver.break_connection()
    assert RECORD in requests(driver.connect())
    driver.answer(RECORD, content(b"id-1 czxid-5"))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 7}
    driver.progress(driver.step(CommitRequested(99)), {T0: Position(12, 12)})
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert asked.offsets == {T0: (12, TEXT)}


@pytest.mark.parametrize(("in_kafka", "begins_at"), [(7, 9), (11, 11)])
def test_in_dual_the_higher_offset_wins(in_kafka: int, begins_at: int) -> None:
    driver = driver_with(Storage.DUAL)
    effects = start(driver, T0)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    kafka_has(driver, effects, {T0: (in_kafka, TEXT)})
    driver.answer(Get(offset_path(T0)), content(b"9"))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: begins_at}


@pytest.mark.parametrize(("text", "counts"), [("zkrebalancer:id-0", False), (TEXT, True), ("", True), ("mine", True)])
def test_an_offset_of_an_earlier_topic_of_that_name_does_not_count(text: str, counts: bool) -> None:
    driver = driver_with(Storage.KAFKA)
    effects = start(driver, T0)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    effects = kafka_has(driver, effects, {T0: (7, text)})
    assert bool(of_type(effects, ResolveOffsets)) != counts


def test_kafka_is_asked_again_until_it_answers() -> None:
    driver = driver_with(Storage.KAFKA)
    (asked,) = of_type(start(driver, T0), ReadKafkaOffsets)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    assert driver.step(KafkaOffsetsRead(asked.token, None)) == []
    driver.now_ms = driver.machine.wake_at_ms or 0
    (again,) = of_type(driver.step(Tick()), ReadKafkaOffsets)
    assert driver.step(KafkaOffsetsRead(asked.token, {T0: (3, TEXT)})) == []  # an old answer
    driver.step(KafkaOffsetsRead(again.token, {T0: (7, TEXT)}))
    assert len(driver.writes()) == 1


def test_each_cause_of_a_start_that_waits_is_told_once() -> None:
    """Tell only the first cause: nobody learns why the start still waits."""
    driver = driver_with(Storage.KAFKA)
    (asked,) = of_type(start(driver, T0), ReadKafkaOffsets)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    seen: list[Effect] = []
    for _ in range(10):
        seen += driver.step(KafkaOffsetsRead(asked.token, None))
    effects = driver.step(KafkaOffsetsRead(asked.token, {}))
    for _ in range(2):
        (resolve,) = of_type(effects, ResolveOffsets)
        seen += driver.step(OffsetsResolved(resolve.token, {T0: None}))
        driver.now_ms += MAX_RESOLVE_RETRY_MS
        effects = driver.step(Tick())
    assert [warning.text for warning in of_type(seen, Warn)] == [
        "Kafka does not say what is stored; asking again",
        f"{T0[0]}/{T0[1]}: Kafka does not say where it begins; asking again",
    ]


def test_a_client_that_never_says_what_is_stored_is_asked_again() -> None:
    """Another client is by then in the place of one that hangs."""
    driver = Driver(storage=Storage.KAFKA, auto_commit_interval_ms=None)
    driver.register()
    (asked,) = of_type(start(driver, T0), ReadKafkaOffsets)
    driver.answer(MARK, content(b"id-1 czxid-5"))
    seen: list[Effect] = []
    deadline_ms = driver.now_ms + KAFKA_READ_LIMIT_MS
    while not of_type(seen, ReadKafkaOffsets) and driver.now_ms < deadline_ms:
        driver.now_ms = min(driver.machine.wake_at_ms or deadline_ms, deadline_ms)
        seen += driver.step(Tick())
    (again,) = of_type(seen, ReadKafkaOffsets)
    assert driver.step(KafkaOffsetsRead(asked.token, {T0: (3, TEXT)})) == []  # an old answer
    driver.step(KafkaOffsetsRead(again.token, {T0: (7, TEXT)}))
    assert len(driver.writes()) == 1


def test_a_mark_is_read_again_after_the_connection_broke() -> None:
    driver = driver_with(Storage.KAFKA)
    effects = start(driver, T0)
    driver.break_connection()
    driver.connect()
    driver.answer(MARK, content(b"id-1 czxid-5"))
    kafka_has(driver, effects, {T0: (7, TEXT)})
    assert len(driver.writes()) == 1


def test_without_a_stored_offset_and_with_none_it_is_owned_and_not_fetched_nor_committed() -> None:
    driver = driver_with(Storage.ZOOKEEPER, begins_anywhere=False)
    start(driver, T0)
    driver.answer(Get(offset_path(T0)), Refused(Refusal.NO_NODE))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: -1}
    effects = driver.progress(driver.step(CommitRequested(99)), {T0: Position(-1, -1)})
    assert effects == [CommitFinished((99,))]


def test_an_offset_that_is_gone_from_kafka_when_the_partition_comes_back_is_committed_again() -> None:
    driver = owner()
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(10, 10)})  # 10 is stored: there is only the ack
    driver.answer_write(Done((2, None)))
    effects = driver.send(command.encode(StartFetcher("start-2", 1, 6, CAUSE, {T0: 0})))
    driver.answer(MARK, content(b"id-2 czxid-9"))  # the topic was made anew meanwhile
    (asked,) = of_type(kafka_has(driver, effects, {}), ResolveOffsets)
    driver.step(OffsetsResolved(asked.token, {T0: 0}))
    driver.answer_write(Done((3, None)))
    assert driver.step(StoredRequested(5, frozenset({T0}))) == [TellStored(5, {T0: None})]
    driver.progress(driver.stop(frozenset({T0}), "stop-2"), {T0: Position(10, 10)})
    effects = driver.answer_write(Done((None,)))
    assert of_type(effects, CommitToKafka)[0].offsets == {T0: (10, "zkrebalancer:id-2 czxid-9")}


# ---- commits


@pytest.mark.parametrize(("late_ms", "limit_ms"), [(70, KAFKA_REQUEST_LIMIT_MS), (LEASE_MS - 300, 300)])
def test_rule_9_a_commit_to_kafka_follows_a_check_and_ends_within_the_lease_that_it_proves(
    late_ms: int, limit_ms: int
) -> None:
    driver = owner()
    effects = commit(driver, 12)
    assert requests(effects) == [CHECK]
    driver.now_ms += late_ms
    effects = driver.answer_write(Done((None,)))
    (asked,) = of_type(effects, CommitToKafka)
    assert asked.offsets == {T0: (12, TEXT)}
    assert asked.until_ms == driver.now_ms + limit_ms
    assert kafka_commits(driver, effects) == [RecordCommitted(CONSUMER, 4, {T0: 12}), CommitFinished((99,))]


def test_nothing_is_sent_to_kafka_once_owners_is_gone() -> None:
    driver = owner()
    commit(driver, 12)
    effects = driver.answer_write(Refused(Refusal.NO_NODE, 0))
    assert of_type(effects, CommitToKafka) == []
    assert [finished.error is None for finished in of_type(effects, CommitFinished)] == [False]
    assert driver.machine.state is State.OUT


def test_in_dual_kafka_comes_first_and_then_zookeeper() -> None:
    driver = owner(Storage.DUAL)
    commit(driver, 12)
    effects = kafka_commits(driver, driver.answer_write(Done((None,))))
    assert requests(effects) == [Multi((Check(OWNERS, 1), SetContent(offset_path(T0), b"12")))]
    assert of_type(driver.answer_write(Done((None, 1))), CommitFinished) == [CommitFinished((99,))]


def test_a_final_offset_is_in_kafka_before_the_ack_gives_the_partition_away() -> None:
    driver = owner()
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(15, 15)})
    assert driver.writes() == [CHECK]
    kafka_commits(driver, driver.answer_write(Done((None,))))
    (write,) = driver.writes()
    assert [type(operation) for operation in write.operations] == [SetContent, Delete]


def test_a_commit_that_kafka_does_not_take_is_checked_and_sent_again_and_then_fails() -> None:
    driver = owner()
    commit(driver, 12)
    give_up_ms = driver.now_ms + KAFKA_COMMIT_LIMIT_MS
    while True:
        effects = kafka_commits(driver, driver.answer_write(Done((None,))), failed="not now")
        if driver.now_ms >= give_up_ms:
            break
        assert effects == []
        driver.now_ms += KAFKA_RETRY_MS
        driver.step(Tick())
    (finished,) = of_type(effects, CommitFinished)
    assert finished.error == "t/0: Kafka did not store the offset: not now"
    assert len(of_type(effects, Warn)) == 1
    assert len(of_type(effects, ReadProgress)) == 1  # the automatic commit, which is due by now, tries it again


def test_only_what_kafka_did_not_take_is_sent_again() -> None:
    driver = owner()
    positions = {T0: Position(12, 12), T1: Position(22, 22)}
    driver.progress(driver.step(CommitRequested(99)), positions)
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert asked.offsets.keys() == {T0, T1}
    driver.step(KafkaCommitted(asked.token, {T1: "not now"}))
    driver.now_ms += KAFKA_RETRY_MS
    driver.step(Tick())
    (again,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert again.offsets.keys() == {T1}
    (finished,) = of_type(driver.step(KafkaCommitted(again.token, {})), CommitFinished)
    assert finished.error is None


def test_a_hopeless_refusal_is_told_at_once() -> None:
    driver = owner()
    commit(driver, 12)
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    effects = driver.step(KafkaCommitted(asked.token, {T0: "no rights"}, is_hopeless=True))
    assert "no rights" in (of_type(effects, CommitFinished)[0].error or "")


def test_a_client_that_never_answers_is_not_waited_for() -> None:
    driver = owner()
    commit(driver, 12)
    effects = driver.answer_write(Done((None,)))
    (asked,) = of_type(effects, CommitToKafka)
    driver.now_ms = asked.until_ms + KAFKA_ANSWER_LIMIT_MS
    driver.step(Tick())
    assert driver.step(KafkaCommitted(asked.token, {})) == []  # too late to be believed
    driver.now_ms += KAFKA_RETRY_MS
    assert CHECK in requests(driver.step(Tick()))


def test_an_answer_that_comes_a_little_after_the_time_limit_is_believed() -> None:
    """In `WriteLane.wake_at_ms`, give up when Kafka's client has to."""
    driver = owner()
    commit(driver, 12)
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    driver.now_ms = asked.until_ms + KAFKA_ANSWER_LIMIT_MS - 1
    driver.step(Tick())
    (finished,) = of_type(driver.step(KafkaCommitted(asked.token, {})), CommitFinished)
    assert finished.error is None


def test_after_a_commit_with_an_unknown_outcome_the_former_offset_is_written_again() -> None:
    """In `WriteLane.handle_kafka_committed`, keep what was known to be stored."""
    driver = owner()
    commit(driver, 12)
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    driver.step(KafkaCommitted(asked.token, {T0: "no answer"}, is_hopeless=True))
    commit(driver, 10, token=100)  # the application went back
    (again,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    assert again.offsets[T0][0] == 10


def test_a_stop_is_acknowledged_even_if_kafka_is_away() -> None:
    driver = owner()
    driver.progress(driver.stop(frozenset({T0})), {T0: Position(15, 15)})
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    driver.step(KafkaCommitted(asked.token, {T0: "away"}, is_hopeless=True))
    (write,) = driver.writes()
    assert isinstance(write.operations[-1], Delete)
    assert len(of_type(driver.answer_write(Done((2, None))), Warn)) == 1


def test_the_check_is_made_again_when_the_connection_broke_under_it() -> None:
    driver = owner()
    commit(driver, 12)
    driver.break_connection()
    assert CHECK in requests(driver.connect())
    effects = kafka_commits(driver, driver.answer_write(Done((None,))))
    assert CommitFinished((99,)) in effects


def test_kafka_may_answer_while_zookeeper_is_away() -> None:
    driver = owner(Storage.DUAL)
    commit(driver, 12)
    effects = driver.answer_write(Done((None,)))
    driver.step(Suspended())
    effects = kafka_commits(driver, effects)
    assert of_type(effects, RecordCommitted) == [RecordCommitted(CONSUMER, 4, {T0: 12})]


def test_what_kafka_might_forget_is_written_again() -> None:
    """Again and again, not once."""
    driver = owner()
    positions = {T0: Position(10, 10), T1: Position(20, 20)}
    for _ in range(3):
        driver.now_ms += KAFKA_REFRESH_MS
        effects = driver.step(Tick())
        assert driver.step(StoredRequested(5, None)) == [TellStored(5, {T0: 10, T1: 20})]
        assert CHECK in requests(driver.progress([e for e in effects if isinstance(e, ReadProgress)], positions))
        kafka_commits(driver, driver.answer_write(Done((None,))))


def test_what_is_stored_is_told() -> None:
    driver = owner(Storage.DUAL)
    assert driver.step(StoredRequested(5, None)) == [TellStored(5, {T0: 10, T1: 20})]
    (told,) = of_type(driver.step(StoredRequested(6, frozenset({("u", 1)}))), TellStored)
    assert told.error == "u/1 is not assigned to this consumer"


def test_a_partition_that_begins_anywhere_has_nothing_stored() -> None:
    driver = driver_with(Storage.KAFKA)
    effects = start(driver, T0)
    driver.answer(MARK, Refused(Refusal.NO_NODE))
    driver.answer(RECORD, Refused(Refusal.NO_NODE))
    (asked,) = of_type(kafka_has(driver, effects, {}), ResolveOffsets)
    driver.step(OffsetsResolved(asked.token, {T0: 4}))
    assert Create not in map(type, driver.writes()[0].operations)
    driver.answer_write(Done((1, None)))
    assert driver.step(StoredRequested(5, None)) == [TellStored(5, {T0: None})]


# ---- a session that is given up with a commit on its way


def test_a_session_that_is_given_up_lasts_as_long_as_a_commit_to_kafka_may_arrive() -> None:
    """Its end frees the partitions at once: the commit would be one of a former owner."""
    driver = owner()
    commit(driver, 15)
    (asked,) = of_type(driver.answer_write(Done((None,))), CommitToKafka)
    driver.send(b"\xc1 not msgpack")
    effects = driver.answer(ListChildren(paths.quarantine(GROUP)), Refused(Refusal.NO_NODE))
    assert of_type(effects, CloseSession) == [CloseSession(asked.until_ms)]


def test_a_late_answer_about_an_earlier_try_is_not_taken_for_that_of_the_present_one() -> None:
    """In `WriteLane.handle_kafka_committed`, look at no token: an offset that Kafka refuses would count as stored."""
    driver = owner()
    commit(driver, 15)
    (first,) = of_type(driver.answer(CHECK, Done((None,))), CommitToKafka)
    driver.step(KafkaCommitted(first.token, {T0: "no"}))
    driver.now_ms += KAFKA_RETRY_MS
    driver.step(Tick())
    (second,) = of_type(driver.answer(CHECK, Done((None,))), CommitToKafka)
    assert driver.step(KafkaCommitted(first.token, {})) == []
    assert CommitFinished((99,)) in driver.step(KafkaCommitted(second.token, {}))
