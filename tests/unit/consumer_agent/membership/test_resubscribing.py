"""Another subscription: written into the consumer's own node, in place, whatever the connection does meanwhile."""

from __future__ import annotations

import pytest

from consumer_agent.errors import RegistrationError
from consumer_agent.membership.effects import AskRevoke, Effect, Failed
from consumer_agent.membership.events import Polled, Position, Resubscribed
from tests.unit.consumer_agent.membership.driver import (
    CONSUMER,
    GROUP,
    LIST_CHANNEL,
    OWNERS,
    REGISTRATION,
    SESSION_TIMEOUT_MS,
    T0,
    Driver,
    content,
    of_type,
    requests,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol import registration as registrations
from zkrebalancer.protocol.calls import (
    Children,
    Create,
    Done,
    Get,
    ListChildren,
    Lost,
    Multi,
    Refusal,
    Refused,
    SetContent,
)

IDS = paths.ids(GROUP, CONSUMER)
OTHER = REGISTRATION._replace(subscription={"t": 1, "u": 2})
THIRD = REGISTRATION._replace(pattern="white_list", subscription={"^t": 1})


def written(registration: registrations.Registration) -> bytes:
    """Return what stands in the node: with what was learned when registering."""
    return registrations.encode(registration._replace(timestamp="5", session_timeout_ms=SESSION_TIMEOUT_MS))


def write(registration: registrations.Registration, version: int) -> Multi:
    return Multi((SetContent(IDS, written(registration), version),))


def resubscribe(driver: Driver, registration: registrations.Registration, *, asks: bool = False) -> list[Effect]:
    return driver.step(Resubscribed(registration, asks))


def member() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def test_it_is_written_in_place_and_what_is_owned_stays() -> None:
    driver = member()
    driver.own({T0: 10})
    resubscribe(driver, OTHER)
    assert driver.writes() == [write(OTHER, 0)]
    assert driver.answer_write(Done((1,))) == []
    resubscribe(driver, THIRD)
    assert driver.writes() == [write(THIRD, 1)]


def test_the_same_subscription_again_is_not_written() -> None:
    driver = member()
    resubscribe(driver, REGISTRATION)
    assert driver.writes() == []


def test_a_change_during_a_change_follows_it() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    resubscribe(driver, THIRD)
    assert driver.writes() == [write(OTHER, 0)]
    driver.answer_write(Done((1,)))
    assert driver.writes() == [write(THIRD, 1)]


def test_a_write_whose_reply_was_lost_is_looked_at_and_not_repeated() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    driver.break_connection()
    assert driver.writes() == []
    driver.connect()
    driver.answer(Get(IDS), content(written(OTHER), version=1))
    assert driver.writes() == []
    resubscribe(driver, THIRD)
    assert driver.writes() == [write(THIRD, 1)]


def test_a_write_that_was_lost_is_repeated() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    driver.break_connection()
    driver.connect()
    driver.answer(Get(IDS), content(written(REGISTRATION), version=0))
    assert driver.writes() == [write(OTHER, 0)]


def test_a_change_back_while_a_write_is_in_doubt_is_written_if_that_one_stands() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    resubscribe(driver, REGISTRATION)
    driver.break_connection()
    driver.connect()
    driver.answer(Get(IDS), content(written(OTHER), version=1))
    assert driver.writes() == [write(REGISTRATION, 1)]


def test_a_change_while_the_connection_is_broken_is_written_after_it() -> None:
    driver = member()
    driver.break_connection()
    resubscribe(driver, OTHER)
    assert driver.writes() == []
    driver.connect()
    assert driver.writes() == [write(OTHER, 0)]


def test_a_change_while_it_registers_is_written_right_after() -> None:
    driver = Driver()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
    resubscribe(driver, OTHER)
    driver.answer_write(Done(("", IDS, OWNERS)))
    driver.answer(LIST_CHANNEL, Children(()))
    assert driver.writes() == [write(OTHER, 0)]


def test_the_next_membership_begins_with_the_subscription_of_now() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    driver.step(Lost())
    driver.waiting.clear()
    driver.step(Polled(CONSUMER, 5))
    driver.connect()
    driver.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
    (registering,) = driver.writes()
    assert Create(IDS, written(OTHER), ephemeral=True) in registering.operations


def test_a_refusal_is_an_error_of_the_next_poll_and_not_tried_again() -> None:
    driver = member()
    resubscribe(driver, OTHER)
    (failed,) = of_type(driver.answer_write(Refused(Refusal.NOT_ALLOWED)), Failed)
    assert isinstance(failed.error, RegistrationError)
    assert CONSUMER in str(failed.error)
    assert driver.writes() == []


@pytest.mark.parametrize("refusal", [Refusal.NO_NODE, Refusal.NO_AUTH])
def test_a_refused_look_at_the_node_is_not_repeated_until_another_subscription_is_wanted(refusal: Refusal) -> None:
    driver = member()
    resubscribe(driver, OTHER)
    driver.break_connection()
    driver.connect()
    driver.answer(Get(IDS), Refused(refusal))
    assert Get(IDS) not in driver.waiting.values()
    resubscribe(driver, THIRD)
    driver.answer(Get(IDS), content(written(REGISTRATION), version=0))
    assert driver.writes() == [write(THIRD, 0)]
    driver.answer_write(Done((1,)))
    resubscribe(driver, REGISTRATION)
    assert driver.writes() == [write(REGISTRATION, 1)]


def test_the_new_callbacks_count_from_now_on() -> None:
    driver = member()
    driver.own({T0: 10})
    resubscribe(driver, OTHER, asks=True)
    driver.answer_write(Done((1,)))
    (asked,) = of_type(driver.progress(driver.stop(frozenset({T0})), {T0: Position(10, 10)}), AskRevoke)
    assert asked.partitions == {T0}


def test_a_node_that_another_program_has_written_is_read_and_written_again() -> None:
    """In `OwnRegistration._answered`, give up: the consumer kept its former subscription for good."""
    driver = member()
    resubscribe(driver, OTHER)
    assert requests(driver.answer_write(Refused(Refusal.BAD_VERSION, 0))) == [Get(IDS)]
    driver.answer(Get(IDS), content(b"of another program", 7))
    assert driver.writes() == [write(OTHER, 7)]
