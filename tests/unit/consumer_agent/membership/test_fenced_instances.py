"""A younger consumer has taken over the instance id: stop, hand over, and be out for good."""

from __future__ import annotations

from consumer_agent.errors import FencedInstanceError
from consumer_agent.membership.effects import BecameOut, Closed, CloseSession, Effect, Failed, StopEmitting
from consumer_agent.membership.events import Polled, Position, Revoked
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import GROUP, OWNERS, T0, Driver, content, of_type, offset_path
from zkrebalancer.protocol import calls, command, ownership, paths
from zkrebalancer.protocol.calls import Children, Content, Delete, Done, Get, ListChildren, Refusal, Refused, SetContent
from zkrebalancer.protocol.command import Cause, StopFetcher
from zkrebalancer.protocol.ownership import StaticMember

FENCED = Cause("cause-9", command.INSTANCE_FENCED)


def fence(driver: Driver) -> list[Effect]:
    return driver.send(command.encode(StopFetcher("stop-9", 1, 5, FENCED, None)))


def assert_out_for_good(driver: Driver, effects: list[Effect]) -> None:
    (failed,) = of_type(effects, Failed)
    assert isinstance(failed.error, FencedInstanceError)
    assert failed.for_good
    assert "pod-1" in str(failed.error)
    assert of_type(effects, BecameOut) == []
    assert effects[-2:] == [CloseSession(), Closed()]
    assert driver.machine.state is State.CLOSED
    assert driver.step(Polled("c-2", 9)) == []


def owner() -> Driver:
    driver = Driver(instance_id="pod-1")
    driver.register()
    driver.own({T0: 10})
    return driver


def test_it_hands_over_with_its_final_offsets_and_leaves() -> None:
    driver = owner()
    driver.progress(fence(driver), {T0: Position(15, 15)})
    (ack,) = driver.writes()
    assert [type(operation) for operation in ack.operations] == [SetContent, Delete, SetContent]
    assert ack.operations[0].path == OWNERS
    assert ack.operations[2] == SetContent(offset_path(T0), b"15")
    assert_out_for_good(driver, driver.answer_write(Done((2, None, 3))))


def test_it_leaves_also_when_it_owns_nothing() -> None:
    driver = Driver(instance_id="pod-1")
    driver.register()
    fence(driver)
    assert_out_for_good(driver, driver.answer_write(Done((1, None))))


def test_the_application_finishes_what_it_has_first() -> None:
    driver = owner()
    effects = driver.progress(fence(driver), {T0: Position(15, 12)})
    assert driver.writes() == []
    (asked,) = (effect for effect in effects if hasattr(effect, "token"))
    driver.progress(driver.step(Revoked(asked.token)), {T0: Position(15, 15)})
    assert_out_for_good(driver, driver.answer_write(Done((2, None, 3))))


def test_who_is_evicted_or_expires_meanwhile_does_not_come_back_to_fence_the_younger_one() -> None:
    evicted = owner()
    evicted.progress(fence(evicted), {T0: Position(15, 15)})
    assert_out_for_good(evicted, evicted.answer_write(Refused(Refusal.NO_NODE, 0)))
    expired = owner()
    expired.progress(fence(expired), {T0: Position(15, 12)})
    assert_out_for_good(expired, expired.step(calls.Lost()))


def test_a_stop_that_is_taken_back_does_not_end_it() -> None:
    driver = owner()
    effects = driver.progress(fence(driver), {T0: Position(15, 15)})
    assert of_type(effects, StopEmitting) == []
    driver.answer_write(Refused(Refusal.NO_NODE, 1))
    assert driver.machine.state is State.ACTIVE


def lost_and_polling_again() -> Driver:
    driver = owner()
    driver.step(calls.Lost())
    driver.waiting.clear()
    driver.step(Polled("c-2", 9))
    driver.connect()
    driver.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
    return driver


def instance_of(consumer: str) -> Content:
    return content(ownership.encode_static(StaticMember(consumer, frozenset({T0}), None)))


def test_who_lost_its_session_comes_back_as_long_as_nobody_has_its_instance_id() -> None:
    driver = lost_and_polling_again()
    driver.answer(Get(paths.static(GROUP, "pod-1")), instance_of("c-1"))
    assert len(driver.writes()) == 1
    gone = lost_and_polling_again()
    gone.answer(Get(paths.static(GROUP, "pod-1")), instance_of("other-1"))
    gone.answer(Get(paths.ids(GROUP, "other-1")), Refused(Refusal.NO_NODE))
    assert len(gone.writes()) == 1


def test_who_lost_its_session_does_not_fence_its_own_successor() -> None:
    driver = lost_and_polling_again()
    driver.answer(Get(paths.static(GROUP, "pod-1")), instance_of("other-1"))
    effects = driver.answer(Get(paths.ids(GROUP, "other-1")), content(b"registration"))
    assert driver.writes() == []
    assert_out_for_good(driver, effects)
    (failed,) = of_type(effects, Failed)
    assert "pod-1: other-1 of group" in str(failed.error)


def test_a_record_of_its_instance_that_may_not_be_read_does_not_let_it_fence_a_successor() -> None:
    """Take a refusal for a missing record, in `Join`: it registers, and the younger one has to go."""
    unread = lost_and_polling_again()
    (failed,) = of_type(unread.answer(Get(paths.static(GROUP, "pod-1")), Refused(Refusal.NO_AUTH)), Failed)
    assert "no permission" in str(failed.error)
    assert unread.writes() == []
    unseen = lost_and_polling_again()
    unseen.answer(Get(paths.static(GROUP, "pod-1")), instance_of("c-9"))
    (failed,) = of_type(unseen.answer(Get(paths.ids(GROUP, "c-9")), Refused(Refusal.NO_AUTH)), Failed)
    assert "no permission" in str(failed.error)
    assert unseen.writes() == []
