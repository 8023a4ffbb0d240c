"""Nodes that other programs have made where the coordinator deletes or creates some: it goes on without them."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Check, Create, Delete, Done, Multi
from zkrebalancer.protocol.ownership import EvictionRecord, encode_eviction
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.problems import MAX_PROBLEMS_LOGGED

RECORD = encode_eviction(EvictionRecord(1, {}, 5, 5))
EVERYTHING = {("t", number): 0 for number in range(4)}


def world_that_waits_for(silent: str) -> World:
    """Return a world in which `a` has to stop, or `b` to start, and does not answer."""
    world = world_with(GroupSettings(), "a")
    newcomer = world.add_agent("b")
    while newcomer.name is None:
        world.act(newcomer)
    world.agents[silent].silent = True
    world.pass_time(1_000)
    assert len(world.zk.children(paths.channel(GROUP, f"{silent}-1"))) == 1
    return world


def make_below(world: World, path: str) -> None:
    """Make a node that nobody of ours makes, and one below it."""
    if path not in world.zk.nodes:
        assert isinstance(world.zk.perform(Multi((Create(path),))), Done)
    assert isinstance(world.zk.perform(Multi((Create(f"{path}/x"),))), Done)


@pytest.mark.parametrize("silent", "ab")
@pytest.mark.parametrize("where", ["command", "channel", "given", "evicted", "all"])
def test_a_member_that_does_not_answer_is_evicted_all_the_same(silent: str, where: str) -> None:
    """In `Departures._note_in_the_way`, note nothing; in `Moving._cancelled`, expect only that the command is gone."""
    world = world_that_waits_for(silent)
    channel = paths.channel(GROUP, f"{silent}-1")
    foreign = {
        "command": f"{channel}/{world.zk.children(channel)[0]}",
        "channel": f"{channel}/foreign",
        "given": paths.given(GROUP, f"{silent}-1"),
        "evicted": paths.evicted(GROUP, f"{silent}-1"),
    }
    for path in foreign.values() if where == "all" else [foreign[where]]:
        if path == foreign["evicted"]:
            assert isinstance(world.zk.perform(Multi((Create(path, RECORD),))), Done)
        else:
            make_below(world, path)
    world.pass_time(400_000)
    world.agents[silent].silent = False
    world.pass_time(10_000)
    owned = world.owned()
    assert f"{silent}-1" not in owned
    assert {partition for of_one in owned.values() for partition in of_one} == EVERYTHING.keys()
    assert len(owned) == 2
    assert sum("evicting" in text for text in world.warnings) == 1


def test_many_commands_one_of_which_cannot_be_deleted() -> None:
    """They need transactions of their own. In `Departures._channel_emptied`, note nothing."""
    world = world_that_waits_for("a")
    channel = paths.channel(GROUP, "a-1")
    make_below(world, f"{channel}/foreign")
    world.leader().machine.scheduler.limit = RequestLimit(20_000)
    for number in range(200):
        world.zk.perform(Multi((Create(f"{channel}/{'x' * 100}{number}"),)))
    world.pass_time(400_000)
    assert "a-1" not in world.owned()
    assert len(world.owned()["b-1"]) == len(EVERYTHING)


@pytest.mark.parametrize("is_deeper", [False, True])
def test_a_coordinators_node_that_came_with_a_copied_tree_stops_no_election(is_deeper: bool) -> None:
    """It belongs to no session. In `CoordinatorElector._coordinator_read`, stand by for it."""
    world = world_with(GroupSettings(), "a")
    content = world.zk.nodes[paths.COORDINATOR].content
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((Create(paths.COORDINATOR, content),)))
    if is_deeper:
        make_below(world, paths.COORDINATOR)
    for _ in range(2):
        world.add_coordinator()
    world.add_agent("b")
    world.pass_time(100_000)
    if is_deeper:
        assert sum(f"refuses {paths.COORDINATOR}: not empty" in text for text in world.warnings) == 2
        world.zk.perform(Multi((Delete(f"{paths.COORDINATOR}/x"),)))
        world.pass_time(60_000)
    world.leader()
    assert set(map(len, world.owned().values())) == {2}


def test_a_leader_that_was_quicker_keeps_its_node() -> None:
    """In `CoordinatorElector._remove_copy`, delete the node whoever leads by then."""
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((Create(paths.COORDINATOR, b"x"),)))
    late, quick = world.add_coordinator(), world.add_coordinator()
    while not any(isinstance(call, Multi) for _id, call in late.session.sent):
        if late.session.sent:
            world.zk.perform_next(late.session)
        else:
            world.deliver(late)
    ((_id, removal),) = late.session.sent
    assert isinstance(removal, Multi)
    assert isinstance(removal.operations[0], Check)
    while quick.machine.leadership is None:
        if quick.session.sent:
            world.zk.perform_next(quick.session)
        else:
            world.deliver(quick)
    world.pass_time(5_000)
    assert world.leader() is quick
    assert int(world.zk.nodes[paths.COORDINATOR_EPOCH].content) == 2


def test_of_many_nodes_that_make_no_sense_only_the_first_are_logged() -> None:
    """In `Group._loaded`, log them all."""
    world = world_with(GroupSettings(), "a")
    world.run()
    for number in range(100):
        assert isinstance(world.zk.perform(Multi((Create(paths.given(GROUP, f"ghost-{number}"), b"x"),))), Done)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)
    assert len([text for text in world.warnings if "ghost-" in text]) == MAX_PROBLEMS_LOGGED
    assert [text for text in world.warnings if f"{100 - MAX_PROBLEMS_LOGGED} more nodes cannot be read" in text]
    world.assert_settled()


@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_topic_made_anew_is_served_soon_although_many_of_its_former_offsets_cannot_be_deleted(
    is_read_again: bool,
) -> None:
    """In `TopicReset._deleted`, lengthen each pause; in `reset`, forget what is in the way."""
    count = 30
    world = world_with(GroupSettings(), "a", partitions=count)
    for number in range(count):
        make_below(world, f"{paths.offsets(GROUP, 't')}/{number}")
    world.set_topic("t", count, "id-1")
    world.delete_topic("t")
    world.pass_time(1_000)
    world.set_topic("t", count, "id-2")
    for _ in range(8):
        world.pass_time(1_000)
        if is_read_again:
            world.zk.disconnect(world.leader().session)
            world.zk.reconnect(world.leader().session)
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == count
