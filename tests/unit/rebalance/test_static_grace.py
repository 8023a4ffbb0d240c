"""Static members with a grace of their own: clients of a gateway may read on while nobody is registered for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import world as world_module
from tests.support.groups import events, owner_of, world_with
from tests.support.world import GROUP, Agent, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Children, Delete, Multi, SetContent
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Request
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.static_members import StaticMembers
from zkrebalancer.rebalance.view import GroupView

GRACE_MS = 20_000


def gateways_member(world: World, client: str) -> Agent:
    """Return a member with a grace of its own, as a gateway registers it, of the instance pod-1."""
    return world.add_agent(client, instance_id="pod-1", static_grace_ms=GRACE_MS)


def test_rule_17_what_a_member_with_a_grace_of_its_own_had_goes_to_nobody_else() -> None:
    """In `static_members.reserved`, return {}."""
    world = world_with(GroupSettings(strategy="range", static_grace_ms=1_000), "b")
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    had = set(world.owned()["c-1"])
    assert len(had) == 2
    world.kill_agent(member)
    world.pass_time(5_000)
    for client in "aef":  # now everybody's share is one partition
        world.add_agent(client)
    world.pass_time(5_000)
    owned = world.owned()
    assert had.isdisjoint(partition for name in owned for partition in owned[name])
    member = gateways_member(world, "d")
    told = len(events(world, "command_sent"))
    world.pass_time(2_000)
    first = events(world, "command_sent")[told]
    assert (first["member"], first["option"], first["partition_count"]) == ("d-1", "start-fetcher", 2)
    assert {len(partitions) for partitions in world.owned().values()} <= {0, 1}  # afterwards it is shared out
    world.kill_agent(member)
    world.pass_time(GRACE_MS + 1_000)
    assert sum(map(len, world.owned().values())) == 4


def test_rule_17_of_two_in_a_frozen_group_what_either_had_waits_also_under_another_leader() -> None:
    """In `static_members.record`, name only what fenced ones hold."""
    world = world_with(GroupSettings(frozen=True), "a")
    world.kill_agent(world.agents["a"])
    members = [gateways_member(world, client) for client in "bc"]
    world.pass_time(60_000)
    assert sum(map(len, world.owned().values())) == 4
    world.kill_coordinator(world.leader())
    for member in members:
        world.kill_agent(member)
    world.add_agent("e")
    world.add_coordinator()
    world.pass_time(GRACE_MS // 2)
    assert not world.owned()["e-1"]
    world.pass_time(GRACE_MS)
    assert len(world.owned()["e-1"]) == 4


def test_rule_17_what_waits_for_a_member_that_is_there_is_given_to_it() -> None:
    """In `Planning._shares`, leave the members out for which something is reserved."""
    world = world_with(GroupSettings(), "b", partitions=2)
    gateways_member(world, "c")
    world.pass_time(1_000)
    waiting = set(world.owned()["b-1"])
    # As if an older life of it, which ended after this one had been given something, had owned them.
    world.leader().machine.groups[GROUP].view.waiting_for.update(dict.fromkeys(waiting, "pod-1"))
    world.add_agent("e")  # it would get what waits
    world.pass_time(1_000)
    world.kill_agent(world.agents["b"])
    world.pass_time(10_000)
    assert sum(map(len, world.owned().values())) == 2, "nobody gets what waits"


def test_rule_17_a_member_that_deletes_its_record_has_left_for_good() -> None:
    """In `_deadline_written`, report `Outdated` always."""
    world = world_with(GroupSettings(), "a")
    member = gateways_member(world, "s")
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 2
    world.zk.perform(Multi((Delete(paths.static(GROUP, "pod-1")),)))
    world.leave(member)
    member.alive = False
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 4


def test_rule_17_a_grace_begins_though_its_member_ended_without_a_leader_and_its_successor_before_any_start() -> None:
    """In `StaticMembers.left`, look only for a deadline that was set."""
    world = world_with(GroupSettings(), "b")
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    assert len(world.owned()["b-1"]) == 2
    world.configure(settings.encode(GroupSettings(starts_paused=True)))
    world.kill_coordinator(world.leader())
    world.kill_agent(member)
    successor = gateways_member(world, "d")
    world.run()
    world.add_coordinator()
    world.pass_time(1_000)
    world.kill_agent(successor)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(GRACE_MS - 2_000)
    assert len(world.owned()["b-1"]) == 2
    world.pass_time(5_000)
    assert len(world.owned()["b-1"]) == 4


def test_rule_17_what_waits_for_a_member_that_is_evicted_waits_for_one_grace() -> None:
    """Leave out `StaticMembers.evicted`: it waits until the group is read anew, and for a grace after that."""
    world = world_with(GroupSettings(mode="eager", rebalance_timeout_ms=1_000, max_rebalance_retries=1), "b")
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    waiting = set(world.owned()["b-1"])
    # As if an older life of it, which ended after this one had been given something, had owned them.
    world.leader().machine.groups[GROUP].view.waiting_for.update(dict.fromkeys(waiting, "pod-1"))
    member.silent = True
    world.add_agent("e")
    world.kill_agent(world.agents["b"])
    world.pass_time(GRACE_MS - 2_000)
    assert "c-1" in [event["member"] for event in events(world, "member_left") if event["reason"] == "evicted"]
    assert set(world.owned()["e-1"]) == {("t", number) for number in range(4)} - waiting
    world.pass_time(GRACE_MS)
    assert len(world.owned()["e-1"]) == 4


def test_what_waits_since_a_former_life_of_an_evicted_member_waits_no_longer_than_its_grace() -> None:
    """In `StaticMembers.evicted`, look at graces of their own only: it has no owner until the group is read anew."""
    group = GroupSettings(static_grace_ms=GRACE_MS)
    world = world_with(group, "b")
    member = world.add_agent("c", instance_id="pod-1")
    world.pass_time(1_000)
    world.kill_agent(member)
    world.pass_time(1_000)
    world.configure(settings.encode(replace(group, starts_paused=True)))
    member = world.add_agent("d", instance_id="pod-1")
    world.pass_time(GRACE_MS)
    member.silent = True
    world.zk.perform(Multi((Delete(paths.owners(GROUP, "d-1")),)))
    world.pass_time(1_000)
    assert [event["reason"] for event in events(world, "member_left") if event["member"] == "d-1"] == ["evicted"]
    world.configure(settings.encode(group))
    world.pass_time(15_000)
    assert len(world.owned()["b-1"]) == 4


def test_rule_17_no_clock_ends_a_grace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `StaticMembers._await_deadline`, wait until the deadline by the clock."""
    world = world_with(GroupSettings(), "b")
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    world.kill_agent(member)
    world.pass_time(1_000)
    world.kill_coordinator(world.leader())
    monkeypatch.setattr(world_module, "EPOCH_OFFSET_MS", world_module.EPOCH_OFFSET_MS + 10**9)
    world.add_coordinator()
    for _ in range(4):
        world.pass_time(GRACE_MS // 4 - 500)
        assert len(world.owned()["b-1"]) == 2
        world.leader().machine.groups[GROUP].load("reconciliation")  # which begins no grace anew
        world.tick()
    world.pass_time(3_000)
    assert len(world.owned()["b-1"]) == 4


@pytest.mark.parametrize("jump_ms", [86_400_000, -86_400_000])
def test_a_wall_clock_that_jumps_keeps_the_partitions_of_a_static_member_for_one_grace_at_most(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    """In `StaticMembers._await_deadline`, wait as long as the deadline says."""
    world = world_with(GroupSettings(static_grace_ms=GRACE_MS), "b")
    member = world.add_agent("c", instance_id="pod-1")
    world.pass_time(1_000)
    world.kill_agent(member)
    world.pass_time(1_000)
    world.kill_coordinator(world.leader())
    monkeypatch.setattr(world_module, "EPOCH_OFFSET_MS", world_module.EPOCH_OFFSET_MS + jump_ms)
    world.add_coordinator()
    world.pass_time(GRACE_MS + 2_000)
    assert len(world.owned()["b-1"]) == 4


def served_first(world: World, told: int) -> tuple[object, object]:
    """Return who was told something first since so many commands, and what."""
    first = events(world, "command_sent")[told]
    return first["member"], first["option"]


@pytest.mark.parametrize("how", ["seen", "seen by another leader", "read"])
def test_rule_17_a_former_life_that_ends_after_its_successor_was_given_something(how: str) -> None:
    """In `StaticMembers.left`, wait only for what the record's consumer had; in `record`, leave former lives out.

    In `adopt`, ignore `gone`.
    """
    world = world_with(GroupSettings(strategy="range", static_grace_ms=1_000), "b", partitions=2)
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    assert world.owned()["c-1"].keys() == {("t", 0)}
    member.silent = True
    gateways_member(world, "d")
    world.set_topic("t", 6)
    world.pass_time(2_000)
    for client in "aef":
        world.add_agent(client, instance_id=client)
    world.pass_time(2_000)
    assert ("t", 0) not in world.owned()["d-1"]
    told = len(events(world, "command_sent"))
    if how == "seen by another leader":
        world.kill_coordinator(world.leader())
    elif how == "read":
        world.leader().machine.groups[GROUP].load("outdated")
    world.kill_agent(member)
    if how == "seen by another leader":
        world.add_coordinator()
    world.tick()
    world.pass_time(2_000)
    assert served_first(world, told) == ("d-1", "start-fetcher")
    assert owner_of(world, ("t", 0)) == "a-1"  # afterwards
    world.assert_settled()


def test_rule_17_what_a_member_will_get_of_its_former_life_waits_under_the_next_leader_too() -> None:
    """In `static_members.record`, leave out of `former` what the plan gives to the member later (seed 2000198)."""
    world = world_with(GroupSettings(static_grace_ms=1_000), "b", partitions=2)
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    (had,) = world.owned()["c-1"]
    member.silent = True
    gateways_member(world, "d")  # the plan gives it what `c` had, once that has stopped
    world.pass_time(500)
    world.set_topic("t", 6)
    world.pass_time(2_000)
    assert had not in world.owned()["d-1"]
    assert world.owned()["d-1"]
    told = len(events(world, "command_sent"))
    world.kill_coordinator(world.leader())
    world.kill_agent(member)
    for client in "ef":  # they have less
        world.add_agent(client)
    world.pass_time(100)
    world.add_coordinator()
    world.pass_time(2_000)
    starts = [event["member"] for event in events(world, "command_sent")[told:] if event["option"] == "start-fetcher"]
    assert starts[0] == "d-1"
    world.assert_settled()


def test_rule_17_a_former_life_that_ends_last_has_a_whole_grace() -> None:
    """In `StaticMembers.left`, let the deadline of the life that ended first apply, or store only what that one had."""
    group = GroupSettings(static_grace_ms=1_000)
    world = world_with(group, "b", partitions=2)
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    (had,) = world.owned()["c-1"]
    member.silent = True
    successor = gateways_member(world, "d")
    world.pass_time(500)
    world.set_topic("t", 6)
    world.pass_time(3_000)
    assert world.owned()["d-1"]
    world.configure(settings.encode(replace(group, starts_paused=True)))  # the former life gets nothing more
    world.pass_time(100)
    world.kill_agent(successor)
    world.pass_time(GRACE_MS // 2)
    world.kill_agent(member)
    world.pass_time(100)
    world.configure(settings.encode(group))
    world.pass_time(GRACE_MS - 2_000)
    assert owner_of(world, had) is None
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.add_agent("a")  # it would get what waits
    world.pass_time(GRACE_MS - 2_000)
    assert owner_of(world, had) is None
    world.pass_time(4_000)
    world.assert_settled()


def test_rule_17_a_returned_member_does_not_wait_for_a_topic_that_was_created_anew() -> None:
    """In `Planning.admissible`, give back partitions of a topic whose offsets are to be reset first."""
    world = world_with(GroupSettings(rebalance_debounce_ms=500))
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    assert len(world.owned()["c-1"]) == 4  # so nobody else has to give up the topic
    world.kill_agent(member)
    world.pass_time(1_000)
    world.add_agent("e")
    world.pass_time(100)
    gateways_member(world, "d")  # planned together with the new topic
    world.run()
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.pass_time(5_000)
    world.assert_settled()


def test_rule_17_a_failover_alone_gives_a_member_nothing_that_it_no_longer_wants() -> None:
    """In `StaticMembers.adopt`, wait for all partitions in the record of a member that is there."""
    world = world_with(GroupSettings())
    world.set_topic("u", 4)
    member = world.add_agent("c", {"t": 1, "u": 1}, instance_id="pod-1", static_grace_ms=GRACE_MS)
    world.pass_time(1_000)
    assert len(world.owned()["c-1"]) == 8
    wanting_less = registration.encode(member.registration._replace(subscription={"t": 1}))
    world.zk.perform(Multi((SetContent(paths.ids(GROUP, "c-1"), wanting_less),)))
    world.pass_time(5_000)
    assert len(world.owned()["c-1"]) == 4
    told = len(events(world, "command_sent"))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(5_000)
    assert events(world, "command_sent")[told:] == []


def a_member_with_a_hidden_record(world: World, *denied: tuple[str, str, Right], grace_ms: int = GRACE_MS) -> Agent:
    """Return a member of the instance pod-1 whose record the leader knows, but may not read: it has no version."""
    member = world.add_agent("c", instance_id="pod-1", static_grace_ms=grace_ms)
    world.pass_time(1_000)
    world.zk.denied |= {("", paths.static(GROUP), Right.READ), *denied}
    world.pass_time(301_000)
    return member


def test_rule_17_a_leader_that_is_suspended_over_the_end_of_a_grace_looks_who_has_returned() -> None:
    """In `StaticMembers._grace_over`, delete the record at once; in `_ids_listed`, wait for no newcomer."""
    world = world_with(GroupSettings(), "b")
    member = gateways_member(world, "c")
    world.pass_time(1_000)
    world.kill_agent(member)
    world.pass_time(GRACE_MS - 1_000)
    told = len(events(world, "command_sent"))
    assert world.act(gateways_member(world, "d")), "it registers, and nobody tells the leader"
    world.now_us += 10_000_000
    world.tick()
    world.pass_time(5_000)
    sent = events(world, "command_sent")[told:]
    assert [(each["member"], each["option"]) for each in sent] == [("d-1", "start-fetcher")]
    assert len(world.owned()["d-1"]) == 2


@pytest.mark.parametrize("returns", [True, False])
def test_rule_17_a_refused_deletion_of_a_hidden_record_is_decided_anew(*, returns: bool) -> None:
    """In `StaticMembers._grace_over`, let the scheduler repeat it: it deletes the record of a member that is back.

    In `_removed`, do not try again.
    """
    world = world_with(GroupSettings(), "b")
    denied = [("", paths.static(GROUP), right) for right in (Right.CREATE, Right.DELETE)]
    member = a_member_with_a_hidden_record(world, *denied)
    world.kill_agent(member)
    world.pass_time(6_000 + GRACE_MS + 5_000)
    if returns:
        member = gateways_member(world, "d")
        world.pass_time(2_000)
        assert len(world.owned()["d-1"]) == 2
    world.zk.denied.discard(denied[-1])
    world.pass_time(31_000)
    assert (paths.static(GROUP, "pod-1") in world.zk.nodes) is returns
    assert len(world.owned()["b-1"]) == (2 if returns else 4)
    if returns:
        world.kill_agent(member)
        world.pass_time(6_500)
        assert len(world.owned()["b-1"]) == 2, "its clients may read on for one grace"


def test_a_refused_deadline_of_a_hidden_record_does_not_replace_a_later_record() -> None:
    """In `StaticMembers._set_deadline`, let the scheduler repeat it."""
    world = world_with(GroupSettings(), "b")
    denied = ("", paths.static(GROUP, "pod-1"), Right.WRITE)
    member = a_member_with_a_hidden_record(world, denied, grace_ms=200_000)
    world.kill_agent(member)
    world.pass_time(58_000)  # 52 s after its session has ended: the next try is 29 s away
    gateways_member(world, "d")
    world.pass_time(1_000)
    world.zk.denied.discard(denied)
    world.pass_time(10_000)
    assert len(world.owned()["d-1"]) == 2
    world.pass_time(40_000)
    record = ownership.decode_static(world.zk.nodes[paths.static(GROUP, "pod-1")].content, None)
    assert (record.consumer, record.deadline_ms) == ("d-1", None)


def a_returned_member(denied: tuple[str, str, Right], away_ms: int) -> tuple[World, Agent]:
    """Return a world where a write of its record was refused while it was away, and allowed since it has returned."""
    world = world_with(GroupSettings(static_grace_ms=30_000))
    first = world.add_agent("a", instance_id="pod")
    world.add_agent("b")
    world.pass_time(5_000)
    world.zk.denied.add(denied)
    world.kill_agent(first)
    world.pass_time(away_ms)
    back = world.add_agent("a2", instance_id="pod")
    world.pass_time(3_000)
    world.zk.denied.discard(denied)
    world.pass_time(60_000)
    return world, back


@pytest.mark.parametrize(
    ("denied", "away_ms"),
    [(("", paths.static(GROUP, "pod"), Right.WRITE), 20_000), (("", paths.static(GROUP), Right.DELETE), 70_000)],
)
def test_a_refused_write_of_a_record_is_not_repeated_once_its_member_was_given_something(
    denied: tuple[str, str, Right], away_ms: int
) -> None:
    """In `stores`, or in `StaticMembers._grace_over`, write or delete it whatever its version is."""
    world, back = a_returned_member(denied, away_ms)
    assert len(world.owned()[back.name or ""]) == 2
    record = ownership.decode_static(world.zk.nodes[paths.static(GROUP, "pod")].content, None)
    assert (record.consumer, record.deadline_ms) == (back.name, None)


def test_records_of_thousands_whose_graces_end_at_once_are_listed_for_once_and_deleted_in_a_step_each() -> None:
    """In `StaticMembers._grace_over`, list for each; in `_ids_listed`, delete them all: other groups wait meanwhile."""
    scheduler = Scheduler()
    members = StaticMembers(scheduler.part(GROUP), view := GroupView(GROUP, {}), lambda _fact: None)
    away = ownership.StaticMember("gone", frozenset(), 0, GRACE_MS, None)
    view.statics.update({f"pod-{number}": (away, 0) for number in range(3)})
    list(members.adopt())
    scheduler.now = replace(scheduler.now, mono_us=2_000 * GRACE_MS)
    for _ in view.statics:
        scheduler.run_next_due()
    (listing,) = scheduler.take_effects()
    assert isinstance(listing, Request)
    scheduler.answer(listing.call_id, Children(()))
    scheduler.now = replace(scheduler.now, mono_us=2_001 * GRACE_MS)
    for _ in view.statics:
        assert not scheduler.take_effects()
        scheduler.run_next_due()
        assert len(scheduler.take_effects()) == 1
