"""ZooKeeper refuses what belongs to one consumer or one topic: the others get what is free."""

from __future__ import annotations

import pytest

from tests.support.groups import events, owner_of, read_paths, world_of_two_topics, world_with
from tests.support.world import GROUP, Agent, World
from tests.support.zk_model import Right, Session
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance.left_out import MAX_TRIED
from zkrebalancer.rebalance.states import REST

MODES = pytest.mark.parametrize("mode", [EAGER, INCREMENTAL])
SETTLED_MS = 20_000
LATER_MS = 40_000  # less than the interval of reconciliations


def a_group(mode: str) -> tuple[World, Agent]:
    world = world_with(GroupSettings(mode=mode), partitions=6)
    agents = [world.add_agent(client) for client in "abc"]
    world.pass_time(5_000)
    assert {len(owned) for owned in world.owned().values()} == {2}
    return world, agents[0]


def owned_counts(world: World) -> dict[str, int]:
    return {consumer: len(owned) for consumer, owned in world.owned().items()}


def sent(world: World) -> int:
    return len(events(world, "command_sent"))


@MODES
def test_a_consumer_whose_record_is_refused_is_left_out_and_the_others_are_served(mode: str) -> None:
    world, refused = a_group(mode)
    denied = "", paths.given(GROUP, refused.name or ""), Right.WRITE
    world.zk.denied.add(denied)
    world.set_topic("t", 9)
    world.pass_time(SETTLED_MS)
    assert sum(owned_counts(world).values()) == 9

    world.zk.denied.remove(denied)
    world.pass_time(LATER_MS)
    assert set(owned_counts(world).values()) == {3}
    assert world.leader().machine.groups[GROUP].state in REST


def test_an_eager_group_does_not_stop_for_each_try_of_a_record_that_is_refused() -> None:
    world, refused = a_group(EAGER)
    world.zk.denied.add(("", paths.given(GROUP, refused.name or ""), Right.WRITE))
    world.set_topic("t", 9)
    world.pass_time(SETTLED_MS)
    before = sent(world)
    world.pass_time(LATER_MS)
    assert sent(world) == before


@MODES
@pytest.mark.parametrize("path_of", [paths.offsets, paths.incarnations])
def test_a_topic_whose_mark_is_refused_is_not_started_until_it_can_be_stored(mode: str, path_of: object) -> None:
    assert callable(path_of)
    world, _agent = a_group(mode)
    denied = "", path_of(GROUP), Right.CREATE
    world.zk.denied.add(denied)
    world.set_topic("u", 3)
    world.add_agent("d", {"t": 1, "u": 1})
    world.pass_time(SETTLED_MS)
    assert sum(owned_counts(world).values()) == 6
    before = sent(world)
    world.pass_time(LATER_MS)
    assert sent(world) == before

    world.zk.denied.remove(denied)
    world.pass_time(LATER_MS)
    assert sum(owned_counts(world).values()) == 9
    assert sent(world) - before <= 2  # the starts of the topic, and no stop before them
    assert world.leader().machine.groups[GROUP].state in REST


@MODES
def test_no_plan_waits_for_a_mark_that_is_refused_and_no_trigger_stops_the_group(mode: str) -> None:
    """In `Plan.look_at`, wait for its topic; in `GroupView.become`, forget it; in `LeftOut.adopt`, set no timer.

    In `Planning._shares`, or in `admissible`, do not look at what is withheld: each trigger makes a plan. In
    `LeftOut._try_topics`, start more after each try.
    """
    world, _agent = a_group(mode)
    world.zk.denied.add(("", paths.incarnations(GROUP), Right.CREATE))
    world.set_topic("u", 3)
    world.add_agent("d", {"t": 1, "u": 1})
    world.pass_time(SETTLED_MS)
    assert world.leader().machine.groups[GROUP].state in REST
    before = sent(world), len(events(world, "rebalance_planned"))
    leader = world.leader().session
    world.zk.disconnect(leader)
    world.zk.reconnect(leader)
    world.pass_time(SETTLED_MS)
    world.configure(settings.encode(GroupSettings(mode=mode)))  # an operator asks for a rebalance
    world.pass_time(LATER_MS)
    assert (sent(world), len(events(world, "rebalance_planned"))) == before
    assert "retry" not in [event["trigger"] for event in events(world, "rebalance_requested")]
    assert world.leader().machine.groups[GROUP].state in REST

    world.zk.denied.clear()
    world.pass_time(LATER_MS)
    assert sum(owned_counts(world).values()) == 9
    assert sent(world) - before[0] == 1


