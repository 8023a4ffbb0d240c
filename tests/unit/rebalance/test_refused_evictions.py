"""While ZooKeeper hides what a member answers, or refuses its eviction, the others go on, and its session may end."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.states import REST

IDS = paths.ids(GROUP), Right.DELETE
CHANNEL = paths.channel(GROUP, "a-1"), Right.READ
TIMEOUT_MS = 2_000


def world_with_a_refused_eviction(denied: tuple[str, Right], mode: str = "incremental") -> World:
    """`a` does not answer its stop, and the coordinator lacks a right that its eviction needs."""
    others = ("b",) if mode == "eager" else ()
    world = world_with(GroupSettings(mode=mode, rebalance_timeout_ms=TIMEOUT_MS), "a", *others)
    world.zk.denied.add(("", *denied))
    world.agents["a"].silent = True
    world.add_agent("c")
    world.pass_time(2 * TIMEOUT_MS)
    assert world.leader().machine.groups[GROUP].view.members["a-1"].state.value == "evicting"
    return world


@pytest.mark.parametrize("mode", ["incremental", "eager"])
@pytest.mark.parametrize("denied", [IDS, CHANNEL])
def test_the_end_of_a_session_is_seen_though_the_eviction_is_refused(denied: tuple[str, Right], mode: str) -> None:
    """In `Membership._owners_read`, ignore it while an eviction goes on, or let `Departures` repeat what is refused."""
    world = world_with_a_refused_eviction(denied, mode)
    world.kill_agent(world.agents["a"])
    world.zk.expire(world.agents["a"].session)
    world.pass_time(60_000)
    world.assert_settled()
    assert "a-1" not in world.owned()


@pytest.mark.parametrize("denied", [IDS, CHANNEL])
def test_who_answers_late_while_its_eviction_is_refused_is_taken_back(denied: tuple[str, Right]) -> None:
    world = world_with_a_refused_eviction(denied)
    world.agents["a"].silent = False
    world.pass_time(60_000)
    world.zk.denied.clear()
    world.pass_time(60_000)
    world.assert_settled()
    assert world.owned().keys() == {"a-1", "c-1"}
    assert not world.leader().machine.groups[GROUP].view.members["a-1"].is_eviction_refused  # else it would be left out


def test_an_eager_group_goes_on_without_the_stop_of_one_whose_eviction_is_refused() -> None:
    """In `Departures._is_to_wait`, do not report that it is out of reach."""
    world = world_with_a_refused_eviction(IDS, "eager")
    assert len(world.owned()["a-1"]) == 2
    assert len(world.owned()["b-1"]) + len(world.owned()["c-1"]) == 2
    world.zk.denied.clear()
    world.pass_time(60_000)
    world.assert_settled()


@pytest.mark.parametrize("path", [paths.owners(GROUP, "a-1"), paths.channel(GROUP, "a-1")])
def test_an_eager_group_waits_for_no_stop_that_it_cannot_ask_for(path: str) -> None:
    """In `make_plan`, let members that may not be read stop first."""
    world = world_with(GroupSettings(mode="eager"), "a", "b")
    world.zk.denied.add(("", path, Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.add_agent("c")
    world.pass_time(5_000)
    assert len(world.owned()["a-1"]) == 2
    assert len(world.owned()["b-1"]) + len(world.owned()["c-1"]) == 2
    world.zk.denied.clear()
    world.pass_time(60_000)
    world.assert_settled()


@pytest.mark.parametrize("answers", [True, False])
def test_an_eager_group_waits_for_no_answer_that_it_cannot_see(answers: bool) -> None:
    """In `Membership._owners_read`, let the scheduler repeat what is refused; in `Moving.owners_read`, set no limit."""
    world = world_with(GroupSettings(mode="eager", rebalance_timeout_ms=TIMEOUT_MS), "a", "b")
    world.agents["a"].silent = True
    world.add_agent("c")
    world.run()
    world.zk.identity = str
    world.zk.denied.add((str(world.leader().session.session_id), paths.owners(GROUP, "a-1"), Right.READ))
    if answers:
        world.agents["a"].silent = False
    else:
        world.leader().machine.groups[GROUP].watched(("owners", "a-1"))
    world.pass_time(5 * TIMEOUT_MS)
    assert len(world.owned()["b-1"]) + len(world.owned()["c-1"]) >= 2
    assert world.owned().keys() == {"a-1", "b-1", "c-1"}
    world.zk.denied.clear()
    world.pass_time(60_000)
    world.assert_settled()
    assert ("a-1" in world.owned()) is answers


def test_an_eviction_record_that_may_not_be_removed_holds_nothing_after_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Leases._lease_over`, let the scheduler repeat it: its partitions wait for an operator. Or report each try."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a")
    record, denied = paths.evicted(GROUP, "a-1"), ("", paths.evicted(GROUP), Right.DELETE)
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(2 * TIMEOUT_MS)
    assert record in world.zk.nodes
    world.zk.denied.add(denied)
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would count the record
    world.pass_time(10_000)
    assert len(world.owned()["b-1"]) == 4
    before = len(events(world, "rebalance_requested"))
    world.pass_time(120_000)
    assert len(events(world, "rebalance_requested")) == before
    assert len(events(world, "ownership_ended")) == 1
    refused = [text for text in world.warnings if f"refuses {record}" in text]
    assert refused == [
        f"ZooKeeper refuses {record}: no permission (DELETE of its parent); retried at growing intervals"
    ]
    world.zk.denied.remove(denied)
    world.pass_time(31_000)
    assert record not in world.zk.nodes
    assert world.leader().machine.groups[GROUP].state in REST
