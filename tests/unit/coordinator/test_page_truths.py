"""Pages stay true during a takeover, while a connection is broken, and after an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from tests.support.deadlines import WITHIN_S
from tests.support.groups import world_with
from tests.support.page_site import LEADERS_SESSION, monitor_of, site_of
from tests.support.world import GROUP, CoordinatorProcess, World
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages import lanes, live, overview, site
from zkrebalancer.coordinator.pages.lanes import Span, newest
from zkrebalancer.coordinator.pages.overview import Listed, Overview, Wanted
from zkrebalancer.coordinator.pages.recent import Recent
from zkrebalancer.coordinator.pages.site import LONGEST_KEPT_US, SETTLING_US, Site
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Get, Refusal, Suspended
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress, encode_coordinator
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Emit, EventField
from zkrebalancer.rebalance.reconciling import RECONCILIATION
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.http_server import Answer

Document = dict[str, Any]
PLANNED: dict[str, EventField] = {"mode": "eager", "member_count": 2, "partition_count": 6, "moved_count": 3}


def document(shown: Site, path: str = "/page/group", query: str = f"name={GROUP}") -> Document:
    answer = shown(path, query)
    assert isinstance(answer, Answer)
    found: Document = json.loads(answer.content)
    return found


def plan_of(shown: Site, group: str = GROUP) -> Document:
    found: Document = json.loads(shown._plan({"name": group}))
    return found


def each_step(world: World, process: CoordinatorProcess) -> Iterator[None]:
    """Let one process go on, step by step, until nothing is left to do."""
    for _ in range(2_000):
        yield
        if not world.move(process):
            return
    raise AssertionError("it does not come to an end")


# Groups that were not read yet ----------------------------------------------------------------------------------------


def test_in_no_step_of_an_election_an_existing_group_is_missing() -> None:
    """In `Site._absence`, call it missing; or in `Monitor.is_unread`, forget those that wait, or an empty one."""
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    process = world.add_coordinator()
    shown = site_of(world, process, {})
    seen = set[str]()
    for _ in each_step(world, process):
        found, foreseen = document(shown), plan_of(shown) if GROUP not in process.machine.groups else {}
        if found["coordinator"]["leads"]:
            assert "missing" not in {**found, **foreseen}
            seen.add("loading" if "loading" in found else "read" if found["is_read"] else "being read")
            assert found.get("is_read") or "loading" in found or "not read the group yet" in found["reading"][0]
    assert seen == {"loading", "being read", "read"}
    assert document(shown, query="name=nobody")["missing"] == "nobody"
    assert plan_of(shown, "nobody")["missing"] == "nobody"


def test_after_a_broken_connection_a_group_that_waits_to_be_read_says_so() -> None:
    """In `Site._reading`, say nothing of it; or say it of a group that is only reconciled."""
    world = world_with(GroupSettings(), "a")
    shown, machine = site_of(world, world.leader()), world.leader().machine
    assert document(shown)["reading"] == []
    machine.groups_to_load.add(GROUP, RECONCILIATION)
    assert (document(shown)["reading"], document(shown, "/page/groups")["unread"]) == ([], 0)
    machine.groups_to_load.become([GROUP], "reconnected")
    shown._overview._next_us = 0
    (text,) = document(shown)["reading"]
    assert "may be outdated" in text
    assert document(shown, "/page/groups")["unread"] == 1


def test_a_followed_group_is_described_again_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Site._key`, make no difference between groups that are not there."""
    monkeypatch.setattr(site, "SETTLING_US", 0)
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    group = machine.groups.pop(GROUP)
    machine.groups_to_load.become([GROUP], "leader-elected")
    make = site_of(world, world.leader())._group({"name": GROUP})
    assert "loading" in json.loads(make())
    machine.groups_to_load.become([], "")
    assert "missing" in json.loads(make())
    machine.groups[GROUP] = group
    assert json.loads(make())["members"] == 1


def test_a_group_in_quarantine_is_listed_with_its_error() -> None:
    """In `overview.document`, list served groups only."""
    world = world_with(GroupSettings(), "a")
    shown = site_of(world, world.leader())
    world.leader().machine.quarantine.contain(GROUP, KeyError("x"), "step")
    assert (document(shown)["missing"], document(shown)["error"]) == (GROUP, "KeyError: 'x'")
    found = document(shown, "/page/groups")
    assert (found["out"], found["out_count"]) == ([{"group": GROUP, "problem": "KeyError: 'x'"}], 1)
    assert document(shown, "/page/groups", "search=other")["out"] == []


