"""Consumers are killed around each ack, lose their session, or are blocked by their application."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import pytest

from consumer_agent.runtime.failpoints import NAMES
from tests.integration.scenario import Scenario, owners_of
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import lease_ms

SHORT = [("before-ack", "after-ack"), ("after-stop-ack", "before-stop-ack")]  # one for each mode
LONG = [pytest.param((name, name), marks=pytest.mark.long) for name in NAMES]
WHEN_STOPPED = ("before-stop-ack", "after-stop-ack")
REBALANCE_TIMEOUT_MS = 500


@pytest.mark.parametrize("failpoints", [*SHORT, *LONG], ids="-".join)
def test_a_consumer_is_killed_at_a_step(scenario: Scenario, failpoints: tuple[str, str]) -> None:
    scenario.begin(members=1)
    steps = zip(scenario.groups, failpoints, strict=True)
    doomed = {group: scenario.join(group, failpoint=failpoint) for group, failpoint in steps}
    if failpoints[0] in WHEN_STOPPED:
        scenario.settle()
        scenario.join_all()
    for group, name in doomed.items():
        scenario.wait_end(name)
        scenario.groups[group].remove(name)
    scenario.verify()


def test_a_session_is_expired(scenario: Scenario) -> None:
    """`on_lost` reports the partitions, and the next poll joins as a new consumer."""
    scenario.begin(members=1)
    applications = [scenario.join_here(group) for group in scenario.groups]
    scenario.settle()
    for application in applications:
        application.expire_session()
        scenario.lab.wait_for("what was lost is told", partial(bool, application.lost))
    scenario.verify()
    assert all(len(application.lost[0]) == 3 for application in applications)


def test_an_application_that_blocks_longer_than_its_session_keeps_its_partitions(scenario: Scenario) -> None:
    scenario.begin(members=1)
    applications = [scenario.join_here(group) for group in scenario.groups]
    scenario.settle()
    before = {group: owners_of(scenario.report(group)) for group in scenario.groups}
    for application in applications:
        application.block()
    since = time.monotonic()
    blocked_s = 1.5 * scenario.lab.session_timeout_ms / 1_000
    scenario.lab.wait_for("longer than a session", lambda: time.monotonic() > since + blocked_s)
    assert {group: owners_of(scenario.report(group)) for group in scenario.groups} == before
    for application in applications:
        application.unblock()
    scenario.verify()
    assert not any(application.lost for application in applications)


def test_a_blocked_application_that_holds_back_a_stop_is_evicted(scenario: Scenario) -> None:
    """Its partitions start elsewhere only after its lease; its next poll joins as a new consumer."""
    scenario.begin(members=1, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS)
    applications = {group: scenario.join_here(group, stop_timeout_ms=1) for group in scenario.groups}
    scenario.settle()
    for group, application in applications.items():
        application.block()
        scenario.lab.wait_for(f"{application.name} is blocked", application.is_blocked.is_set)
        scenario.groups[group].remove(application.name)
    blocked = {group: owners_of(scenario.report(group)) for group in scenario.groups}
    scenario.join_all()
    scenario.settle()
    for group, application in applications.items():
        check_eviction(scenario, group, application.name, blocked[group])
        application.unblock()
        scenario.groups[group].append(application.name)
    scenario.verify()
    assert all(len(application.lost) == 1 for application in applications.values())


def check_eviction(scenario: Scenario, group: str, client: str, before: Mapping[TopicPartition, str]) -> None:
    """Check that this client alone was evicted, and that its partitions started elsewhere after its lease."""
    evicted = scenario.wait_event("member_left", group=group, reason="evicted")
    assert scenario.events("member_left", group=group, reason="evicted") == [evicted]
    assert evicted["member"].startswith(client)
    held = {partition for partition, consumer in before.items() if consumer == evicted["member"]}

    def started_us() -> list[int]:
        started = scenario.events("fetcher_started", group=group, since_us=evicted["mono_us"])
        return [one["mono_us"] for one in started if held & {(one["topic"], number) for number in one["partitions"]}]

    scenario.lab.wait_for("an event of a start elsewhere", lambda: bool(started_us()))
    assert min(started_us()) - evicted["mono_us"] >= lease_ms(scenario.lab.session_timeout_ms) * 1_000


def test_an_application_that_takes_longer_for_a_batch_than_its_group_waits_loses_nothing(scenario: Scenario) -> None:
    """By default, the stop timeout is the longest time between polls: no eviction, no duplicates."""
    scenario.begin(members=1, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS)
    applications = {group: scenario.join_here(group) for group in scenario.groups}
    scenario.settle()
    for application in applications.values():
        application.block()
        scenario.lab.wait_for(f"{application.name} is blocked", application.is_blocked.is_set)
    scenario.join_all()
    for group, application in applications.items():
        members = [member.consumer for member in scenario.report(group).members]
        (blocked,) = [name for name in members if name.startswith(f"{application.name}-")]
        scenario.wait_event("command_sent", group=group, member=blocked, option="stop-fetcher")
    since = time.monotonic()
    blocked_s = 3 * REBALANCE_TIMEOUT_MS / 1_000
    scenario.lab.wait_for("longer than the group waits", lambda: time.monotonic() > since + blocked_s)
    for application in applications.values():
        application.unblock()
    scenario.verify()
    assert not scenario.events("member_left", reason="evicted")
    assert not any(application.lost for application in applications.values())
