"""A drained member gives away what others may read, under every strategy, until the drain is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.groups import deliver_until_idle, events, run_until_computing, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment.model import Member
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import EAGER, GroupSettings
from zkrebalancer.rebalance.drain import Drain
from zkrebalancer.rebalance.states import REST

DRAINING_A = GroupSettings(drained_members=("a-1",))
LATER_MS = 40_000  # the pauses between tries are up to 30 s


def configure(world: World, group: GroupSettings) -> None:
    world.configure(settings.encode(group))
    world.pass_time(2_000)


def counts(world: World) -> dict[str, int]:
    return {name: len(owned) for name, owned in world.owned().items()}


@pytest.mark.parametrize("mode", ["incremental", EAGER])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_drained_member_gives_away_what_it_has_and_gets_its_share_back_afterwards(strategy: str, mode: str) -> None:
    before = GroupSettings(strategy=strategy, mode=mode)
    world = world_with(before, "a", "b", "c", partitions=9)

    configure(world, replace(before, drained_members=("a-1",)))
    assert sorted(counts(world).items()) == [("a-1", 0), ("b-1", 4), ("c-1", 5)] or counts(world) == {
        "a-1": 0,
        "b-1": 5,
        "c-1": 4,
    }
    world.set_topic("t", 10)
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 0, "b-1": 5, "c-1": 5}

    configure(world, before)
    assert counts(world)["a-1"] >= 3
    world.assert_settled()


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_only_what_the_drained_member_had_moves_unless_the_strategy_places_all_anew(strategy: str) -> None:
    """Of 12 partitions, the drained member has 4. How to drain a host tells these figures."""
    moved = {"range": 6, "round_robin": 8}.get(strategy, 4)
    group = GroupSettings(strategy=strategy)
    world = world_with(group, "a", "b", "c", partitions=12)
    before = world.owned()

    configure(world, replace(group, drained_members=("a-1",)))

    after = world.owned()
    assert len(before["a-1"]) == 4
    assert events(world, "rebalance_planned")[-1]["moved_count"] == moved
    assert sum(len(before[name].keys() - after[name].keys()) for name in before) == moved


def test_the_last_reader_of_a_topic_keeps_it_until_another_one_joins() -> None:
    world = world_with(GroupSettings(), "a")

    configure(world, DRAINING_A)
    world.set_topic("t", 5)
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 5}

    world.add_agent("b")
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 0, "b-1": 5}


@pytest.mark.parametrize("mode", ["incremental", EAGER])
def test_a_topic_keeps_its_last_reader_that_can_be_given_something(mode: str) -> None:
    """In `Planning._look_at`, let `b`, which keeps its share, count as a reader: the topic would lose its owner."""
    group = GroupSettings(mode=mode)
    world = world_with(group, "a", "b")
    world.zk.denied.add(("", paths.channel(GROUP, "b-1"), Right.CREATE))
    world.set_topic("t", 6)
    world.pass_time(5_000)
    assert counts(world) == {"a-1": 4, "b-1": 2}

    configure(world, replace(group, drained_members=("a-1",)))
    world.pass_time(LATER_MS)
    assert counts(world) == {"a-1": 4, "b-1": 2}

    world.zk.denied.clear()
    world.pass_time(LATER_MS)
    assert counts(world) == {"a-1": 0, "b-1": 6}


def test_a_drained_member_reads_a_topic_again_when_its_other_readers_are_gone() -> None:
    world = world_with(DRAINING_A, "a", "b")
    assert counts(world) == {"a-1": 0, "b-1": 4}

    world.kill_agent(world.agents["b"])
    world.pass_time(20_000)

    assert counts(world) == {"a-1": 4}
    world.assert_settled()


def test_topics_are_given_away_one_by_one() -> None:
    world = World()
    world.set_topic("t", 2)
    world.set_topic("u", 2)
    world.create_group(settings.encode(DRAINING_A))
    world.add_coordinator()
    world.add_agent("a", {"t": 1, "u": 1})
    world.add_agent("b", {"t": 1})
    world.pass_time(2_000)

    assert {topic for topic, _number in world.owned()["a-1"]} == {"u"}
    assert {topic for topic, _number in world.owned()["b-1"]} == {"t"}


def test_members_of_a_drained_host_get_nothing_also_when_they_come_back() -> None:
    world = world_with(GroupSettings(drained_hosts=("h1",)))
    world.add_agent("a", host="h1")
    world.add_agent("b", host="h2")
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 0, "b-1": 4}

    world.kill_agent(world.agents["a"])
    world.add_agent("c", host="h1")
    world.pass_time(20_000)
    assert counts(world) == {"b-1": 4, "c-1": 0}


def test_if_every_member_is_drained_they_share_as_usual() -> None:
    world = world_with(GroupSettings(drained_hosts=("h",)), "a", "b")

    assert counts(world) == {"a-1": 2, "b-1": 2}


def test_a_drained_instance_stays_drained_through_a_restart_and_nothing_waits_for_it() -> None:
    world = world_with(GroupSettings(drained_members=("pod-1",), static_grace_ms=60_000))
    world.add_agent("a", instance_id="pod-1")
    world.pass_time(2_000)
    assert counts(world) == {"a-1": 4}  # the only one

    world.kill_agent(world.agents["a"])
    world.add_agent("b")
    world.pass_time(30_000)
    assert counts(world) == {"b-1": 4}

    world.add_agent("c", instance_id="pod-1")
    world.pass_time(2_000)
    assert counts(world) == {"b-1": 4, "c-1": 0}


def test_a_frozen_group_moves_nothing_for_a_drain_and_gives_the_drained_member_nothing_new() -> None:
    world = world_with(GroupSettings(), "a", "b")

    configure(world, replace(DRAINING_A, frozen=True))
    world.set_topic("t", 8)
    world.pass_time(2_000)

    assert counts(world) == {"a-1": 2, "b-1": 6}


def test_the_next_leader_goes_on_with_a_drain_in_every_step() -> None:
    """The leader dies after each of its writes."""
    for writes in range(1, 8):
        world = world_with(GroupSettings(), "a", "b")
        world.configure(settings.encode(DRAINING_A))
        leader = world.leader()
        for _ in range(writes):
            world.move(leader)
        world.kill_coordinator(leader)
        world.add_coordinator()
        world.pass_time(20_000)
        assert counts(world) == {"a-1": 0, "b-1": 4}


def test_a_drained_member_that_dies_loses_nothing() -> None:
    world = world_with(GroupSettings(), "a", "b")
    world.configure(settings.encode(DRAINING_A))
    world.kill_agent(world.agents["a"])
    world.pass_time(60_000)

    assert counts(world) == {"b-1": 4}


def test_a_member_whose_registration_cannot_be_read_is_no_reader() -> None:
    drain = Drain()
    about = Registration("static", {"t": 1}, "0", "a", "h", 6_000)
    drain.begin(DRAINING_A)
    assert drain.note("a-1", about, Member({"t": 1}, {}))

    assert not drain.note("b-1", None, Member({"t": 1}, {}))
    assert [dict(member.threads) for _name, member in drain.settled()] == [{"t": 1}]

    assert not drain.note("b-1", about, Member({"t": 1}, {}))
    assert [dict(member.threads) for _name, member in drain.settled()] == [{}]
    assert not list(drain.settled()), "nothing has changed since"


def test_what_was_decided_before_a_drain_is_not_carried_out() -> None:
    """In `Group.computed`, look at no settings: partitions given to the drained member moved away again at once."""
    world = world_with(GroupSettings(), "a")
    told, process = len(events(world, "command_sent")), world.leader()
    world.act(world.add_agent("b"))
    run_until_computing(world, process)
    world.configure(settings.encode(GroupSettings(drained_members=("b-1",))))
    deliver_until_idle(world, process)
    world.compute(process)
    world.pass_time(3_000)
    assert len(events(world, "command_sent")) == told
    assert counts(world) == {"a-1": 4, "b-1": 0}
    assert world.leader().machine.groups[GROUP].state in REST

    configure(world, GroupSettings())
    world.assert_settled()