@pytest.mark.parametrize("kind", ["group_quarantined", "group_deleted", "rebalance_finished"])
def test_a_plan_is_over_with_its_group(kind: str) -> None:
    """In `Recent.note`, forget a plan only at its end: a group that is served again seems to carry it out for ever."""
    recent = Recent()
    recent.note(Emit("rebalance_planned", "g", 4, "id", PLANNED), "member-joined", 50)
    ended: dict[str, EventField] = {"outcome": "failed", "late_members": [], "settled_us": 1, "pause_us_max": 1}
    recent.note(Emit(kind, "g", 4, "id", {**PLANNED, **ended}), "member-joined", 60)
    assert recent.planned == {}
    assert len(recent.ended) == (kind == "rebalance_finished")


# Who leads ------------------------------------------------------------------------------------------------------------


def standby() -> tuple[World, CoordinatorProcess]:
    world = world_with(GroupSettings(), "a")
    process = world.add_coordinator()
    world.pass_time(1_000)
    return world, process


def leader_node(brokerid: int, host: str = "b1") -> dict[str, bytes | Refusal]:
    return {paths.COORDINATOR: encode_coordinator(CoordinatorAddress(brokerid, host, 3, "b1:8080", "17"))}


@pytest.mark.parametrize("path", ["/page/groups", "/page/group"])
def test_without_zookeeper_nobody_knows_whether_a_coordinator_leads(path: str) -> None:
    """In `Site._other_leader`, ask all the same: the page says that no coordinator leads."""
    world = world_with(GroupSettings(), "a")
    shown = site_of(world, world.leader())
    shown._monitor.handling(Suspended())
    found = document(shown, path)
    assert (found["coordinator"]["leads"], found["coordinator"]["state"]) == (False, "disconnected")
    assert (found["leader"], found["unknown"]) == (None, "ZooKeeper does not answer this coordinator")


def test_a_leader_whose_node_may_not_be_read_is_not_known() -> None:
    """In `Site._read_leader`, take any refusal for a missing node."""
    world, process = standby()
    found = document(site_of(world, process, {paths.COORDINATOR: Refusal.NO_AUTH}))
    assert (found["leader"], found["unknown"]) == (
        None,
        f"ZooKeeper refuses to show {paths.COORDINATOR}: {Refusal.NO_AUTH.value}",
    )


def test_a_leader_whose_node_is_of_a_newer_release_leads() -> None:
    world, process = standby()
    found = document(site_of(world, process, {paths.COORDINATOR: b"?"}))
    assert (found["unknown"], found["leader"]["http"]) == (None, None)
    assert found["leader"]["name"].startswith("one whose node cannot be read")


@pytest.mark.parametrize(("nodes", "session"), [(leader_node(NOBODY), LEADERS_SESSION), (leader_node(7), 0)])
def test_a_node_that_keeps_others_from_leading_or_is_a_copy_names_no_leader(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, bytes | Refusal], session: int
) -> None:
    """In `Site._read_leader`, decode whatever is there."""
    monkeypatch.setattr("tests.support.page_site.LEADERS_SESSION", session)
    world, process = standby()
    found = document(site_of(world, process, nodes))
    assert (found["leader"], found["unknown"]) == (None, None)


def test_a_coordinator_that_was_restarted_does_not_point_to_itself() -> None:
    """In `Site._read_leader`, do not compare: until the former session ends, the page links to itself."""
    world, process = standby()
    identity = process.machine.identity
    own = CoordinatorAddress(identity.brokerid, identity.host, 3, identity.http, "17")
    found = document(site_of(world, process, {paths.COORDINATOR: encode_coordinator(own)}))
    assert found["leader"] is None
    assert "was restarted" in found["unknown"]


# What is old ----------------------------------------------------------------------------------------------------------


