"""Topics that change while a group is being rebalanced."""

from __future__ import annotations

from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths


def world_of_two_topics() -> World:
    world = World()
    for topic in "tu":
        world.set_topic(topic, 2)
    world.create_group()
    world.add_coordinator()
    return world


def test_a_topic_that_is_deleted_before_its_start_is_sent_is_not_started() -> None:
    """The plan still names the topic, the next one is debounced. Fails when `Group.may_start` does not ask `exists`."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    first = world.agents["a"]
    first.silent = True
    world.add_agent("b", {"t": 1, "u": 1})
    world.run()
    assert world.zk.children(paths.channel(GROUP, first.name or "")), "a stop waits for its answer"

    world.delete_topic("u")
    first.silent = False
    world.run()

    assert "u" not in {topic for topic, _partition in world.owned()["b-1"]}
    world.pass_time(2_000)
    assert {name: sorted(held) for name, held in world.owned().items()} == {"a-1": [("t", 0)], "b-1": [("t", 1)]}
