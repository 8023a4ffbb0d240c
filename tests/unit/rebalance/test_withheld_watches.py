"""ZooKeeper reports no changes of a node to whom may not read it then; they are found later all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.groups import events, read_paths, world_with
from tests.support.region_world import SETTINGS
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi, SetContent
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.region import documents

RECONCILED_MS = 301_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


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
    """In `Reconciling.expect`, do not wake."""
    world = world_with(GroupSettings(), "a")
    with Unreadable(world, paths.ids(GROUP)):
        world.add_agent("b")
        world.pass_time(1_000)
    world.pass_time(1_000)
    assert world.owned()["b-1"] == {}
    world.pass_time(RECONCILED_MS)
    world.assert_settled()


def test_a_consumer_that_left_is_found() -> None:
    """In `Reconciling.expect`, do not wake."""
    world = world_with(GroupSettings(), "a", "b")
    with Unreadable(world, paths.ids(GROUP)), Unreadable(world, paths.owners(GROUP, "b-1")):
        world.kill_agent(world.agents["b"])
    world.pass_time(RECONCILED_MS)
    world.assert_settled()
    assert len(world.owned()["a-1"]) == 4


def test_a_consumer_that_came_into_a_group_that_was_empty_for_long_is_found() -> None:
    """In `Reconciling._look`, look no more."""
    world = world_with()
    world.pass_time(DAY_MS)
    with Unreadable(world, paths.ids(GROUP)):
        world.add_agent("a")
    world.pass_time(3_700_000)
    world.assert_settled()


def test_settings_of_a_group_that_cannot_be_planned_are_found() -> None:
    """In `Reconciling.read_watched`, read no settings: it kept those that fail, whatever was written since."""
    world = world_with(GroupSettings(), "a")
    world.configure(settings.encode(GroupSettings(strategy="nonsense")))
    world.add_agent("b")
    world.pass_time(5_000)
    with Unreadable(world, paths.group(GROUP)):
        world.configure(settings.encode(GroupSettings()))
    world.pass_time(RECONCILED_MS)
    world.assert_settled()
    assert len(world.owned()["b-1"]) == 2


def test_a_consumer_that_came_into_a_group_whose_plan_cannot_end_is_found() -> None:
    """In `Membership.read_again`, do not list; in `Group.load`, read all, and keep no limit of who hangs."""
    world = world_with(GroupSettings(rebalance_timeout_ms=400_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(1_000)
    group = world.leader().machine.groups[GROUP]
    with Unreadable(world, paths.ids(GROUP)):
        world.add_agent("c")
    world.pass_time(RECONCILED_MS)
    assert {"a-1", "b-1", "c-1"} == group.view.members.keys()
    assert group.state is GroupState.MOVING
    world.pass_time(101_000)
    assert "a-1" not in group.view.members, "its stop was late after 400 s"


def stuck_group(known: GroupSettings) -> World:
    """Return a group whose approved move waits for the member a."""
    world = world_with(known, "a", "b", partitions=12)
    world.pass_time(10_000)
    world.add_agent("c")
    world.pass_time(3_000)
    waiting = world.leader().machine.groups[GROUP].planning.waiting
    assert waiting is not None
    world.agents["a"].silent = True
    approved = replace(known, approved_moves=waiting.moves, approved_generation=world.generation())
    world.configure(settings.encode(approved))
    world.pass_time(2_000)
    return world


def test_a_move_that_was_approved_goes_on() -> None:
    """In `Group.load`, read all: the rest of the move would need another approval.

    In `Membership._read_some`, leave out a reading: what the member writes would not be seen.
    """
    world = stuck_group(GroupSettings(approve_moves_above=0, rebalance_timeout_ms=HOUR_MS))
    read = read_paths(world)
    world.pass_time(2 * RECONCILED_MS)
    assert {paths.owners(GROUP, "a-1"), paths.ids(GROUP, "a-1")} <= set(read)
    triggers = [event["trigger"] for event in events(world, "rebalance_requested")]
    assert "reconciliation" not in triggers
    planned = len(events(world, "rebalance_planned"))
    world.agents["a"].silent = False
    world.pass_time(5_000)
    assert len(world.owned()["c-1"]) == 4
    assert len(events(world, "rebalance_planned")) == planned


def test_a_member_that_cannot_be_read_is_evicted_in_time() -> None:
    """In `Group.load`, read all: its limit would begin anew with each reading."""
    world = world_with(GroupSettings(rebalance_timeout_ms=400_000), "a", "b", partitions=12)
    world.pass_time(1_000)
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), b"nonsense", -1),)))
    for agent in ("a", "b"):
        world.agents[agent].silent = True
    world.add_agent("c")
    world.pass_time(390_000)
    assert "a-1" in world.leader().machine.groups[GROUP].view.members
    world.pass_time(20_000)
    assert "a-1" not in world.leader().machine.groups[GROUP].view.members


def register_in_region(world: World, name: str) -> None:
    create = Create(paths.region(GROUP, "members", name), ephemeral=True)
    world.zk.perform(Multi((create,)), world.zk.open().session_id)


@pytest.mark.parametrize("before_ms", [0, 2 * RECONCILED_MS])
def test_a_member_of_a_region_whose_group_has_none_is_found(before_ms: int) -> None:
    """In `Region.begin`, do not read again: in a group without members, only `ids` is listed."""
    world = world_with()
    world.pass_time(before_ms)
    forced = documents.encode_settings(replace(SETTINGS, recovery="forced", every_ms=HOUR_MS))
    children = [Create(paths.region(GROUP, kind)) for kind in paths.REGION_CHILDREN]
    world.zk.perform(Multi((Create(paths.region(GROUP), forced), *children)))
    register_in_region(world, "x")
    world.pass_time(HOUR_MS // 2)
    with Unreadable(world, paths.region(GROUP, "members")):
        register_in_region(world, "y")
    world.pass_time(RECONCILED_MS)
    order = documents.decode_order(world.zk.nodes[paths.region(GROUP, "order")].content)
    assert sorted(order.members) == ["x", "y"]


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
