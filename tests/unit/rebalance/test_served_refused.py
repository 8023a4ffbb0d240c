"""The marks of groups that were served may not be read: only groups without a generation wait for that."""

from __future__ import annotations

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Multi, Refusal, Refused, Reply
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.leases import UNKNOWN_LEASE_MS


def refused_world() -> World:
    """Return a world with a new leader, which knows nothing of any group's past."""
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    world.zk.denied.add(("", paths.SERVED, Right.READ))
    world.add_coordinator()
    world.add_agent("b")
    world.pass_time(3_000)
    return world


def test_a_group_that_has_a_generation_is_served() -> None:
    """In `FormerLives._list_later`, leave `is_known` as it is."""
    world = refused_world()
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 2, "b-1": 2}
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert world.zk.children(paths.SERVED) == [GROUP]
    assert sum("ZooKeeper refuses" in text for text in world.warnings) == 1


def test_a_group_without_one_may_have_been_served_before() -> None:
    """In `FormerLives.was_served`, look at the known marks only."""
    world = refused_world()
    world.zk.perform(Multi((Create(paths.group("other")),)))
    world.pass_time(UNKNOWN_LEASE_MS - 5_000)
    assert world.zk.children(paths.group("other")) == []
    world.pass_time(10_000)
    generation = world.zk.nodes[paths.generation("other")].content
    assert int(generation) == world.zk.nodes[paths.group("other")].created_zxid


def test_the_parent_of_the_marks_may_not_be_made() -> None:
    """In `FormerLives._created`, wait until it may: no group would be read."""
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    for name in world.zk.children(paths.SERVED):
        world.zk.perform(Multi((Delete(paths.served(name)),)))
    world.zk.perform(Multi((Delete(paths.SERVED),)))
    perform, is_refused = world.zk.perform, True

    def refusing(call: Call, session_id: int = 0) -> Reply:
        if is_refused and isinstance(call, Multi) and Create(paths.SERVED) in call.operations:
            return Refused(Refusal.QUOTA_EXCEEDED, 1)
        return perform(call, session_id)

    world.zk.perform = refusing  # type: ignore[method-assign]
    world.add_coordinator()
    world.add_agent("b")
    world.pass_time(3_000)
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 2, "b-1": 2}
    is_refused = False
    world.pass_time(60_000)
    assert world.zk.children(paths.SERVED) == [GROUP]