def test_an_error_is_not_shown_for_longer_than_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Site._group`, make the page anew after changes only: it shows a refusal for hours."""
    now_us = 60_000_000
    monkeypatch.setattr(clock, "steady_us", lambda: now_us)
    world = world_with(GroupSettings(slo={"pause_ms": 1.0}), "a")
    nodes: dict[str, bytes | Refusal] = {paths.history(GROUP): Refusal.NO_AUTH}
    make = site_of(world, world.leader(), nodes)._group({"name": GROUP})
    refused = json.loads(make())
    assert len(refused["problems"]) == 1
    assert refused["levels"] == [], "of rebalances that could not be read"
    now_us += SETTLING_US
    make()
    del nodes[paths.history(GROUP)]
    now_us += LONGEST_KEPT_US
    assert json.loads(make())["problems"] == []


def test_a_list_that_was_not_counted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Listed`, make no difference: a busy leader of thousands of groups shows none."""
    monkeypatch.setattr(overview, "COUNT_WAIT_S", 0.01)
    world, may_end = world_with(GroupSettings(), "a"), Event()

    def never(_monitor: Monitor) -> Iterator[Any]:
        may_end.wait(WITHIN_S)
        yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "figures", never)
        shown = site_of(world, world.leader())
        assert document(shown, "/page/groups")["interval_s"] is None
        may_end.set()
        gevent.sleep(0.01)
    shown._overview._next_us = 0
    assert document(shown, "/page/groups")["interval_s"] == overview.SNAPSHOT_INTERVAL_S
    assert overview.document(Listed(interval_s=12.0), Wanted(), 0)["interval_s"] == 12.0


def test_groups_are_counted_anew_under_another_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Overview.look`, look at the time only: groups of a former leadership are shown."""
    monkeypatch.setattr(clock, "steady_us", lambda: 60_000_000)
    world = world_with(GroupSettings(), "a")
    seen = Overview(monitor_of(world.leader()))
    before = seen.look()
    assert seen.look() is before
    world.leader().machine.coordinator_elector.epoch += 1
    assert seen.look() is not before


def test_a_page_learns_that_nothing_has_changed() -> None:
    """In `live.py`, send a comment: to the page, a dead coordinator looks like a quiet one."""
    assert live.PING.startswith(b"event: beat\ndata: ")
    assert live.PING.endswith(b"\n\n")


# Owners and reasons ---------------------------------------------------------------------------------------------------


def test_an_owner_since_long_ago_is_shown_beside_very_many_changes() -> None:
    """In `lanes.newest`, drop all spans that begin earlier: a quiet partition seems to have no owner."""
    found = {("t", 0): [Span(1, None, "a")], ("t", 1): [Span(2, 4, "b"), Span(4, 6, "a"), Span(6, None, "b")]}
    assert newest(found, 2) == {
        ("t", 0): [Span(4, None, "a")],
        ("t", 1): [Span(4, 6, "a"), Span(6, None, "b")],
    }


def test_a_picture_that_lacks_old_changes_says_since_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `group_view._owners`, always say when the group was read: what was dropped looks like a time without owner."""
    world = world_with(GroupSettings())
    shown = site_of(world, world.leader())
    world.leader().machine.turnover.begin(GROUP, 1_700_000_000_000)
    for client in ("a", "b"):
        world.add_agent(client)
        world.pass_time(2_000)
    whole = document(shown)["owners"]
    monkeypatch.setattr(lanes, "newest", lambda found: newest(found, 1))
    cut = document(shown)["owners"]
    assert cut["since_ms"] > whole["since_ms"]
    assert [len(lane["spans"]) for lane in cut["lanes"]] == [1] * 4


@pytest.mark.parametrize(
    ("path", "refusal", "text"),
    [
        (paths.group(GROUP), Refusal.NO_AUTH, "right READ is missing; retried"),
        (paths.group(GROUP), Refusal.QUOTA_EXCEEDED, f"{Refusal.QUOTA_EXCEEDED.value}; retried"),
        (paths.GROUPS, Refusal.NO_AUTH, "(affects all groups)"),
    ],
)
def test_a_refusal_names_a_right_only_if_one_is_missing_and_may_be_of_all_groups(
    path: str, refusal: Refusal, text: str
) -> None:
    """In `group_view._published`, always name the right, or leave out what affects all groups."""
    world = world_with(GroupSettings(), "a")
    world.leader().machine.scheduler.note_refused(Get(path), refusal)
    (obstacle,) = document(site_of(world, world.leader()))["obstacles"]
    assert text in obstacle["text"]
    world.leader().machine.scheduler.note_refused(Get(paths.group("other")), refusal)
    assert len(document(site_of(world, world.leader()))["obstacles"]) == 1
