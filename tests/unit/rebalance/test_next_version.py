"""Nodes of the next version in a group: it is still served, and nothing is retried without end."""

from __future__ import annotations

from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.settings import GroupSettings


def test_a_static_node_of_the_next_version() -> None:
    """In `static_members.stores`, create the node of an instance whose record cannot be read."""
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(GroupSettings()))
    content = b'{"version":2,"consumer":"s-0","partitions":{"t":[[0,3]]},"deadline_ms":null}'
    world.zk.perform(Multi((Create(paths.static(GROUP, "pod"), content),)))
    world.add_coordinator()
    world.add_agent("s", instance_id="pod")
    world.pass_time(5_000)
    assert len(world.owned()["s-1"]) == 4
    assert sum("version 2 is newer than 1" in text for text in world.warnings) == 1
