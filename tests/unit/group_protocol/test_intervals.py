"""How often members report while something is pending: the more of them wait at a gateway, the less often."""

from __future__ import annotations

import pytest

from tests.support.group_coordinator import GROUP
from tests.support.kip848_group import Client, coordinator_with
from zkrebalancer.group_protocol.intervals import MAX_URGENT_REPORTS_PER_S, Intervals
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

SETTINGS = GroupProtocolSettings()
USUAL_MS, URGENT_MS = SETTINGS.consumer_heartbeat_interval_ms, SETTINGS.consumer_urgent_heartbeat_interval_ms
MANY = 4_000
MANY_MS = MANY * 1_000 // MAX_URGENT_REPORTS_PER_S


@pytest.mark.parametrize(
    ("members", "expected_ms"),
    [(1, URGENT_MS), (MAX_URGENT_REPORTS_PER_S // 2, URGENT_MS), (MANY, MANY_MS), (50_000, USUAL_MS)],
)
def test_members_of_a_large_group_report_less_often_while_something_is_pending(members: int, expected_ms: int) -> None:
    """In `interval_ms`, ignore how many there are: a thousand would report 5,000 times a second in a central group."""
    intervals = Intervals(SETTINGS)
    assert intervals.interval_ms("g", members, is_urgent=True) == expected_ms
    assert intervals.interval_ms("g", members, is_urgent=False) == USUAL_MS


def test_members_of_all_groups_that_wait_count_and_only_those() -> None:
    """In `_note`, keep a group that is no longer urgent, or add it again with each heartbeat."""
    intervals = Intervals(SETTINGS)
    for _ in range(2):
        intervals.interval_ms("large", MANY - 1, is_urgent=True)
    assert intervals.interval_ms("small", 1, is_urgent=True) == MANY_MS
    assert intervals.interval_ms("other", MANY, is_urgent=False) == USUAL_MS
    intervals.interval_ms("large", MANY - 1, is_urgent=False)
    assert intervals.interval_ms("small", 1, is_urgent=True) == URGENT_MS
    intervals.interval_ms("large", MANY - 1, is_urgent=True)
    intervals.forget("large")
    assert intervals.interval_ms("small", 1, is_urgent=True) == URGENT_MS


@pytest.mark.parametrize("end", ["leave", "session", "elsewhere", "failure"])
def test_a_group_whose_members_are_gone_does_not_slow_down_others(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out one of the calls of `Intervals.forget`."""
    coordinator = coordinator_with({"t": 4})
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    a.beat()
    b.beat()
    intervals = coordinator.machine._world.intervals
    assert intervals._members == {GROUP: 2}
    match end:
        case "leave":
            a.beat(-1)
            b.beat(-1)
        case "session":
            coordinator.pass_time(SETTINGS.consumer_session_timeout_ms)
        case "elsewhere":
            coordinator.lose_buckets()
        case "failure":
            coordinator.failures = []
            monkeypatch.setattr("zkrebalancer.group_protocol.consumer_heartbeat.Heartbeat.handle", None)
            b.send()
    assert (intervals._members, intervals._total) == ({}, 0)
