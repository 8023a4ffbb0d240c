"""A group beyond the rules: no change is lost, storms are gathered, modes differ, bad input harms nobody else."""

from __future__ import annotations

import json

import pytest

from tests.support.groups import answer_one, commands, deliver_until_idle, events, run_until_computing, world_with
from tests.support.world import GROUP
from zkrebalancer.protocol import command, paths, settings
from zkrebalancer.protocol.calls import Done, Multi, SetContent
from zkrebalancer.protocol.command import Cause, StopFetcher
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import ShutDown
from zkrebalancer.rebalance.group import MIN_BACKOFF_US
from zkrebalancer.rebalance.states import GroupState


def test_a_change_during_a_rebalance_is_not_lost() -> None:
    """The legacy rule, compare_and_set(False, True): return from `Group.request` whenever the group is rebalanced."""
    world = world_with(GroupSettings(), "a")
    slow = world.agents["a"]
    slow.silent = True
    world.add_agent("b")
    world.pass_time(200)
    assert world.leader().machine.groups_being_rebalanced == {GROUP: True}
    world.set_topic("t", 8)
    slow.silent = False
    world.pass_time(1_000)
    world.assert_settled()


def test_the_first_change_is_answered_at_once_and_a_storm_is_gathered_up_to_the_cap() -> None:
    world = world_with(GroupSettings(rebalance_debounce_ms=50, rebalance_debounce_cap_ms=200), "a", partitions=40)
    planned = len(events(world, "rebalance_planned"))
    world.add_agent("b0")
    world.run()
    assert len(events(world, "rebalance_planned")) == planned + 1
    for number in range(1, 20):
        world.add_agent(f"b{number}")
        world.pass_time(20)
    assert planned + 2 <= len(events(world, "rebalance_planned")) <= planned + 5
    world.pass_time(1_000)
    world.assert_settled()


def test_in_eager_mode_nobody_starts_before_everybody_has_stopped() -> None:
    """Let `Plan.barrier_is_up` return False."""
    world = world_with(GroupSettings(mode="eager"), "a", "b")
    world.agents["a"].silent = True
    world.add_agent("c")
    world.pass_time(1_000)
    (stop,) = commands(world, world.agents["a"])
    assert isinstance(stop, StopFetcher)
    assert stop.partitions is None
    assert world.owned()["b-1"] == {}
    assert not commands(world, world.agents["c"])
    world.agents["a"].silent = False
    world.pass_time(1_000)
    world.assert_settled()


def test_in_eager_mode_a_static_member_that_comes_back_waits_for_the_stops_that_are_under_way() -> None:
    """In `Planning._is_gentle`, do not look at `stops_everything`."""
    world = world_with(GroupSettings(mode="eager", static_grace_ms=10_000), "a")
    world.set_topic("u", 4)
    world.add_agent("s", {"u": 1}, instance_id="pod-1")
    world.pass_time(1_000)
    had = world.owned()["s-1"]
    slow = world.agents["a"]
    slow.silent = True
    world.kill_agent(world.agents["s"])
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")  # until it is stopped everywhere, its members shall have nothing
    world.pass_time(500)
    (stop,) = commands(world, slow)
    back = world.add_agent("s2", {"u": 1}, instance_id="pod-1")
    world.pass_time(500)
    assert commands(world, slow) == [stop]
    assert not commands(world, back)
    assert world.owned()["s2-1"] == {}
    slow.silent = False
    world.pass_time(1_000)
    assert world.owned()["s2-1"] == had
    world.assert_settled()


def test_in_eager_mode_the_stop_of_one_who_is_fenced_stops_nobody_else() -> None:
    """In `Member.stops_everything`, count the stop of a consumer that is fenced: static members' returns would too."""
    world = world_with(GroupSettings(mode="eager", static_grace_ms=10_000), "a")
    former, back = (world.add_agent(name, instance_id=f"pod-{name}") for name in "rs")
    world.pass_time(1_000)
    had, others = world.owned()["s-1"], world.owned()["a-1"]
    former.silent = True
    world.add_agent("r2", instance_id="pod-r")
    world.pass_time(500)
    (fencing,) = commands(world, former)
    assert fencing.cause.kind == command.INSTANCE_FENCED
    world.agents["a"].silent = True
    world.kill_agent(back)
    world.add_agent("s2", instance_id="pod-s")
    world.pass_time(500)
    assert commands(world, former) == [fencing]
    assert world.owned()["s2-1"] == had
    assert (world.owned()["a-1"], commands(world, world.agents["a"])) == (others, [])


