"""Service levels as metrics: only what is known counts, and only for groups that have such a level."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from gevent.event import Event

from tests.support.deadlines import WITHIN_S
from tests.support.groups import world_with
from tests.support.page_site import shards_of
from tests.support.world import GROUP
from zkrebalancer.coordinator import held_session, lag_process, service_levels
from zkrebalancer.coordinator.held_session import HeldSession
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.service_levels import Burned, ServiceLevels
from zkrebalancer.observe import inspection
from zkrebalancer.operations import group_lag
from zkrebalancer.operations.group_lag import PartitionLag
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Emit, EventField
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import Vitals


def levels_of(**slo: float) -> ServiceLevels:
    world = world_with(GroupSettings(slo=slo), "a")
    return ServiceLevels(Monitor(shards_of(world.leader().machine), Vitals(6_000, Notifier({}))))


def shown(levels: ServiceLevels) -> dict[str, float]:
    samples = [sample for metric in levels.collect() for sample in metric.samples]
    assert all(sample.labels == {"group": GROUP} for sample in samples)
    return {sample.name.removeprefix("zkrebalancer_coordinator_"): sample.value for sample in samples}


def finished(group: str, moved: int, pause_us: int) -> Emit:
    fields: dict[str, EventField] = {"moved_count": moved, "pause_us_max": pause_us}
    return Emit("rebalance_finished", group, 1, "id", fields)


def read_at(levels: ServiceLevels, at_s: int, answer: Mapping[str, Any]) -> None:
    levels.measure(lambda _group: answer, lambda: at_s * 1_000_000)


def test_long_pauses_are_counted_beside_all_that_moved_something() -> None:
    """In `ServiceLevels.collect`, leave out groups without a pause: the first breach would not grow a counter."""
    levels = levels_of(pause_ms=500)
    zeros = {"slo_pauses_total": 0, "slo_pauses_breached_total": 0}
    assert shown(levels) == zeros
    for effect in (
        finished(GROUP, 1, 500_000),
        finished(GROUP, 2, 500_001),
        finished(GROUP, 0, 900_000),
        finished("?", 1, 900_000),
    ):
        levels.note(effect, "member-joined")
    assert shown(levels) == {"slo_pauses_total": 2, "slo_pauses_breached_total": 1}
    levels.note(Emit("leader_elected", None, None, None, {}), "")
    assert shown(levels) == zeros


def test_groups_that_are_gone_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ServiceLevels._of`, drop none: after a thousand groups, no new one is ever measured."""
    monkeypatch.setattr(service_levels, "MAX_GROUPS", 1)
    levels = levels_of(pause_ms=500)
    levels._groups["deleted"] = Burned()  # it had a level
    levels.note(finished(GROUP, 1, 900_000), "member-joined")
    assert levels._groups.keys() == {GROUP}


def test_a_former_leader_shows_no_lag_that_it_no_longer_reads() -> None:
    """In `ServiceLevels.collect`, show the last one: an alert on it never ends."""
    world = world_with(GroupSettings(slo={"lag_s": 5}), "a")
    leader = world.leader()
    levels = ServiceLevels(Monitor(shards_of(leader.machine), Vitals(6_000, Notifier({}))))
    read_at(levels, 1, {"lag_s": 60.0})
    assert shown(levels)["group_lag_seconds"] == 60
    world.zk.expire(leader.session)
    world.pass_time(1_000)
    assert "group_lag_seconds" not in shown(levels)


