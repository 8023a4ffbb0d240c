"""A group that is deleted and created again between two looks of the leader: everything that was known is wrong."""

from __future__ import annotations

import pytest

from tests.support.world import GROUP, SESSION_MS, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.protocol.registration import lease_ms
from zkrebalancer.rebalance.leases import UNKNOWN_LEASE_MS

LEASE = lease_ms(SESSION_MS)


def delete_group(world: World) -> None:
    """As `groups delete` does, once its consumers are gone."""
    below = sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), key=len, reverse=True)
    world.zk.perform(Multi(tuple(Delete(path) for path in below)))


def move_leader(world: World, steps: int) -> None:
    process = world.leader()
    for _ in range(steps):
        world.move(process)


@pytest.mark.parametrize("is_loading", [False, True], ids=["at rest", "while it is loaded"])
@pytest.mark.parametrize("steps", range(16))
def test_its_consumers_are_served(steps: int, is_loading: bool) -> None:
    """Wherever the leader stands in between. Fails without `Leadership.gone` or the look at `created_zxid`."""
    world = World()
    world.set_topic("t", 2)
    world.create_group()
    world.add_coordinator()
    agent = world.add_agent("a")
    world.pass_time(2_000)
    if is_loading:
        world.leader().machine.groups[GROUP].load("reconciliation")
        world.tick()

    world.leave(agent)
    delete_group(world)
    move_leader(world, steps)
    world.create_group()
    world.pass_time(10_000)  # long before the periodic reconciliation

    world.assert_settled()
    assert set(world.owned()) == {"a-2"}


# Deleted while it is in use: its members may emit until their leases end ---------------------------------------------


def world_in_use() -> World:
    world = World()
    world.set_topic("t", 2)
    world.create_group()
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(2_000)
    assert world.owned() == {"a-1": {("t", 0): 0, ("t", 1): 0}}
    return world


def delete_in_use(world: World) -> None:
    """Its member does not notice."""
    world.agents["a"].silent = True
    delete_group(world)


def served_after_ms(world: World) -> int:
    """Create the group again, and return how long a new member waits for its partitions."""
    world.create_group()
    world.add_agent("b")
    for waited_ms in range(0, 100_000, 100):
        if any(world.owned().values()):
            return waited_ms
        world.pass_time(100)
    raise AssertionError("it is never served")


@pytest.mark.parametrize("is_noticed", [True, False], ids=["the leader sees it gone", "and created again"])
def test_a_group_that_was_deleted_in_use_waits_for_the_leases_of_its_members(is_noticed: bool) -> None:
    """In `FormerLives.wait_us`, return 0."""
    world = world_in_use()
    generation = world.generation()
    delete_in_use(world)
    if is_noticed:
        world.run()
        assert not world.leader().machine.groups
    assert LEASE <= served_after_ms(world) < LEASE + 500
    assert any("was deleted while it may have had members" in text for text in world.warnings)
    assert world.generation() > generation


@pytest.mark.parametrize("is_new", [False, True], ids=["the same leader", "a new leader"])
@pytest.mark.parametrize("steps_between", [0, 5, 10, 20])
def test_a_group_that_is_deleted_while_it_is_read(is_new: bool, steps_between: int) -> None:
    """Whatever the reading still sees of it. In `Departures.note_missing`, leave out `is_mixed`."""
    for steps in range(60):
        world = world_in_use()
        if is_new:
            world.kill_coordinator(world.leader())
            world.add_coordinator()
        else:
            world.leader().machine.groups[GROUP].load("reconnected")
            world.tick()
        reading = world.coordinators[-1]
        for _ in range(steps):
            world.move(reading)
        delete_in_use(world)
        for _ in range(steps_between):
            world.move(reading)
        assert served_after_ms(world) >= LEASE, steps


@pytest.mark.parametrize("is_new", [False, True], ids=["the same leader", "a new leader"])
def test_a_group_that_is_read_while_its_nodes_are_deleted_one_by_one(is_new: bool) -> None:
    """Its member seems to be dead. In `Departures.note_missing`, leave out the members before, or `dead`."""
    world = world_in_use()
    world.agents["a"].silent = True
    leader = world.leader()
    world.zk.disconnect(leader.session)
    deleted = [paths.owners, paths.ids] if is_new else [paths.owners, paths.ids, paths.channel]
    world.zk.perform(Multi(tuple(Delete(path(GROUP, "a-1")) for path in deleted)))
    if is_new:
        world.kill_coordinator(leader)
        world.add_coordinator()
    else:
        world.zk.reconnect(leader.session)
    world.run()
    assert not world.leader().machine.groups[GROUP].view.members
    delete_group(world)
    assert served_after_ms(world) >= LEASE


def test_a_new_leader_waits_as_long_as_any_lease_may_last() -> None:
    """It has never heard of the members. In `FormerLives.wait_us`, take `unknown_us` for 0."""
    world = world_in_use()
    world.kill_coordinator(world.leader())
    delete_in_use(world)
    world.add_coordinator()
    assert UNKNOWN_LEASE_MS <= served_after_ms(world) < UNKNOWN_LEASE_MS * 1.02 + 500


def test_a_broken_connection_does_not_begin_the_wait_anew() -> None:
    """In `FormerLives.wait_us`, forget what was said before."""
    world = world_in_use()
    delete_in_use(world)
    world.create_group()
    world.pass_time(LEASE * 3 // 4)
    session = world.leader().session
    world.zk.disconnect(session)
    world.zk.reconnect(session)
    world.add_agent("b")
    world.pass_time(LEASE // 4 + 500)
    assert world.owned() == {"b-1": {("t", 0): 0, ("t", 1): 0}}


def test_a_group_that_was_deleted_without_members_waits_for_nobody() -> None:
    """In `longest_wait_us`, do not ask whom there was."""
    world = world_in_use()
    world.leave(world.agents["a"])
    world.agents["a"].alive = False
    world.pass_time(LEASE + 500)
    delete_group(world)
    assert served_after_ms(world) < 500


def test_a_group_that_stays_away_is_forgotten() -> None:
    """In `FormerLives.keep`, wake nobody: nodes of ever new names would fill the tree."""
    world = world_in_use()
    assert world.zk.children(paths.SERVED) == [GROUP]
    delete_in_use(world)
    world.pass_time(3_599_000)
    assert world.zk.children(paths.SERVED) == [GROUP]
    world.pass_time(2_000)
    assert world.zk.children(paths.SERVED) == []
    assert not world.leader().machine.former_lives._until_us


def test_groups_are_served_when_somebody_deletes_what_says_that_they_were() -> None:
    """With the node above. In `FormerLives._marked`, do not list again."""
    world = World()
    world.set_topic("t", 2)
    world.add_coordinator()
    world.run()
    world.zk.perform(Multi((Delete(paths.SERVED),)))
    world.create_group()
    world.add_agent("a")
    world.pass_time(2_000)
    assert world.owned() == {"a-1": {("t", 0): 0, ("t", 1): 0}}
    assert world.zk.children(paths.SERVED) == [GROUP]


def test_a_group_that_is_deleted_node_by_node_waits_for_those_that_seem_to_be_dead() -> None:
    """In `longest_wait_us`, leave out `lease_until_us`."""
    world = world_in_use()
    world.agents["a"].silent = True
    for path in (paths.owners(GROUP, "a-1"), paths.ids(GROUP, "a-1")):
        world.zk.perform(Multi((Delete(path),)))
    world.run()
    delete_group(world)
    assert LEASE <= served_after_ms(world) < LEASE + 500
