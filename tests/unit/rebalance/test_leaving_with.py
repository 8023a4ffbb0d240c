"""A stop is acknowledged while the eviction of its consumer is being prepared and written."""

from __future__ import annotations

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Delete, Done, Multi
from zkrebalancer.protocol.settings import GroupSettings

LEASE_MS = 4_000


def world_with_a_stop() -> World:
    """Return a world in which `a-1` has to give two of its four partitions to `b-1`, and has not answered."""
    world = world_with(GroupSettings(), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.run()
    assert len(world.zk.children(paths.channel(GROUP, "a-1"))) == 1
    return world


def acknowledge(world: World) -> None:
    agent = world.agents["a"]
    agent.silent = False
    assert world.act(agent)
    assert world.act(agent)
    agent.silent = True
    assert len(world.owned()["a-1"]) == 2


def test_what_an_eviction_record_names_is_not_started_while_the_record_is_being_written() -> None:
    """In `Departures._channel_listed`, do not set `leaving_with`: two holders."""
    world = world_with_a_stop()
    assert isinstance(world.zk.perform(Multi((Delete(paths.ids(GROUP, "a-1")),))), Done)
    while not any("evicting a-1" in text for text in world.warnings):
        assert world.move(world.leader())
    acknowledge(world)  # the channel is listed afterwards, and the record read after that
    world.run()
    assert len(ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content).partitions) == 4
    assert not world.owned()["b-1"]
    world.pass_time(LEASE_MS + 100)
    assert len(world.owned()["b-1"]) == 4
    world.assert_settled()


def test_what_was_stopped_is_free_once_the_eviction_is_refused() -> None:
    """In `Departures._evicted`, do not forget `leaving_with`: it is never started anywhere."""
    world = world_with_a_stop()
    leader = world.leader()
    while not any("evicting a-1" in text for text in world.warnings):
        if not world.move(leader):
            world.now_us = world.next_deadline_us() or 0
            world.tick()
    while not any(isinstance(call, Multi) for _call_id, call in leader.session.sent):
        assert world.move(leader)
    acknowledge(world)  # before the eviction is performed
    world.run()
    assert not world.zk.children(paths.evicted(GROUP))
    assert {name: len(had) for name, had in world.owned().items()} == {"a-1": 2, "b-1": 2}
    world.assert_settled()
