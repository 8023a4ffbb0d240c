"""Replies that arrive together are one event: it does what they do one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.groups import world_with
from tests.support.shard_world import ShardProcess, ShardWorld
from tests.support.world import GROUP, CoordinatorProcess, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Get, Multi, Refusal, Refused, Replied, RepliedAll, Watched
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Event
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.states import GroupState

TOGETHER = 20


def take(process: CoordinatorProcess | ShardProcess, first: Event) -> Event:
    """Return an event, with the replies that have arrived after it."""
    inbox, replies = process.session.inbox, [first]
    while isinstance(first, Replied) and inbox and isinstance(inbox[0][0], Replied) and len(replies) < TOGETHER:
        replies.append(process.session.take())
    return RepliedAll(tuple(one for one in replies if isinstance(one, Replied))) if len(replies) > 1 else first


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver replies together."""

    def deliver(world: World, process: CoordinatorProcess) -> None:
        world.feed(process, take(process, process.session.take()))

    monkeypatch.setattr(World, "deliver", deliver)


@dataclass(slots=True)
class TogetherWorld(ShardWorld):
    def feed(self, process: ShardProcess, event: Event) -> None:
        ShardWorld.feed(self, process, take(process, event))


@pytest.mark.usefixtures("together")
def test_a_group_is_served_as_with_one_reply_after_the_other() -> None:
    """In `Coordinator.step`, handle the first one only."""
    world = world_with(GroupSettings(), "a", "b", "c", partitions=12)
    world.pass_time(5_000)
    world.add_coordinator()
    world.kill_coordinator(world.leader())
    world.pass_time(5_000)
    world.assert_settled()
    assert {len(owned) for owned in world.owned().values()} == {4}


def test_each_shard_gets_its_own_replies() -> None:
    """In `AllShards._all_replied`, give all of them to the first machine."""
    world = TogetherWorld()
    world.prepare(4, groups=40)
    world.add()
    world.add()
    world.pass_time(5_000)
    world.assert_shared(4, 2, 2)
    states = [
        group.state for one in world.processes for machine in one.machine.machines for group in machine.groups.values()
    ]
    assert states == [GroupState.IDLE] * 40


@pytest.mark.usefixtures("together")
def test_an_exception_of_one_group_leaves_the_replies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Coordinator.step`, run all replies as one step of the first one's group."""
    loaded = Group._loaded

    def broken(group: Group, reader: object) -> None:
        if group.name == "broken":
            raise LookupError("a bug")
        loaded(group, reader)  # type: ignore[arg-type]

    world = world_with()
    world.has_bugs = True
    monkeypatch.setattr(Group, "_loaded", broken)
    for name in ("broken", "other"):
        world.zk.perform(Multi((Create(paths.group(name)),)))
    world.pass_time(1_000)
    machine = world.leader().machine
    assert machine.groups.keys() == {GROUP, "other"}
    assert {group.state for group in machine.groups.values()} == {GroupState.IDLE}


def test_replies_after_the_end_of_a_leadership_are_dropped() -> None:
    """In `Coordinator.step`, remember what was awaited before."""
    world = world_with()
    world.pass_time(1_000)
    process = world.leader()
    process.machine.list_groups()
    awaited = [*process.machine.scheduler.awaited]
    process.machine.coordinator_elector.step_down("a test")
    lost = tuple(Replied(call_id, Refused(Refusal.NO_NODE)) for call_id in awaited)
    world.feed(process, RepliedAll(lost))
    assert process.machine.leadership is None


def test_a_reply_that_comes_with_a_new_number_of_shards_concerns_no_machine_any_more() -> None:
    """In `AllShards._all_replied`, give it to the machine of the former number: its deadline would be due for ever."""
    world = TogetherWorld()
    world.prepare(8)
    process = world.add(1)
    world.pass_time(5_000)
    old = process.machine.machines[7]
    world.set_shards(3)
    while not any(call == Get(paths.SHARDS, watch=True) for _call_id, call in process.session.sent):
        assert world._move(process)
    world.feed(process, Watched(old.shard.coordinator, children=False))  # it looks for its leader, too
    assert len(process.session.sent) > 1
    world.pass_time(10_000)
    assert sorted(process.led()) == [0, 1, 2]