def test_an_eager_group_that_is_unfrozen_while_a_plan_is_computed_stops_everything_first() -> None:
    """In `Planning.deviations`, look at `transition.everything` instead of the settings."""
    world = world_with(GroupSettings(mode="eager", frozen=True), "a")
    process, slow = world.leader(), world.agents["a"]
    slow.silent = True
    new = world.add_agent("b")
    world.act(new)
    world.set_topic("t", 6)
    deliver_until_idle(world, process)
    assert process.computing
    world.configure(settings.encode(GroupSettings(mode="eager")))
    deliver_until_idle(world, process)
    world.compute(process)
    deliver_until_idle(world, process)
    (stop,) = commands(world, slow)
    assert isinstance(stop, StopFetcher)
    assert stop.partitions is None
    assert not commands(world, new)
    slow.silent = False
    world.pass_time(1_000)
    world.assert_settled()


def test_in_incremental_mode_a_slow_consumer_delays_only_what_leaves_it() -> None:
    world = world_with(GroupSettings(), "a", "b", partitions=6)
    world.agents["a"].silent = True
    world.add_agent("c")
    world.pass_time(1_000)
    assert len(world.owned()["c-1"]) == 1
    assert len(world.owned()["b-1"]) == 2


def test_what_cooperative_sticky_withholds_is_given_once_its_holders_have_let_go() -> None:
    world = world_with(GroupSettings(strategy="cooperative_sticky"), "a")
    world.add_agent("b")
    world.pass_time(2_000)
    world.assert_settled()
    assert len(world.owned()["b-1"]) == 2


def test_many_members_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrebalancer.rebalance.planning.MAX_LOOKS_PER_STEP", 2)
    world = world_with(GroupSettings(), "a", "b", "c", "d", "e", partitions=12)
    world.set_topic("t", 16)
    world.pass_time(2_000)
    world.assert_settled()


def test_a_topic_whose_partitions_have_gaps_is_assigned_but_for_the_gaps() -> None:
    world = world_with(GroupSettings(), "a", "b")
    world.set_topic("t", 0)
    replicas = {str(number): [1] for number in (0, 2, 5)}
    content = json.dumps({"version": 3, "partitions": replicas, "topic_id": "id-1"}).encode()
    assert isinstance(world.zk.perform(Multi((SetContent(paths.topic("t"), content),))), Done)
    world.pass_time(2_000)
    assert {tp for held in world.owned().values() for tp in held} == {("t", 0), ("t", 2), ("t", 5)}
    assert world.leader().machine.groups_being_rebalanced == {GROUP: False}


def test_an_unknown_strategy_leaves_the_group_as_it_is_until_it_is_corrected() -> None:
    world = world_with(GroupSettings(), "a")
    world.configure(settings.encode(GroupSettings(strategy="nonsense")))
    world.add_agent("b")
    world.pass_time(5_000)
    assert len(world.owned()["a-1"]) == 4
    assert any("is unknown; known are" in warning for warning in world.warnings)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(15_000)
    world.assert_settled()


def test_after_a_rest_a_failed_plan_is_tried_again_soon_also_if_there_was_nothing_to_do() -> None:
    """In `Group._rest`, remember the failures: the first try after the next one, weeks later, came after 10 s."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    for _ in range(2):
        world.configure(settings.encode(GroupSettings(strategy="nonsense")))
        world.pass_time(50)
        at_us, _handle, _arguments = machine.scheduler.due[GROUP, "back-off"]
        assert 0 < at_us - world.now_us <= MIN_BACKOFF_US
        world.pass_time(60_000)
        world.configure(settings.encode(GroupSettings()))
        world.pass_time(15_000)
        world.assert_settled()


@pytest.mark.parametrize("mode", ["incremental", "eager"])
def test_a_strategy_that_fails_does_not_strand_the_plan_that_is_carried_out(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What happens while a strategy computes sends nothing. In `Group.computed`, do not go on with the former plan."""
    world = world_with(GroupSettings(mode=mode), "a")
    leader = world.leader()
    world.agents["a"].silent = True
    world.add_agent("b")
    world.run()
    world.add_agent("c")
    world.act(world.agents["c"])
    while not leader.computing:
        world.now_us += 100_000
        world.tick()
        while answer_one(world, leader):
            pass
    world.agents["a"].silent = False
    while world.act(world.agents["a"]) or answer_one(world, leader):
        pass
    assert world.owned()["b-1"] == {}

    def fail(*_arguments: object) -> None:
        raise RebalancerError("broken")

    monkeypatch.setattr("tests.support.world.answer", fail)
    world.pass_time(10_000)
    assert [len(world.owned()[name]) for name in ("a-1", "b-1", "c-1")] == [2, 2, 0]
    assert leader.machine.scheduler.backing_off
    monkeypatch.undo()
    world.pass_time(20_000)
    world.assert_settled()


