"""A plan that would move more than an operator allows waits for a yes; partitions without an owner do not wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.groups import events, run_until_computing, world_with
from tests.support.world import GROUP, World
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.protocol import obstacles, paths, settings
from zkrebalancer.protocol.obstacles import PublishedObstacle
from zkrebalancer.protocol.settings import EAGER, GroupSettings
from zkrebalancer.rebalance.states import GroupState

NONE = GroupSettings(approve_moves_above=0)


def counts(world: World) -> dict[str, int]:
    return {name: len(owned) for name, owned in world.owned().items()}


def state(world: World) -> GroupState:
    return world.leader().machine.groups[GROUP].state


def published(world: World) -> list[PublishedObstacle]:
    node = world.zk.nodes.get(paths.COORDINATOR_OBSTACLES)
    return [] if node is None else obstacles.decode(node.content)[1]


def approve(world: World, group: GroupSettings, moves: int) -> None:
    world.configure(settings.encode(replace(group, approved_moves=moves, approved_generation=world.generation())))
    world.pass_time(2_000)


@pytest.mark.parametrize("mode", ["incremental", EAGER])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_plan_waits_until_it_is_approved(strategy: str, mode: str) -> None:
    group = replace(NONE, strategy=strategy, mode=mode)
    world = world_with(group, "a")
    before = world.owned()["a-1"]
    world.add_agent("b")
    world.pass_time(3_000)

    assert (world.owned()["a-1"], counts(world)["b-1"], state(world)) == (before, 0, GroupState.UNAPPROVED)
    (waiting,) = published(world)
    assert (waiting.kind, waiting.group, waiting.moves) == (obstacles.UNAPPROVED, GROUP, 2)

    approve(world, group, 1)
    assert (counts(world)["b-1"], state(world)) == (0, GroupState.UNAPPROVED)
    approve(world, group, 2)
    world.pass_time(2_000)
    assert (counts(world), state(world)) == ({"a-1": 2, "b-1": 2}, GroupState.IDLE)
    assert not published(world)
    world.assert_settled()


def test_commands_that_are_refused_are_not_sent_again_under_settings_that_forbid_them() -> None:
    """In `_settings_read`, count a transaction in flight as sent: it is refused, and its stop goes out unapproved."""
    world = world_with(GroupSettings(), "a")
    before, process = world.owned()["a-1"], world.leader()
    world.act(world.add_agent("b"))
    run_until_computing(world, process)
    told = len(events(world, "command_sent"))
    world.kill_agent(world.agents["b"])  # so that nothing is left to be sent, once a stop was
    world.configure(settings.encode(NONE))
    world.compute(process)
    world.pass_time(3_000)

    assert events(world, "command_sent")[told:] == []
    assert world.owned()["a-1"] == before


def test_as_many_moves_as_allowed_do_not_wait() -> None:
    world = world_with(GroupSettings(approve_moves_above=2), "a", "b")

    assert counts(world) == {"a-1": 2, "b-1": 2}


def test_a_member_that_dies_leaves_nothing_without_an_owner() -> None:
    world = world_with(GroupSettings(), "a", "b")
    world.configure(settings.encode(NONE))
    world.add_agent("c")
    world.pass_time(3_000)
    held = world.owned()["a-1"]

    world.kill_agent(world.agents["b"])
    world.pass_time(20_000)

    assert sum(counts(world).values()) == 4
    assert held.keys() <= world.owned()["a-1"].keys(), "what was owned has not moved"
    world.set_topic("t", 6)
    world.pass_time(2_000)
    assert sum(counts(world).values()) == 6


def test_an_approval_is_used_up_by_the_next_plan() -> None:
    world = world_with(NONE, "a")
    world.add_agent("b")
    world.pass_time(2_000)
    approve(world, NONE, 2)
    assert counts(world) == {"a-1": 2, "b-1": 2}

    world.add_agent("c")
    world.pass_time(2_000)

    assert (counts(world)["c-1"], state(world)) == (0, GroupState.UNAPPROVED)


def test_a_group_that_changes_while_it_waits_needs_a_new_approval_if_more_would_move() -> None:
    world = world_with(NONE, "a", partitions=6)
    world.add_agent("b")
    world.pass_time(2_000)
    assert published(world)[0].moves == 3
    world.add_agent("c")
    world.pass_time(3_000)
    assert published(world)[0].moves == 4

    approve(world, NONE, 3)
    assert counts(world) == {"a-1": 6, "b-1": 0, "c-1": 0}
    approve(world, NONE, 4)
    assert counts(world) == {"a-1": 2, "b-1": 2, "c-1": 2}


def test_a_plan_that_waits_is_logged_once_and_waits_through_failovers_and_reconciliations() -> None:
    world = world_with(NONE, "a")
    world.add_agent("b")
    world.pass_time(700_000)
    lines = [text for text in world.warnings if "groups resume" in text]
    assert len(lines) == 1
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(30_000)
    assert (counts(world), state(world)) == ({"a-1": 4, "b-1": 0}, GroupState.UNAPPROVED)
    assert [one.moves for one in published(world)] == [2]
    approve(world, NONE, 2)
    assert counts(world) == {"a-1": 2, "b-1": 2}


def test_the_limit_may_be_lifted_instead() -> None:
    world = world_with(NONE, "a")
    world.add_agent("b")
    world.pass_time(2_000)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 2, "b-1": 2}


def test_a_static_member_that_returns_gets_its_partitions_while_a_plan_waits() -> None:
    world = world_with(GroupSettings(), "a")
    world.add_agent("s", instance_id="pod-1")
    world.pass_time(2_000)
    world.configure(settings.encode(NONE))
    world.add_agent("b")
    world.pass_time(2_000)
    assert state(world) is GroupState.UNAPPROVED
    had = world.owned()["s-1"]

    world.add_agent("t", instance_id="pod-1")  # the former one is still there, and is fenced
    world.pass_time(20_000)

    assert world.owned()["t-1"].keys() == had.keys()
    assert sum(counts(world).values()) == 4


def test_a_drain_waits_for_approval_as_well() -> None:
    world = world_with(NONE, "a")
    world.add_agent("b")
    world.pass_time(2_000)
    world.configure(settings.encode(replace(NONE, drained_members=("a-1",))))
    world.pass_time(2_000)

    assert counts(world) == {"a-1": 4, "b-1": 0}
    assert not [one for one in events(world, "rebalance_planned")[1:] if one["moved_count"]]
