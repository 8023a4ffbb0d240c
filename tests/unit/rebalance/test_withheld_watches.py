"""ZooKeeper reports no changes of a node to whom may not read it then; they are found later all the same."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.settings import GroupSettings

RECONCILED_MS = 301_000
DAY_MS = 86_400_000


class Unreadable:
    """No coordinator may read a node meanwhile."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self._denied = ("", path, Right.READ)

    def __enter__(self) -> None:
        self._world.zk.denied.add(self._denied)

    def __exit__(self, *_error: object) -> None:
        self._world.run()
        self._world.zk.denied.discard(self._denied)
        assert self._world.zk.withheld


def test_a_consumer_that_came_is_found() -> None:
    """In `Group._rest`, do not wake for the reconciliation."""
    world = world_with(GroupSettings(), "a")
    with Unreadable(world, paths.ids(GROUP)):
        world.add_agent("b")
        world.pass_time(1_000)
    world.pass_time(1_000)
    assert world.owned()["b-1"] == {}
    world.pass_time(RECONCILED_MS)
    world.assert_settled()


def test_a_consumer_that_left_is_found() -> None:
    """In `Group._rest`, do not wake for the reconciliation."""
    world = world_with(GroupSettings(), "a", "b")
    with Unreadable(world, paths.ids(GROUP)), Unreadable(world, paths.owners(GROUP, "b-1")):
        world.kill_agent(world.agents["b"])
    world.pass_time(RECONCILED_MS)
    world.assert_settled()
    assert len(world.owned()["a-1"]) == 4


def test_a_consumer_that_came_into_a_group_that_was_empty_for_long_is_found() -> None:
    """In `Group._rest`, look at a group without members no more."""
    world = world_with()
    world.pass_time(DAY_MS)
    with Unreadable(world, paths.ids(GROUP)):
        world.add_agent("a")
    world.pass_time(3_700_000)
    world.assert_settled()


@pytest.mark.parametrize("path", [paths.BROKER_TOPICS, paths.topic("t")])
def test_a_change_of_the_topics_is_found(path: str) -> None:
    """In `Coordinator._reconcile`, read no topics; in `TopicListener._listed`, read the new ones only."""
    world = world_with(GroupSettings(), "a")
    world.add_agent("b", {"t": 1, "u": 1})
    world.pass_time(2_000)
    with Unreadable(world, path):
        world.set_topic(*(("u", 2) if path == paths.BROKER_TOPICS else ("t", 6)))
    world.pass_time(RECONCILED_MS)
    assert sum(map(len, world.owned().values())) == 6


def test_a_group_that_was_created_is_found() -> None:
    """In `Coordinator._reconcile`, do not list the groups."""
    world = world_with(GroupSettings(), "a")
    with Unreadable(world, paths.GROUPS):
        world.zk.perform(Multi((Create(paths.group("h")),)))
    world.pass_time(RECONCILED_MS)
    assert "h" in world.leader().machine.groups


def test_a_standby_finds_that_nobody_leads() -> None:
    """In `CoordinatorElector._coordinator_read`, wait for the watch alone."""
    world = world_with(GroupSettings(), "a")
    world.add_coordinator()
    world.pass_time(1_000)
    with Unreadable(world, paths.COORDINATOR):
        world.kill_coordinator(world.leader())
    world.pass_time(61_000)
    assert world.leader() is world.coordinators[1]


def test_a_root_that_is_gone_for_long_is_not_listed_more_and_more() -> None:
    """In `TopicListener.read_again` and `Coordinator._reconcile`, list also while a listing is repeated."""
    world = world_with(GroupSettings(), "a")
    world.zk.denied |= {("", paths.GROUPS, Right.READ), ("", paths.BROKER_TOPICS, Right.READ)}
    world.pass_time(DAY_MS // 8)
    waiting = [name for _owner, name in world.leader().machine.scheduler.due if isinstance(name, tuple)]
    assert [name[0] for name in waiting] == ["refused", "refused"]
