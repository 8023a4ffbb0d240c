"""A consumer whose memberships keep ending soon after they began joins again after pauses that grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumer_agent.membership.effects import OpenSession
from consumer_agent.membership.events import Polled, Tick
from consumer_agent.membership.rejoin_pause import STEADY_MS
from tests.unit.consumer_agent.membership.driver import CONSUMER, GROUP, LIST_CHANNEL, RENEWAL, T0, Driver
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, ListChildren, Refusal, Refused


def unreadable_command(driver: Driver) -> None:
    driver.send(b"of a newer version")
    driver.answer(ListChildren(paths.quarantine(GROUP)), Refused(Refusal.NO_NODE))


def refused_ack(driver: Driver) -> None:
    driver.start({T0: 10})
    driver.answer_write(Refused(Refusal.QUOTA_EXCEEDED, 0))


def evicted(driver: Driver) -> None:
    driver.step(Tick())
    driver.answer(RENEWAL, Refused(Refusal.NO_NODE, 0))


ENDS = [unreadable_command, refused_ack, evicted]


def rejoins_after_ms(driver: Driver) -> int:
    """Poll at once, and let the machine open its next session; return how long that took."""
    began_ms, effects = driver.now_ms, driver.step(Polled(CONSUMER, 5))
    while OpenSession() not in effects:
        assert driver.machine.wake_at_ms is not None
        driver.now_ms = driver.machine.wake_at_ms
        effects = driver.step(Tick())
    return driver.now_ms - began_ms


def live(driver: Driver, end: Callable[[Driver], None], lifetime_ms: int = 2_500) -> None:
    """Complete the registration, and end the membership."""
    driver.waiting.clear()
    driver.sequence = -1
    driver.connect()
    driver.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
    driver.answer_write(driver.registered)
    driver.answer(LIST_CHANNEL, Children(()))
    driver.now_ms += lifetime_ms
    end(driver)


@pytest.mark.parametrize("end", ENDS)
def test_short_memberships_are_followed_by_growing_pauses(end: Callable[[Driver], None]) -> None:
    """Without them, a group was rebalanced ten times a second as long as one member could not read a command."""
    driver, pauses_ms = Driver(), []
    assert rejoins_after_ms(driver) == 0
    for _ in range(12):
        live(driver, end)
        pauses_ms.append(rejoins_after_ms(driver))
    assert pauses_ms == [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]


def test_a_long_membership_is_followed_by_no_pause() -> None:
    driver = Driver()
    assert rejoins_after_ms(driver) == 0
    for lifetime_ms, pause_ms in ((2_500, 0), (STEADY_MS - 1, 100), (STEADY_MS, 0), (2_500, 100)):
        live(driver, evicted, lifetime_ms)
        assert rejoins_after_ms(driver) == pause_ms
