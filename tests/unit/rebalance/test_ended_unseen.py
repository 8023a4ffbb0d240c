"""Members that end while no coordinator leads: the next leader announces it, or the events have them for ever."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, SESSION_MS, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.settings import GroupSettings


@pytest.mark.parametrize(("leaves", "reason"), [(True, "closed"), (False, "expired")])
def test_the_next_leader_announces_who_has_left_meanwhile(leaves: bool, reason: str) -> None:
    """In `Departures.adopt`, do not announce the dead, or those with only a record of their partitions."""
    world = world_with(GroupSettings(), "a", "b")
    world.kill_coordinator(world.leader())
    (world.leave if leaves else world.kill_agent)(world.agents["b"])
    world.agents["b"].silent = True
    world.add_coordinator()
    world.pass_time(1_000)
    assert events(world, "member_left") == [{"member": "b-1", "reason": reason}]
    _read_again(world)
    assert len(events(world, "member_left")) == 1


def test_an_end_is_told_once_though_nodes_are_left() -> None:
    """In `Departures`, forget whose end was announced: each reading announces it again."""
    world = world_with(GroupSettings(), "a", "b")
    world.zk.perform(Multi((Create(f"{paths.channel(GROUP, 'b-1')}/x"), Create(f"{paths.channel(GROUP, 'b-1')}/x/y"))))
    world.kill_agent(world.agents["b"])
    world.pass_time(1_200_000)  # several reconciliations
    assert paths.channel(GROUP, "b-1") in world.zk.nodes
    assert events(world, "member_left") == [{"member": "b-1", "reason": "expired"}]


def _read_again(world: World) -> None:
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)


def test_events_have_the_session_of_a_member_and_the_strategy_of_a_plan() -> None:
    """In `Membership._newcomer_owners_read` and in `Group._carry_out`, leave them out."""
    world = world_with(GroupSettings(strategy="range"), "a")
    assert events(world, "member_joined") == [{"member": "a-1", "session_timeout_ms": SESSION_MS}]
    assert [event["strategy"] for event in events(world, "rebalance_planned")] == ["range"]