@MODES
@pytest.mark.parametrize("reads", ["t", "u"])
def test_no_group_stops_what_it_could_not_start_again(mode: str, reads: str) -> None:
    """In `Planning._is_eager`, do not look at barred topics; in `GroupView.stands_still`, neither."""
    world = world_of_two_topics(GroupSettings(), "a", "b")
    for path in (paths.offsets(GROUP, "u"), paths.incarnations(GROUP, "u")):
        world.zk.perform(Multi((Delete(path),)))
    world.zk.denied.add(("", paths.offsets(GROUP), Right.CREATE))
    leader = world.leader().session
    world.zk.disconnect(leader)
    world.zk.reconnect(leader)
    world.add_agent("c", {"u": 1})
    world.pass_time(SETTLED_MS)
    assert world.leader().machine.groups[GROUP].view.barred.keys() == {"u"}
    held = {tp: owner for tp in (("u", 0), ("u", 1)) if (owner := owner_of(world, tp))}
    assert held
    world.configure(settings.encode(GroupSettings(mode=mode)))
    world.add_agent("d", {reads: 1})
    world.pass_time(SETTLED_MS)
    assert held.items() <= {tp: owner_of(world, tp) for tp in held}.items()
    assert world.leader().machine.groups[GROUP].state in REST

    world.zk.denied.clear()
    world.pass_time(LATER_MS)
    assert all(owner_of(world, tp) for tp in (("t", 0), ("t", 1), ("u", 0), ("u", 1)))


@MODES
@pytest.mark.parametrize("right", [Right.CREATE, Right.READ])
def test_no_plan_follows_another_because_what_waits_for_a_member_may_not_be_started(mode: str, right: Right) -> None:
    """In `Planning.admissible`, give back what is withheld; in `is_withheld`, do not look at hidden topics."""
    world = world_of_two_topics(GroupSettings(mode=mode), "a")
    member = world.add_agent("s", {"t": 1, "u": 1}, instance_id="pod-1", static_grace_ms=60_000)
    world.pass_time(SETTLED_MS)
    had = set(world.owned()["s-1"])
    assert any(topic == "u" for topic, _number in had)
    if right is Right.CREATE:
        for path in (paths.offsets(GROUP, "u"), paths.incarnations(GROUP, "u")):
            world.zk.perform(Multi((Delete(path),)))
        world.zk.denied.add(("", paths.offsets(GROUP), right))
    else:
        world.zk.denied.add(("", paths.incarnations(GROUP, "u"), right))
    leader = world.leader().session
    world.zk.disconnect(leader)
    world.zk.reconnect(leader)
    world.kill_agent(member)
    world.pass_time(5_000)
    planned = len(events(world, "rebalance_planned"))
    world.add_agent("s2", {"t": 1, "u": 1}, instance_id="pod-1", static_grace_ms=60_000)
    world.pass_time(SETTLED_MS)
    assert len(events(world, "rebalance_planned")) - planned <= 3
    assert world.leader().machine.groups[GROUP].state in REST

    world.zk.denied.clear()
    world.pass_time(LATER_MS)
    assert len(world.owned()["a-1"]) == len(world.owned()["s2-1"]) == 2


def test_a_group_is_eager_again_once_its_barred_topic_is_deleted() -> None:
    """In `Planning.keep`, leave `is_unbarred` as it is."""
    world, _agent = a_group(EAGER)
    world.zk.denied.add(("", paths.offsets(GROUP), Right.CREATE))
    world.set_topic("u", 3)
    world.add_agent("d", {"t": 1, "u": 1})
    world.pass_time(SETTLED_MS)
    world.delete_topic("u")
    world.pass_time(LATER_MS)
    view = world.leader().machine.groups[GROUP].view
    assert not view.barred
    assert not view.is_unbarred


@MODES
def test_a_static_member_whose_record_is_refused_is_left_out_and_the_others_are_served(mode: str) -> None:
    world, _agent = a_group(mode)
    denied = "", paths.static(GROUP), Right.CREATE
    world.zk.denied.add(denied)
    world.add_agent("s", instance_id="i")
    world.set_topic("t", 9)
    world.pass_time(SETTLED_MS)
    before, read = len(events(world, "rebalance_planned")), read_paths(world)
    world.pass_time(LATER_MS)
    assert paths.static(GROUP) not in read  # the group is not read again: the leader knows that there is no record
    assert len(events(world, "rebalance_planned")) - before < 10  # the pauses between the tries grow

    world.zk.denied.remove(denied)
    world.pass_time(LATER_MS)
    assert sorted(owned_counts(world).values()) == [2, 2, 2, 3]


def test_many_topics_that_lack_one_right_are_not_tried_one_by_one() -> None:
    world, _agent = a_group(INCREMENTAL)
    denied = "", paths.offsets(GROUP), Right.CREATE
    world.zk.denied.add(denied)
    names = [f"u{number}" for number in range(3 * MAX_TRIED)]
    for name in names:
        world.set_topic(name, 1)
    tried: list[bool] = []
    perform_next = world.zk.perform_next

    def count(session: Session) -> None:
        tried.append(isinstance(session.sent[0][1], Multi) and session is world.leader().session)
        perform_next(session)

    world.zk.perform_next = count  # type: ignore[method-assign]
    world.add_agent("d", dict.fromkeys(names, 1))
    world.pass_time(50)
    assert sum(tried) <= 5
    world.pass_time(LATER_MS)
    assert sum(tried) <= 5 + 10 * MAX_TRIED

    world.zk.denied.remove(denied)
    world.pass_time(LATER_MS)
    assert sum(owned_counts(world).values()) == 6 + len(names)
