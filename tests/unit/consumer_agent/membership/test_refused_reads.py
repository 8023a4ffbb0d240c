"""A read that is refused for lack of a right: nothing is taken for absent, one log line, growing intervals."""

from __future__ import annotations

import pytest

from consumer_agent.membership.effects import Effect, ResolveOffsets, StartFetching, Warn
from consumer_agent.membership.events import Polled, Tick
from consumer_agent.membership.offset_books import Storage
from tests.unit.consumer_agent.membership.driver import (
    CHANNEL,
    CONSUMER,
    GROUP,
    LIST_CHANNEL,
    T0,
    T1,
    Driver,
    content,
    of_type,
    offset_path,
    requests,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Children,
    Create,
    Done,
    Get,
    ListChildren,
    Refusal,
    Refused,
    Watched,
)

NO_AUTH = Refused(Refusal.NO_AUTH)


def registered(storage: Storage = Storage.ZOOKEEPER) -> Driver:
    driver = Driver(auto_commit_interval_ms=None, storage=storage)
    driver.register()
    return driver


def after(driver: Driver, pause_ms: int) -> list[Effect]:
    driver.now_ms += pause_ms
    return driver.step(Tick())


def refuse_with_pauses(driver: Driver, call: Call) -> list[Effect]:
    """Refuse a call again and again; return what happened when it was refused for the first time."""
    first = driver.answer(call, NO_AUTH)
    for pause_ms in (100, 200, 400, 800):
        assert call not in requests(after(driver, pause_ms - 1))
        assert call in requests(after(driver, 1))
        assert of_type(driver.answer(call, NO_AUTH), Warn) == []
    assert call in requests(after(driver, 1_600))
    return first


def test_a_stored_offset_that_may_not_be_read_is_not_taken_for_absent() -> None:
    """Take a refusal for a missing node, in `Start.handle_offset`: the partition begins where Kafka says."""
    driver = registered()
    driver.send_start((T0, T1))
    driver.answer(Get(offset_path(T1)), content(b"20"))
    effects = refuse_with_pauses(driver, Get(offset_path(T0)))
    (warning,) = of_type(effects, Warn)
    assert warning.text == (
        f"{CONSUMER}: ZooKeeper refuses {offset_path(T0)}: no permission, right READ is missing; "
        "retried at growing intervals"
    )
    assert of_type(effects, ResolveOffsets) == []
    driver.answer(Get(offset_path(T0)), content(b"10"))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    assert started.positions == {T0: 10, T1: 20}


def test_a_refused_read_that_the_connection_interrupts_is_repeated() -> None:
    driver = registered()
    driver.send_start((T0, T1))
    driver.answer(Get(offset_path(T1)), content(b"20"))
    driver.answer(Get(offset_path(T0)), NO_AUTH)
    driver.break_connection()
    after(driver, 100)
    driver.answer(Get(offset_path(T0)), Refused(Refusal.CONNECTION_LOST))
    assert Get(offset_path(T0)) in requests(driver.connect())


def test_the_mark_of_a_topic_that_may_not_be_read_is_not_taken_for_absent() -> None:
    driver = registered(Storage.DUAL)
    driver.send_start((T0, T1))
    for partition in (T0, T1):
        driver.answer(Get(offset_path(partition)), Refused(Refusal.NO_NODE))
    effects = refuse_with_pauses(driver, Get(paths.offsets(GROUP, "t")))
    assert len(of_type(effects, Warn)) == 1


def test_a_channel_that_may_not_be_listed_is_listed_again() -> None:
    """Forget to try again, in `Member._channel_listed`: no command is ever seen."""
    driver = registered()
    driver.step(Watched(CHANNEL, children=True))
    (warning,) = of_type(refuse_with_pauses(driver, LIST_CHANNEL), Warn)
    assert f"ZooKeeper refuses {CHANNEL}: no permission, right READ is missing" in warning.text
    driver.answer(LIST_CHANNEL, Children(("command-0000000000",)))
    assert Get(f"{CHANNEL}/command-0000000000") in driver.waiting.values()
    driver.step(Watched(CHANNEL, children=True))
    assert len(of_type(driver.answer(LIST_CHANNEL, NO_AUTH), Warn)) == 1  # it was allowed meanwhile


@pytest.mark.parametrize("unlisted", ["/", paths.CONSUMERS, paths.GROUPS])
def test_a_node_above_the_group_that_may_not_be_listed_is_there(unlisted: str) -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(ListChildren(paths.group(GROUP)), Refused(Refusal.NO_NODE))
    for path in ("/", paths.CONSUMERS, paths.GROUPS):
        driver.answer(ListChildren(path), NO_AUTH if path == unlisted else Children(()))
    (creation,) = driver.writes()
    assert creation.operations[0] == Create(paths.group(GROUP))


def test_reads_that_are_refused_together_count_once() -> None:
    """In `RefusedReads.note`, count each: a start of many partitions waited half a minute at once."""
    driver = registered()
    driver.send_start((T0, T1))
    for partition in (T0, T1):
        driver.answer(Get(offset_path(partition)), NO_AUTH)
    assert {Get(offset_path(partition)) for partition in (T0, T1)} <= set(requests(after(driver, 100)))