def test_a_partition_that_is_not_known_counts_as_neither_kept_nor_burned(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `lag`, return the maximum of what is known; in `ServiceLevels.measure`, ignore `at_least_s`."""
    found: dict[TopicPartition, PartitionLag] = {
        ("t", 0): PartitionLag(5, None, 9),
        ("t", 1): PartitionLag(5, None, None),
        ("t", 2): PartitionLag(None, None, 0),  # nothing was ever written
    }
    first_ms: list[int] = []
    opened = mock.Mock()
    monkeypatch.setattr(held_session, "BlockingZk", opened)
    session = HeldSession()
    monkeypatch.setattr(inspection, "read_group", lambda _zk, _group: None)
    monkeypatch.setattr(inspection, "read_offsets", lambda _zk, _report: None)
    monkeypatch.setattr(group_lag, "read_lag", lambda _report, _kafka: found)
    monkeypatch.setattr(group_lag, "first_unread_ms", lambda _kafka, _unread: {("t", 0): first_ms[-1]})
    monkeypatch.setattr(time, "time", lambda: 1_000.0)

    levels = levels_of(lag_s=30)
    read_at(levels, 60, {"lag_s": 0.0})
    first_ms.append(999_000)
    partial = lag_process.lag(session, "z:1", {}, GROUP)
    assert partial == {"lag_s": None, "at_least_s": 1.0}
    read_at(levels, 120, partial)
    read_at(levels, 180, {"lag_s": 0.0})
    assert shown(levels) == {"slo_lag_seconds_total": 0, "slo_lag_breached_seconds_total": 0, "group_lag_seconds": 0}
    first_ms.append(960_000)
    read_at(levels, 240, lag_process.lag(session, "z:1", {}, GROUP))
    assert shown(levels) == {"slo_lag_seconds_total": 60, "slo_lag_breached_seconds_total": 60, "group_lag_seconds": 40}
    del found["t", 1]
    assert lag_process.lag(session, "z:1", {}, GROUP)["lag_s"] == 40
    assert opened.call_count == 1


def test_the_time_between_two_known_lags_counts_by_the_latter() -> None:
    """In `ServiceLevels.measure`, count the time after an unknown lag, or `>=`."""
    levels = levels_of(lag_s=30)
    readings: list[tuple[int, Mapping[str, Any]]] = [
        (60, {"lag_s": 99.0}),
        (120, {"lag_s": 30.0}),
        (180, {"lag_s": 31.0}),
        (240, {"error": "no broker"}),
        (300, {"lag_s": 99.0}),
        (310, {"lag_s": None}),
        (400, {"lag_s": 0.0}),
        (410, {"lag_s": 0.0}),
    ]
    for at_s, answer in readings:
        read_at(levels, at_s, answer)
    expected = {"slo_lag_seconds_total": 130, "slo_lag_breached_seconds_total": 60, "group_lag_seconds": 0}
    assert shown(levels) == expected


def test_a_lag_that_is_not_known_any_more_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    levels = levels_of(lag_s=30)
    for answer in ({"lag_s": 5.0}, {"error": "no broker"}, {"error": "no broker"}):
        read_at(levels, 1, answer)
    assert "group_lag_seconds" not in shown(levels)
    assert caplog.messages == [f"group {GROUP}: its lag is not known: no broker"]


def test_groups_without_a_level_are_not_read_and_levels_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read(group: str) -> Mapping[str, Any]:
        asked.append(group)
        return {"lag_s": 1.0}

    levels_of(pause_ms=1).measure(read)
    monkeypatch.setattr(service_levels, "MAX_GROUPS", 0)
    levels_of(lag_s=1).measure(read)
    assert asked == []


def test_a_line_says_what_was_burned() -> None:
    """In `Burned.line`, mix up how long it waits and how long that is known."""
    levels = levels_of(lag_s=30)
    read_at(levels, 60, {"lag_s": 99.0})
    read_at(levels, 120, {"lag_s": 45.0})
    read_at(levels, 180, {"lag_s": 12.0})
    assert levels.lag_line(GROUP) == (
        "slo.lag_s=30: the oldest unread record waits 12 s; it was above for 60 of 120 s since this coordinator leads"
    )
    assert levels_of(pause_ms=5).lag_line(GROUP) is None


def test_one_process_reads_lag_for_as_long_as_this_coordinator_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `measuring`, end it after each round: so would its session, once a minute for ever."""
    events: list[str] = []
    leads = [True, True, False]
    ended = Event()

    class Process:
        def __init__(self, _module: str) -> None:
            pass

        def ask(self, request: Mapping[str, Any], _limit_s: float) -> dict[str, Any]:
            events.append(request["group"])
            return {"lag_s": 1.0}

        def end(self) -> None:
            events.append("end")
            ended.set()

    monitor = mock.Mock()
    type(monitor).leads = mock.PropertyMock(side_effect=lambda: bool(leads) and leads.pop(0))
    monkeypatch.setattr(service_levels, "AskedProcess", Process)
    monkeypatch.setattr(service_levels, "INTERVAL_S", 0.0)
    stop = service_levels.measuring(levels_of(lag_s=30), monitor, "z:1", {})
    assert ended.wait(WITHIN_S)
    stop()
    assert events[:3] == [GROUP, GROUP, "end"]


def test_the_time_in_which_a_group_was_not_measured_is_unknown() -> None:
    """In `ServiceLevels.measure`, forget no reading: hours without a level, or a leader, count by the next one."""
    levels = levels_of(lag_s=30)
    group = levels._monitor.group(GROUP)
    assert group is not None
    read_at(levels, 60, {"lag_s": 0.0})
    known, group.view.settings = group.view.settings, GroupSettings()
    read_at(levels, 120, {"lag_s": 99.0})
    group.view.settings = known
    assert "group_lag_seconds" not in shown(levels)
    read_at(levels, 7_200, {"lag_s": 99.0})
    assert shown(levels) == {"group_lag_seconds": 99, "slo_lag_seconds_total": 0, "slo_lag_breached_seconds_total": 0}
    levels.pause()
    read_at(levels, 14_400, {"lag_s": 99.0})
    read_at(levels, 14_460, {"lag_s": 99.0})
    assert shown(levels) == {"group_lag_seconds": 99, "slo_lag_seconds_total": 60, "slo_lag_breached_seconds_total": 60}


def test_after_slow_readings_lag_is_read_again_within_minutes() -> None:
    """While Kafka was away, each group took half a minute. Without the limit, nothing was measured for hours after."""
    pauses = [service_levels.pause_after_s(elapsed_s) for elapsed_s in (0, 15, 30, 75, 3_000)]
    assert pauses == [60, 60, 120, 300, 300]
