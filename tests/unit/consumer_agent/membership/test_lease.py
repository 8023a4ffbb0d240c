"""The lease: how long records may be returned, and how it is renewed."""

from __future__ import annotations

import pickle

import pytest

from consumer_agent.membership.effects import (
    BecameOut,
    CloseSession,
    CommitFinished,
    EmitUntil,
    Forget,
    OpenSession,
    RecordLost,
    TellLost,
    Warn,
)
from consumer_agent.membership.emission import FOREVER_MS, NEVER_MS, RECONNECT_MS
from consumer_agent.membership.events import CommitRequested, Polled, Tick
from consumer_agent.membership.state_machine import State
from tests.unit.consumer_agent.membership.driver import (
    CHANNEL,
    CONSUMER,
    GROUP,
    LEASE_MS,
    LIST_CHANNEL,
    LIST_WITH_WATCH,
    OWNERS,
    RENEWAL,
    SESSION,
    SESSION_TIMEOUT_MS,
    T0,
    WATCH_CHANNEL,
    Driver,
    of_type,
    requests,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Connected,
    Done,
    Get,
    ListChildren,
    Lost,
    Multi,
    Refusal,
    Refused,
    Suspended,
    Watched,
)
from zkrebalancer.rebalance.leases import lease_wait_us


def registered(*, pause: bool = True) -> Driver:
    driver = Driver(auto_commit_interval_ms=None, pause=pause)
    driver.register()
    return driver


def test_rule_11_a_tick_renews_with_a_multi_and_lists_the_channel() -> None:
    driver = registered()
    assert driver.machine.wake_at_ms == 1_000 + LEASE_MS // 3
    driver.now_ms += LEASE_MS // 3
    assert requests(driver.step(Tick())) == [RENEWAL, LIST_CHANNEL]


def test_rule_11_the_lease_counts_from_when_the_renewal_was_sent() -> None:
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    sent_ms = driver.now_ms
    driver.step(Tick())
    driver.now_ms += 900
    assert driver.answer(RENEWAL, Done()) == [EmitUntil(sent_ms + LEASE_MS)]


def test_one_renewal_is_under_way_at_a_time() -> None:
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    driver.step(Tick())
    driver.now_ms += LEASE_MS // 3
    assert requests(driver.step(Tick())) == []
    assert driver.machine.wake_at_ms == 1_000 + 200_000  # the next look at the application
    driver.answer(RENEWAL, Done())
    assert requests(driver.step(Tick())) == [RENEWAL]  # the listing is still under way and will be made again


