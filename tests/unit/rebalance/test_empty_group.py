"""A group without members costs nothing, and is served as soon as one joins."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import World
from zkrebalancer.protocol.settings import GroupSettings

DAY_MS = 86_400_000


def long_empty() -> World:
    world = world_with(GroupSettings(), "a")
    world.leave(world.agents["a"])
    world.agents["a"].silent = True
    world.pass_time(DAY_MS)
    return world


def test_it_is_read_again_once_and_then_waits_for_a_watch() -> None:
    """In `Reconciling.rest`, always expect a reading."""
    triggers = [event["trigger"] for event in events(long_empty(), "rebalance_requested")]
    assert triggers.count("reconciliation") == 1


@pytest.mark.parametrize("is_failover", [False, True])
def test_a_consumer_that_comes_is_served_by_this_leader_and_by_the_next(*, is_failover: bool) -> None:
    world = long_empty()
    if is_failover:
        world.add_coordinator()
        world.kill_coordinator(world.leader())
        world.pass_time(5_000)
    world.add_agent("b")
    world.pass_time(1_000)
    assert len(world.owned()["b-1"]) == 4


def test_a_group_with_members_is_reconciled_for_ever() -> None:
    world = world_with(GroupSettings(), "a")
    world.pass_time(3_600_000)
    triggers = [event["trigger"] for event in events(world, "rebalance_requested")]
    assert triggers.count("reconciliation") >= 12
