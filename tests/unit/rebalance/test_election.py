"""How a coordinator comes to lead and ceases to: what it writes, when it looks again, and what it says."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import EPOCH_OFFSET_MS, World
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.rebalance.election import LOOK_INTERVAL_US, ElectionState


def leaders(world: World) -> list[int]:
    """Return the numbers of the coordinators that lead."""
    leading = ElectionState.LEADING
    return [
        n for n, one in enumerate(world.coordinators) if one.alive and one.machine.coordinator_elector.state is leading
    ]


def test_a_leader_says_who_and_where_it_is_and_since_when_under_a_new_epoch() -> None:
    world = World(now_us=5_000_000)
    world.add_coordinator()
    world.run()
    address = cluster_nodes.decode_coordinator(world.zk.nodes[paths.COORDINATOR].content)
    assert address == CoordinatorAddress(1, "host", 1, None, str(EPOCH_OFFSET_MS + 5_000))
    assert world.zk.nodes[paths.COORDINATOR].ephemeral_owner == world.leader().session.session_id
    assert world.zk.nodes[paths.COORDINATOR_EPOCH].content == b"1"
    assert events(world, "leader_elected") == [{"epoch": 1, "brokerid": 1}]


def test_it_makes_the_nodes_that_are_missing_and_leaves_those_that_are_there() -> None:
    world = World()
    world.zk.perform(Multi((Create(paths.CONSUMERS, b"kept"), Create("/brokers"))))
    world.add_coordinator()
    world.add_coordinator()
    world.run()
    assert world.zk.nodes[paths.CONSUMERS].content == b"kept"
    assert {paths.GROUPS, paths.BROKER_TOPICS} <= world.zk.nodes.keys()
    assert leaders(world) == [0]
    assert not world.warnings


def test_a_standby_looks_by_itself_because_it_may_get_no_watch_events() -> None:
    """In `CoordinatorElector._coordinator_read`, set no timer."""
    world = World()
    leader, standby = world.add_coordinator(), world.add_coordinator()
    world.run()
    world.zk.forget_watches(standby.session)
    world.kill_coordinator(leader)
    world.pass_time(LOOK_INTERVAL_US // 1_000 - 1)
    assert leaders(world) == []
    world.pass_time(1)
    assert leaders(world) == [1]


def test_an_unreadable_epoch_is_replaced_by_a_higher_one_and_the_log_says_so_once() -> None:
    world = World()
    world.zk.perform(Multi((Create(paths.CONSUMERS), Create(paths.COORDINATOR_EPOCH, b"x"))))
    written = world.zk.nodes[paths.COORDINATOR_EPOCH].modified_zxid
    world.add_coordinator()
    world.pass_time(10_000)
    (warning,) = (text for text in world.warnings if "counting" in text)
    assert warning.startswith(f"{paths.COORDINATOR_EPOCH}: coordinator_epoch")
    assert warning.endswith(f"; counting on from {written}")
    assert leaders(world) == [0]
    assert world.leader().machine.coordinator_elector.epoch == written + 1
    assert world.zk.nodes[paths.COORDINATOR_EPOCH].content == b"%d" % (written + 1)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_of_several_candidates_one_leads_and_the_others_stand_by(count: int) -> None:
    world = World()
    for _ in range(count):
        world.add_coordinator()
    for process in world.coordinators * 50:  # in turns, so that all of them run
        world.move(process)
    world.run()
    assert len(leaders(world)) == 1
    states = [process.machine.coordinator_elector.state for process in world.coordinators]
    assert states.count(ElectionState.STANDBY) == count - 1
    assert world.zk.nodes[paths.COORDINATOR_EPOCH].content == b"1"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("expire", "the ZooKeeper session is over"),
        ("delete", "its node was deleted"),
        ("replace", "its node was deleted"),
        ("another election", "its node was deleted"),
        ("another leader", "another coordinator leads"),
    ],
)
def test_a_leader_that_ceases_says_why_and_leads_again_if_nobody_else_does(what: str, reason: str) -> None:
    world = world_with()
    process = world.leader()
    zk, session = world.zk, process.session
    if what == "expire":
        zk.expire(session)
        world.deliver(process)
        world.deliver(process)
        world.restart_session(process)
    elif what == "delete":
        zk.perform(Multi((Delete(paths.COORDINATOR),)))
    elif what == "replace":
        zk.perform(Multi((Delete(paths.COORDINATOR), Create(paths.COORDINATOR, b"x"))))
    elif what == "another election":
        zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, b"7"),)))
        zk.disconnect(session)
        zk.reconnect(session)
    else:
        other = zk.open()
        zk.perform(
            Multi((Delete(paths.COORDINATOR), Create(paths.COORDINATOR, b"x", ephemeral=True))), other.session_id
        )
    world.run()
    assert [one["reason"] for one in events(world, "leader_resigned")] == [reason]
    assert leaders(world) == ([] if what == "another leader" else [0])


def test_a_broken_connection_ends_no_leadership() -> None:
    world = world_with()
    process = world.leader()
    world.zk.disconnect(process.session)
    world.run()
    world.zk.reconnect(process.session)
    world.run()
    assert leaders(world) == [0]
    assert not events(world, "leader_resigned")
    assert len(events(world, "leader_elected")) == 1


def test_a_node_of_a_later_election_is_not_taken_for_an_own_former_one() -> None:
    """In `CoordinatorElector._removal`, check no epoch: it deletes what it has not read, the next leader's node."""
    world = world_with()
    first, second = world.leader(), world.add_coordinator()
    world.run()
    world.zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, b"7"),)))
    world.zk.disconnect(first.session)
    world.zk.reconnect(first.session)
    removal = Delete(paths.COORDINATOR)
    while not any(isinstance(call, Multi) and removal in call.operations for _id, call in first.session.sent):
        assert world.move(first)
    world.zk.perform(Multi((removal,)))  # an operator
    while world.move(second):
        pass
    assert 1 in leaders(world)
    world.run()
    assert leaders(world) == [1]
    assert world.zk.nodes[paths.COORDINATOR].ephemeral_owner == second.session.session_id
    assert len(events(world, "leader_elected")) == 2