def test_what_is_requested_during_a_plan_that_changes_nothing_waits_for_no_member() -> None:
    """In `Group._send`, queue what was requested only after a plan that sends something."""
    world = world_with(GroupSettings(), "a", partitions=6)
    process, slow = world.leader(), world.add_agent("b")
    world.act(slow)
    slow.silent = True
    world.pass_time(1_000)
    assert commands(world, slow)
    world.configure(settings.encode(GroupSettings()))  # an operator asks for a rebalance
    run_until_computing(world, process)
    world.act(world.add_agent("c"))
    deliver_until_idle(world, process)
    world.compute(process)
    world.pass_time(1_000)
    assert world.owned()["c-1"]
    slow.silent = False
    world.pass_time(3_000)
    world.assert_settled()


def test_a_group_whose_settings_are_written_again_and_again_while_it_is_read_is_planned() -> None:
    """In `_settings_read`, read the group at once after each gap between versions: it is never planned."""
    content = settings.encode(GroupSettings())
    world = world_with(GroupSettings(), "a")
    process, path = world.leader(), paths.group(GROUP)
    group = process.machine.groups[GROUP]
    world.act(world.add_agent("b"))
    for _ in range(2):
        world.configure(content)
    for _ in range(5_000):
        if group.state is GroupState.LOADING and path in process.session.content_watches:  # it has just been read
            for _ in range(2):
                world.configure(content)
        if not (world.move(process) or any(map(world.act, world.agents.values()))):
            world.now_us = max(world.now_us, world.next_deadline_us() or 0)
            world.tick()
    assert len(world.owned()["b-1"]) == 2


def test_a_plan_whose_settings_are_written_again_and_again_has_not_failed() -> None:
    """In `_settings_read`, call `_load_anew` as it is: an alert would say that members are late."""
    world = world_with(GroupSettings(), "a")
    world.agents["a"].silent = True
    world.act(world.add_agent("b"))
    for _ in range(2):  # the second time, the group is read after a pause
        world.pass_time(2_000)
        assert world.leader().machine.groups_being_rebalanced == {GROUP: True}
        finished = len(events(world, "rebalance_finished"))
        for _ in range(2):
            world.configure(settings.encode(GroupSettings()))
        world.run()
        assert [one["outcome"] for one in events(world, "rebalance_finished")[finished:]] == ["superseded"]


def test_a_wildcard_that_does_not_compile_is_refused_once_and_the_rest_goes_on() -> None:
    world = world_with(GroupSettings(), "a")
    world.add_agent("w", {"(": 1}, pattern="white_list")
    world.pass_time(1_000)
    world.set_topic("u", 1)
    world.add_agent("b")
    world.pass_time(1_000)
    assert world.owned()["w-1"] == {}
    assert len(world.owned()["a-1"]) == 2
    assert sum("does not compile" in warning for warning in world.warnings) == 1


def test_a_wildcard_takes_in_a_topic_that_appears() -> None:
    world = world_with(GroupSettings())
    world.add_agent("w", {"^pay": 1}, pattern="white_list")
    world.pass_time(1_000)
    assert world.owned()["w-1"] == {}
    world.set_topic("payments", 2)
    world.set_topic("__pay", 2)
    world.pass_time(1_000)
    assert set(world.owned()["w-1"]) == {("payments", 0), ("payments", 1)}


def test_a_leader_that_is_asked_to_stop_resigns_and_a_standby_leads_at_once() -> None:
    world = world_with(GroupSettings(), "a")
    standby = world.add_coordinator()
    world.run()
    world.feed(world.coordinators[0], ShutDown())
    world.run()
    assert not world.coordinators[0].alive
    assert world.leader() is standby
    assert world.now_us == 1_000_000 + 2_000_000


def test_a_command_too_large_for_one_is_sent_as_several() -> None:
    partitions = {(f"topic-{number:05d}-{'x' * 80}", 0): 0 for number in range(2_000)}
    start = command.fitting_start("id", 1, 1, Cause("c", "k"), partitions)
    assert 0 < len(start.partitions) < 2_000
    assert command.decode(command.encode(start)) == start
