"""A group that is deleted and created again between two looks of the leader: everything that was known is wrong."""

from __future__ import annotations

import pytest

from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi


def delete_group(world: World) -> None:
    """As `groups delete` does, once its consumers are gone."""
    below = sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), key=len, reverse=True)
    world.zk.perform(Multi(tuple(Delete(path) for path in below)))


def move_leader(world: World, steps: int) -> None:
    process = world.leader()
    for _ in range(steps):
        if process.session.sent:
            world.zk.perform_next(process.session)
        elif process.session.inbox:
            world.deliver(process)
        elif process.computing:
            world.compute(process)


@pytest.mark.parametrize("is_loading", [False, True], ids=["at rest", "while it is loaded"])
@pytest.mark.parametrize("steps", range(16))
def test_its_consumers_are_served(steps: int, is_loading: bool) -> None:
    """Wherever the leader stands in between. Fails without `Group.is_gone` or the look at `created_zxid`."""
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

    world.assert_converged()
    assert set(world.owned()) == {"a-2"}
