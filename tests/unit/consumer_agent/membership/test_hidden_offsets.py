"""A stored offset in ZooKeeper that may not be read keeps no other partition waiting, and counts as nothing else."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import (
    Effect,
    PlacePartitions,
    ReadKafkaOffsets,
    ResolveOffsets,
    StartFetching,
    TellStored,
    Warn,
)
from consumer_agent.membership.events import CloseRequested, KafkaOffsetsRead, Position, StoredRequested
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.start import UNREAD_LIMIT_MS
from tests.unit.consumer_agent.membership.driver import (
    GROUP,
    OWNERS,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
    requests,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Done, Get, Refusal, Refused, Reply, SetContent

NO_AUTH, NO_NODE = Refused(Refusal.NO_AUTH), Refused(Refusal.NO_NODE)
HIDDEN = Get(offset_path(T0))
TEXT = "zkrebalancer:id-1 czxid-5"


def begin(storage: Storage = Storage.ZOOKEEPER, *, begins_anywhere: bool = True, in_region: bool = False) -> Driver:
    """Return a driver with a start of two partitions: it may not read the stored offset of T0."""
    driver = Driver(storage=storage, begins_anywhere=begins_anywhere, in_region=in_region, auto_commit_interval_ms=None)
    driver.register()
    send_start(driver, "start-1")
    return driver


def send_start(driver: Driver, name: str) -> None:
    driver.send_start((T0, T1), name)
    driver.answer(HIDDEN, NO_AUTH)
    driver.answer(Get(offset_path(T1)), content(b"20"))


def refuse_for(driver: Driver, limit_ms: int) -> None:
    """Refuse the read again and again."""
    end_ms = driver.now_ms + limit_ms
    while driver.now_ms < end_ms:
        driver.tick(100)
        if HIDDEN in driver.waiting.values():
            assert of_type(driver.answer(HIDDEN, NO_AUTH), Warn) == []


def owner(storage: Storage = Storage.ZOOKEEPER, *, begins_anywhere: bool = True) -> Driver:
    driver = begin(storage, begins_anywhere=begins_anywhere)
    refuse_for(driver, 2 * UNREAD_LIMIT_MS)
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert (started.positions, started.unread) == ({T0: -1, T1: 20}, frozenset({T0}))
    return driver


def show(driver: Driver, reply: Reply) -> list[Effect]:
    """Answer the next late read."""
    while HIDDEN not in driver.waiting.values():
        driver.tick(1_000)
    return driver.answer(HIDDEN, reply)


def test_a_partition_whose_offset_may_not_be_read_keeps_no_other_one_waiting() -> None:
    """In `Start._awaits_hidden`, wait as long as one is hidden: its members were evicted one after the other."""
    driver = begin()
    refuse_for(driver, UNREAD_LIMIT_MS - 200)
    assert driver.writes() == []
    refuse_for(driver, UNREAD_LIMIT_MS)
    assert of_type(driver.answer_write(Done((1, None))), ResolveOffsets) == []
    assert of_type(show(driver, NO_AUTH), Warn) == []
    assert of_type(show(driver, Refused(Refusal.CONNECTION_LOST)), PlacePartitions) == []
    assert of_type(show(driver, content(b"10")), PlacePartitions) == [PlacePartitions({T0: 10})]
    for _ in range(40):
        assert HIDDEN not in requests(driver.tick(1_000))


def test_it_is_asked_for_at_growing_intervals() -> None:
    driver, asked = owner(), 0
    for _ in range(120):
        asked += HIDDEN in requests(driver.tick(1_000))
        if HIDDEN in driver.waiting.values():
            driver.answer(HIDDEN, NO_AUTH)
    assert 4 < asked < 10


def test_a_start_of_a_region_waits_for_all_offsets() -> None:
    driver = begin(in_region=True)
    driver.answer(Get(paths.offsets(GROUP, "t")), content(b"id-1 czxid-5"))
    driver.answer(Get(paths.lives(GROUP, "t")), NO_NODE)
    refuse_for(driver, 5 * UNREAD_LIMIT_MS)
    assert driver.writes() == []


@pytest.mark.parametrize("reply", [NO_NODE, content(b"no number")])
@pytest.mark.parametrize("begins_anywhere", [True, False])
def test_where_nothing_is_stored_after_all_the_setting_decides(reply: Reply, *, begins_anywhere: bool) -> None:
    driver = owner(begins_anywhere=begins_anywhere)
    placed = of_type(show(driver, reply), PlacePartitions)
    assert placed == ([] if begins_anywhere else [PlacePartitions({T0: -1})])
    asked = [one.partitions for _ in range(3) for one in of_type(driver.tick(1_000), ResolveOffsets)]
    assert asked == [frozenset({T0})] * begins_anywhere


def test_what_may_not_be_read_is_not_told_as_missing() -> None:
    """In `Commits.tell_stored`, tell what is known: an application that looks begins anew."""
    driver = owner()
    (told,) = of_type(driver.step(StoredRequested(5, None)), TellStored)
    assert told.error == "ZooKeeper does not let it be read what is stored of t/0"
    assert driver.step(StoredRequested(6, frozenset({T1}))) == [TellStored(6, {T1: 20})]
    show(driver, content(b"10"))
    assert driver.step(StoredRequested(7, None)) == [TellStored(7, {T0: 10, T1: 20})]


def test_a_stop_stores_no_offset_of_it_and_an_answer_from_before_does_not_count_for_the_next_start() -> None:
    """In `LateBeginnings._hidden_read`, look only whether it is hidden: another member may have read more meanwhile."""
    driver = owner()
    while HIDDEN not in driver.waiting.values():
        driver.tick(1_000)
    driver.progress(driver.stop(frozenset({T0, T1})), {T0: Position(-1, -1), T1: Position(20, 20)})
    (ack,) = driver.writes()
    assert [one.path for one in ack.operations if isinstance(one, SetContent)] == [OWNERS]
    driver.answer_write(Done((2, None)))
    former = next(call_id for call_id, call in driver.waiting.items() if call == HIDDEN)
    del driver.waiting[former]
    send_start(driver, "start-2")
    refuse_for(driver, 2 * UNREAD_LIMIT_MS)
    driver.answer_write(Done((3, None)))
    driver.waiting = {former: HIDDEN, **driver.waiting}
    assert of_type(driver.answer(HIDDEN, content(b"10")), PlacePartitions) == []
    assert of_type(show(driver, content(b"12")), PlacePartitions) == [PlacePartitions({T0: 12})]


def test_who_leaves_asks_no_more() -> None:
    driver = owner()
    driver.step(CloseRequested())
    for _ in range(10):
        assert HIDDEN not in requests(driver.tick(1_000))


def pass_a_moment(driver: Driver, said: tuple[int, str] | None) -> list[Effect]:
    """Let Kafka say this of T0, and ZooKeeper show nothing, for a tenth of a second."""
    effects = driver.tick(100)
    for asked in of_type(effects, ReadKafkaOffsets):
        effects += driver.step(KafkaOffsetsRead(asked.token, {T0: said}))
    return effects + (driver.answer(HIDDEN, NO_AUTH) if HIDDEN in driver.waiting.values() else [])


@pytest.mark.parametrize(("in_kafka", "begins_at"), [(7, 10), (15, 15)])
@pytest.mark.parametrize("last", ["zookeeper", "zookeeper, Kafka late", "kafka"])
def test_in_dual_it_waits_for_both_stores_and_the_higher_offset_wins(in_kafka: int, begins_at: int, last: str) -> None:
    """In `Start._read`, begin where Kafka says; in `handle_read` or `_hidden_read`, place it too soon."""
    said = (in_kafka, TEXT)
    driver = Driver(storage=Storage.DUAL, auto_commit_interval_ms=None)
    driver.register()
    (asked,) = of_type(driver.send_start((T0, T1)), ReadKafkaOffsets)
    driver.answer(Get(paths.offsets(GROUP, "t")), content(b"id-1 czxid-5"))
    driver.answer(HIDDEN, NO_AUTH)
    driver.answer(Get(offset_path(T1)), content(b"20"))
    driver.step(KafkaOffsetsRead(asked.token, {T0: said if last == "zookeeper" else None}))
    while not driver.writes():
        pass_a_moment(driver, None)
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: -1, T1: 20}
    if last == "kafka":
        assert of_type(show(driver, content(b"10")), PlacePartitions) == []
    moments = [pass_a_moment(driver, said) for _ in range(100)]
    placed = [one for effects in moments for one in of_type(effects, PlacePartitions)]
    if last != "kafka":
        assert placed == []
        placed = of_type(show(driver, content(b"10")), PlacePartitions)
    assert placed == [PlacePartitions({T0: begins_at})]


def lines_of(driver: Driver, replies: dict[Call, Reply], limit_ms: int, step_ms: int = 100) -> list[str]:
    """Return the lines logged while reads are answered like this."""
    found, end_ms = list[str](), driver.now_ms + limit_ms
    while driver.now_ms < end_ms:
        effects = driver.tick(step_ms)
        for call, reply in replies.items():
            if call in driver.waiting.values():
                effects += driver.answer(call, reply)
        found += [warning.text for warning in of_type(effects, Warn)]
    return found


@pytest.mark.parametrize("in_region", [True, False])
def test_each_partition_that_waits_for_a_right_is_told(*, in_region: bool) -> None:
    """In `RefusedReads.tell_rest`, tell nothing: rights are granted node by node, and only the first one is known."""
    text, first, second = "ZooKeeper does not let it be read what is stored; asking again", HIDDEN, Get(offset_path(T1))
    driver = Driver(in_region=in_region, auto_commit_interval_ms=None)
    driver.register()
    driver.send_start((T0, T1))
    if in_region:
        driver.answer(Get(paths.offsets(GROUP, "t")), content(b"id-1 czxid-5"))
        driver.answer(Get(paths.lives(GROUP, "t")), NO_NODE)
    refusal, *others = lines_of(driver, {first: NO_AUTH, second: NO_AUTH}, 2 * UNREAD_LIMIT_MS)
    assert offset_path(T0) in refusal
    assert others == [f"t/0 and 1 other partitions: {text}"]
    if not in_region:
        driver.answer_write(Done((1, None)))
    assert lines_of(driver, {first: content(b"10"), second: NO_AUTH}, 200_000, step_ms=1_000) == [f"t/1: {text}"]