def renew(driver: Driver, after_ms: int = LEASE_MS // 3) -> int:
    driver.now_ms += after_ms
    driver.step(Tick())
    driver.answer(RENEWAL, Done())
    return driver.now_ms


def test_rule_11_a_broken_connection_pauses_for_a_moment_and_the_rest_of_the_lease_counts() -> None:
    driver = registered()
    renewed_ms = renew(driver)
    driver.now_ms += 200
    assert driver.break_connection()[0] == EmitUntil(NEVER_MS)
    assert driver.machine.wake_at_ms == driver.now_ms + RECONNECT_MS
    driver.now_ms += RECONNECT_MS - 1
    assert of_type(driver.step(Tick()), EmitUntil) == []
    driver.now_ms += 1
    assert of_type(driver.step(Tick()), EmitUntil) == [EmitUntil(renewed_ms + LEASE_MS)]
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == []
    assert of_type(driver.connect(), EmitUntil) == []
    assert of_type(driver.answer(RENEWAL, Done()), EmitUntil) == [EmitUntil(driver.now_ms + LEASE_MS)]


@pytest.mark.parametrize(("after_ms", "counts"), [(LEASE_MS // 2, True), (LEASE_MS // 2 + 1, False)])
def test_rule_11_the_rest_of_a_lease_counts_only_after_a_regular_renewal(after_ms: int, counts: bool) -> None:
    driver = registered()
    renew(driver)
    renewed_ms = renew(driver, after_ms)
    driver.break_connection()
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == [EmitUntil(renewed_ms + LEASE_MS)] * counts


def test_rule_11_the_rest_of_the_first_lease_does_not_count() -> None:
    driver = registered()
    driver.break_connection()
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == []


def test_rule_11_a_new_connection_counts_as_heard() -> None:
    driver = registered()
    driver.break_connection()
    driver.now_ms += LEASE_MS // 2
    driver.connect()
    renewed_ms = driver.now_ms
    driver.answer(RENEWAL, Done())
    driver.break_connection()
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == [EmitUntil(renewed_ms + LEASE_MS)]


def test_rule_11_a_connection_that_returns_soon_is_not_used_before_it_renewed() -> None:
    driver = registered()
    renew(driver)
    driver.break_connection()
    driver.now_ms += RECONNECT_MS // 2
    effects = driver.connect()
    assert requests(effects) == [RENEWAL, WATCH_CHANNEL, LIST_CHANNEL]
    assert of_type(effects, EmitUntil) == []
    assert of_type(driver.answer(RENEWAL, Done()), EmitUntil) == [EmitUntil(driver.now_ms + LEASE_MS)]
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == []


def test_a_session_that_was_ended_by_force_emits_nothing_more() -> None:
    driver = registered()
    driver.own({T0: 3})
    renew(driver)
    driver.break_connection()
    driver.now_ms += RECONNECT_MS // 2
    driver.step(Lost())
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == []


def test_who_has_given_up_emits_nothing_after_a_broken_connection() -> None:
    driver = registered()
    driver.own({T0: 3})
    renew(driver)
    assert driver.machine.member is not None
    driver.machine.member.handle_give_up()
    driver.break_connection()
    driver.now_ms += RECONNECT_MS
    assert of_type(driver.step(Tick()), EmitUntil) == []


def test_suspended_policy_continue_emits_until_the_session_is_known_to_be_lost() -> None:
    driver = registered(pause=False)
    driver.own({T0: 3})
    assert of_type(driver.break_connection(), EmitUntil) == []
    driver.connect()
    assert of_type(driver.answer(RENEWAL, Done()), EmitUntil) == [EmitUntil(FOREVER_MS)]
    assert EmitUntil(NEVER_MS) in driver.step(Lost())


def test_a_session_that_was_lost_drops_everything_at_once() -> None:
    driver = registered()
    driver.own({T0: 3})
    effects = driver.step(Lost())
    assert [effect for effect in effects if not isinstance(effect, Warn)] == [
        EmitUntil(NEVER_MS),
        TellLost(),  # before the partitions are forgotten, or the application would not hear of them
        RecordLost(CONSUMER, 4, frozenset({T0})),  # also before, because it tells how far they came
        Forget(frozenset({T0})),
        CloseSession(),
        BecameOut(),
    ]


def test_another_session_than_before_means_that_ours_was_lost() -> None:
    driver = registered()
    driver.own({T0: 3})
    effects = driver.step(Connected(SESSION + 1, SESSION_TIMEOUT_MS))
    assert TellLost() in effects
    assert driver.machine.state is State.OUT


def test_rule_12_a_refused_renewal_means_evicted() -> None:
    driver = registered()
    driver.own({T0: 3})
    driver.now_ms += LEASE_MS // 3
    driver.step(Tick())
    effects = driver.answer(RENEWAL, Refused(Refusal.NO_NODE, 0))
    assert effects[0] == EmitUntil(NEVER_MS)
    assert TellLost() in effects
    assert [effect.text for effect in effects if isinstance(effect, Warn)] == [
        f"{CONSUMER} is out of its group: evicted by the coordinator"
    ]
    assert driver.machine.state is State.OUT


def test_a_renewal_that_is_refused_for_want_of_a_right_is_logged_with_that_right() -> None:
    """In `Member._renewed`, do not say why."""
    driver = registered()
    driver.own({T0: 3})
    driver.now_ms += LEASE_MS // 3
    driver.step(Tick())
    effects = driver.answer(RENEWAL, Refused(Refusal.NO_AUTH, 0))
    (text,) = (effect.text for effect in effects if isinstance(effect, Warn))
    assert f"ZooKeeper refuses {OWNERS}: no permission, right READ is missing" in text
    assert driver.machine.state is State.OUT


def test_rule_12_a_channel_that_is_gone_means_evicted() -> None:
    driver = registered()
    driver.step(Watched(CHANNEL, children=True))
    driver.answer(LIST_CHANNEL, Refused(Refusal.NO_NODE))
    assert driver.machine.state is State.OUT


def test_rule_12_after_an_eviction_only_the_applications_poll_registers_again() -> None:
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    driver.step(Tick())
    effects = driver.answer(RENEWAL, Refused(Refusal.NO_NODE, 0))
    assert requests(effects) == []
    driver.now_ms += 100_000
    assert driver.machine.wake_at_ms is None
    assert driver.step(Tick()) == []
    assert driver.step(Polled("c-2", 5)) == [OpenSession()]


def test_a_commit_that_waits_is_told_that_the_partitions_are_lost() -> None:
    driver = registered()
    driver.own({T0: 3})
    driver.break_connection()
    driver.step(CommitRequested(77))
    (finished,) = of_type(driver.step(Lost()), CommitFinished)
    assert finished.tokens == (77,)
    assert finished.error is not None


def test_a_watch_of_somebody_elses_channel_is_ignored() -> None:
    driver = registered()
    assert driver.step(Watched(paths.channel(GROUP, "c-0"), children=True)) == []


def test_a_change_while_the_channel_is_being_listed_lists_it_once_more() -> None:
    driver = registered()
    driver.step(Watched(CHANNEL, children=True))
    assert requests(driver.step(Watched(CHANNEL, children=True))) == []
    assert requests(driver.answer(LIST_CHANNEL, Children(()))) == [LIST_CHANNEL]
    assert requests(driver.answer(LIST_CHANNEL, Children(()))) == []


def test_a_renewal_only_checks_the_own_record() -> None:
    driver = registered()
    driver.now_ms += LEASE_MS // 3
    assert Multi((Check(OWNERS, -1),)) in requests(driver.step(Tick()))


def test_a_machine_is_plain_data_whose_copy_goes_on_alike() -> None:
    """An exhaustive test of interruptions copies and compares machines."""
    driver = registered()
    driver.own({T0: 3})
    driver.step(Watched(CHANNEL, children=True))
    twin = pickle.loads(pickle.dumps(driver.machine))  # noqa: S301  # our own bytes
    for event in (Suspended(), Connected(SESSION, SESSION_TIMEOUT_MS), CommitRequested(9), Lost(), Polled("c-2", 5)):
        assert twin.step(event, driver.now_ms) == driver.machine.step(event, driver.now_ms)
    assert twin.state is State.CONNECTING


def test_a_renewal_that_was_answered_before_the_connection_broke_lets_nothing_be_emitted() -> None:
    """The answer may be handled after the break. In `Member._renewed`, extend the lease all the same."""
    driver = Driver()
    driver.register()
    driver.now_ms += LEASE_MS // 3
    driver.step(Tick())
    assert of_type(driver.step(Suspended()), EmitUntil) == [EmitUntil(NEVER_MS)]
    assert of_type(driver.answer(RENEWAL, Done((None,))), EmitUntil) == []


def test_a_foreseen_command_is_read_once() -> None:
    driver = Driver()
    driver.register_at_old_server()
    name = f"{CHANNEL}/command-0000000000"
    assert Get(name) in requests(driver.step(Watched(CHANNEL, children=True)))
    assert driver.answer(LIST_WITH_WATCH, Children(("command-0000000000",))) == []


@pytest.mark.parametrize("timeout_ms", [3_000, 60_000, 3_600_000])
def test_a_lease_is_no_longer_than_a_leader_waits_for_one_that_it_does_not_know(timeout_ms: int) -> None:
    """In `Member`, take two thirds of any session: a group that is deleted in use would get two owners."""
    driver = Driver(auto_commit_interval_ms=None)
    driver.step(Polled(CONSUMER, 5))
    driver.step(Connected(SESSION, timeout_ms))
    driver.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
    leases = of_type(driver.answer_write(driver.registered), EmitUntil)
    assert leases == [EmitUntil(driver.now_ms + min(timeout_ms * 2 // 3, 40_000))]
    assert lease_wait_us(None) >= 40_000_000


def test_a_lease_is_as_short_as_the_server_demands_to_which_the_session_has_moved() -> None:
    """In `Member.handle_connected`, keep the lease: the session would end before it. A longer one is not registered."""
    driver = registered()
    renew(driver)
    granted = {SESSION_TIMEOUT_MS // 2: [EmitUntil(NEVER_MS)], 9 * SESSION_TIMEOUT_MS: []}
    for granted_ms, at_once in granted.items():
        lease_ms = min(granted_ms * 2 // 3, LEASE_MS)
        driver.break_connection()
        driver.now_ms += RECONNECT_MS
        assert of_type(driver.step(Tick()), EmitUntil) != []
        assert of_type(driver.step(Connected(SESSION, granted_ms)), EmitUntil) == at_once
        assert of_type(driver.answer(RENEWAL, Done()), EmitUntil) == [EmitUntil(driver.now_ms + lease_ms)]
        driver.now_ms += 100
