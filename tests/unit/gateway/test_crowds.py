"""Very many clients that ask for offsets at once: they do not wait for each other, and nobody asks in vain for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult, Event

from tests.support.deadlines import WITHIN_S
from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_zookeeper_offsets import GROUP, Store
from zkrebalancer.gateway.group_requests import LONGEST_HOLD_S
from zkrebalancer.gateway.lanes import LONGEST_WAIT_S, Lanes
from zkrebalancer.gateway.turns import Places
from zkrebalancer.gateway.zookeeper_offsets import READ_AT_ONCE
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, ReadEach, Reply
from zkrebalancer.protocol.registration import STATIC, Registration, encode
from zkrebalancer.runtime import clock


class Held(ModelSession):
    """A session whose answers to reads wait; `reading` has the numbers of nodes of the reads so far."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: list[int] = []
        self.may_answer = Event()

    def read_each(self, reads: ReadEach) -> list[Reply]:
        self.reading.append(len(reads.names))
        self.may_answer.wait(WITHIN_S)
        return super().read_each(reads)


@pytest.fixture
def passed_us(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the time that passes only for the gateway, of one item."""
    found, steady_us = [0], clock.steady_us
    monkeypatch.setattr("zkrebalancer.gateway.lanes.clock.steady_us", lambda: steady_us() + found[0])
    return found


def run_others() -> None:
    for _ in range(10):
        gevent.sleep(0)


def until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds: how many turns they need depends on the time that each has."""
    with gevent.Timeout(WITHIN_S):
        while not condition():
            gevent.sleep(0.001)


def fetch(store: Store, group: str, count: int) -> AsyncResult[Any]:
    answered: AsyncResult[Any] = AsyncResult()
    topic = {"name": "orders", "partition_indexes": list(range(count))}
    store.offsets.send(group, "OffsetFetch", {"topics": [topic]}, answered.set)
    run_others()
    return answered


def outcome(answered: AsyncResult[Any]) -> Any:
    """Return a request's error."""
    found: Any = answered.get(timeout=WITHIN_S)
    return found if isinstance(found, ErrorCode) else found["error_code"]


def test_small_reads_of_many_groups_do_not_wait_for_each_other() -> None:
    """In `_read_each`, let one read at a time: 1,000 clients that start at once wait for ten seconds."""
    session = Held()
    store = Store(session)
    answers = [fetch(store, group, 3) for group in "abc"]
    until(lambda: session.reading == [3, 3, 3])
    session.may_answer.set()
    assert [outcome(one) for one in answers] == [ErrorCode.NONE] * 3


def test_what_has_waited_for_too_long_is_not_read(passed_us: list[int]) -> None:
    """In `_read_each`, read it all the same: later requests wait for answers whose clients have given up."""
    session = Held()
    store = Store(session)
    large = fetch(store, "large", READ_AT_ONCE)
    until(lambda: session.reading == [READ_AT_ONCE])
    late = fetch(store, "late", 3)
    until(store.offsets._places._turn.locked)  # it waits for the places of the large one
    passed_us[0] += int(LONGEST_WAIT_S * 1e6) + 1
    later = fetch(store, "later", 5)
    session.may_answer.set()
    assert outcome(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [outcome(large), outcome(later)] == [ErrorCode.NONE] * 2
    assert session.reading == [READ_AT_ONCE, 5]


def test_a_long_fetch_is_not_continued_for_nobody(passed_us: list[int]) -> None:
    """In `_read`, never look at the clock: of a crowd that asks for much, all is read, and nobody gets it in time."""
    session = Held()
    fetched = fetch(Store(session), "long", 3 * READ_AT_ONCE)
    until(lambda: bool(session.reading))
    passed_us[0] += int(LONGEST_HOLD_S * 1e6) + 1
    session.may_answer.set()
    assert outcome(fetched) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert session.reading == [READ_AT_ONCE]


def test_the_topics_of_a_group_are_listed_together_and_not_for_nobody(passed_us: list[int]) -> None:
    """In `_all_partitions`, ask for each topic alone, or never look at the clock: commits wait behind it."""
    session = Held()
    store = Store(session)
    store.counts = lambda topics: dict.fromkeys(topics, 1)
    partitions = {(f"t{number}", 0): 1 for number in range(READ_AT_ONCE + 1)}
    session.may_answer.set()
    assert store.commit(partitions) == {}
    session.may_answer.clear()
    session.reading.clear()
    fetched: AsyncResult[Any] = AsyncResult()
    store.offsets.send(GROUP, "OffsetFetch", {"topics": None}, fetched.set)
    until(lambda: bool(session.reading))
    assert session.reading == [READ_AT_ONCE]
    passed_us[0] += int(LONGEST_HOLD_S * 1e6) + 1
    session.may_answer.set()
    assert outcome(fetched) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert session.reading == [READ_AT_ONCE]
    assert store.fetch() == partitions
    assert session.reading == [READ_AT_ONCE, *[READ_AT_ONCE, 1] * 2]  # topics, then partitions
    assert store.delete_group() == ErrorCode.NONE


def test_the_subscriptions_of_a_group_are_read_together() -> None:
    """In `_subscribed`, read each alone: commits of the group wait behind it."""
    session = Held()
    session.may_answer.set()
    store = Store(session)
    store.commit({("orders", 0): 1})
    for name in ("a", "b", "c"):
        session.do(Create(paths.ids(GROUP, name), encode(Registration(STATIC, {"logs": 1}, "", "c", "h", 10_000))))
    session.reading.clear()
    assert store.delete(("orders", 0), ("logs", 0)) == {("logs", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert session.reading == [3, 1]


def test_what_has_waited_in_line_for_too_long_is_not_done(passed_us: list[int]) -> None:
    """In `Lanes._work`, do it all the same: a group with very many clients answers only those that have given up."""
    lanes, may_go_on, done = Lanes(), Event(), list[str]()

    def send(name: str) -> AsyncResult[Any]:
        def handle() -> ErrorCode:
            done.append(name)
            may_go_on.wait(WITHIN_S)
            return ErrorCode.NONE

        answered: AsyncResult[Any] = AsyncResult()
        lanes.send("g", handle, answered.set)
        run_others()
        return answered

    first = send("first")
    until(lambda: done == ["first"])
    late = send("late")
    passed_us[0] += int(LONGEST_WAIT_S * 1e6) + 1
    later = send("later")
    passed_us[0] += int(LONGEST_WAIT_S * 1e6) // 2
    may_go_on.set()
    outcomes = [outcome(one) for one in (first, late, later)]
    assert outcomes == [ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE]
    assert done == ["first", "later"]


def test_small_uses_share_the_places_and_do_not_pass_a_large_one() -> None:
    """In `Places.take`, let others pass that one: many small ones would delay it for ever."""
    places, order, may_end = Places(10), list[str](), Event()

    def use(name: str, count: int) -> None:
        with places.take(count):
            order.append(name)
            may_end.wait(WITHIN_S)

    uses = [gevent.spawn(use, *one) for one in (("a", 3), ("b", 3), ("large", 10), ("c", 3))]
    until(lambda: len(order) >= 2)
    run_others()
    assert order == ["a", "b"]
    may_end.set()
    gevent.joinall(uses, timeout=WITHIN_S, raise_error=True)
    assert order == ["a", "b", "large", "c"]


def test_no_more_places_are_used_than_there_are() -> None:
    """In `Places.take`, go on when any place was given back."""
    places, used, most = Places(10), 0, 0
    chance = random.Random(1)

    def use(count: int) -> None:
        nonlocal used, most
        with places.take(count):
            used += count
            most = max(most, used)
            for _ in range(chance.randrange(4)):
                gevent.sleep(0)
            used -= count

    uses = [gevent.spawn(use, chance.randrange(1, 11)) for _ in range(200)]
    gevent.joinall(uses, timeout=WITHIN_S, raise_error=True)
    assert (used, most) == (0, 10)
