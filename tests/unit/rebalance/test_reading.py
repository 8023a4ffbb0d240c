"""A group is read in slices, and what may not be read counts as the worst that it could say."""

from __future__ import annotations

import pytest

from tests.support.groups import answer_one, events, world_with
from tests.support.requests import requests
from tests.support.world import GROUP, SESSION_MS, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import cluster_nodes, command, obstacles, ownership, paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    SetContent,
    Stat,
)
from zkrebalancer.protocol.command import Cause, StartFetcher
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import coordinator, loading
from zkrebalancer.rebalance.deletions import Deletions
from zkrebalancer.rebalance.effects import Now, Request
from zkrebalancer.rebalance.former_lives import FormerLives
from zkrebalancer.rebalance.leadership import Leadership
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.turnover import Turnover
from zkrebalancer.rebalance.turns import Turns
from zkrebalancer.rebalance.view import GroupView, Member


@pytest.mark.parametrize(("refusal", "is_kept"), [(Refusal.NO_AUTH, True), (Refusal.NO_NODE, False)])
def test_an_eviction_record_that_may_not_be_read_still_holds(refusal: Refusal, is_kept: bool) -> None:
    """In `GroupReader._eviction_read`, take it for one that is gone: its partitions would have two owners."""
    reader = GroupReader(GROUP, {})
    reader.view.evicted = {"dead": None}
    reader._eviction_read("dead", Refused(refusal))
    assert ("dead" in reader.view.evicted) is is_kept
    assert reader.problems.counts.total() == is_kept


def reading_in_slices(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> Scheduler:
    monkeypatch.setattr(loading, "MAX_READS_PER_STEP", 1)
    scheduler = Scheduler()
    view, lives = GroupView(GROUP, {}), FormerLives(scheduler)
    lives._served[GROUP] = None
    shared = Leadership(
        scheduler, 1, Subscriptions(), lives, Deletions(scheduler), Turns(), Turns(), frozenset(), Turnover()
    )
    reading = loading.Loading(scheduler.part(GROUP), view, shared, lambda _: None)
    for _ in range(times):
        scheduler.forget(GROUP)
        scheduler.take_effects()
        reading.begin()
        (listing,) = requested(scheduler)
        scheduler.answer(listing.call_id, Children((*paths.GROUP_CHILDREN, "generation", "given", "incarnations")))
    return scheduler


def test_a_stage_is_over_when_its_last_slice_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies come before the next slice is asked for. In `Loading._maybe_go_on`, do not wait for it."""
    scheduler, asked = reading_in_slices(monkeypatch), list[str]()
    for now_us in range(1, 20):
        for request in requested(scheduler):
            assert isinstance(request.call, Get | ListChildren)
            asked.append(request.call.path)
            scheduler.answer(request.call_id, Refused(Refusal.NO_NODE))
        scheduler.now = Now(now_us, 0)
        scheduler.run_next_due()
    group = paths.group(GROUP)
    names = ["generation", "channel", "offsets", "static", "incarnations"]
    assert asked[:6] == [group, *(f"{group}/{name}" for name in names)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_stage_is_over_when_all_its_slices_are_answered(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """No reply comes before all slices are asked for. In `Loading._ask`, count those of the last slice only.

    In `Loading.begin`, wait for those of a reading that was given up, too.
    """
    scheduler = reading_in_slices(monkeypatch, times)
    while (at_us := scheduler.next_deadline_us()) is not None:
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
    stage = requested(scheduler)
    assert len(stage) > 2
    for request in stage:
        assert requested(scheduler) == []
        scheduler.answer(request.call_id, Refused(Refusal.NO_NODE))
    assert requested(scheduler)


def requested(scheduler: Scheduler) -> list[Request]:
    return [one for effect in scheduler.take_effects() for one in requests(effect)]


@pytest.mark.parametrize(("content", "is_recorded"), [(b"3", True), (b"4", False), (b"junk", True)])
def test_records_of_what_was_given_tell_unless_another_version_has_led_since(content: bytes, is_recorded: bool) -> None:
    """A generation that cannot be read does not say so. In `GroupReader._is_recorded`, let it."""
    reader = GroupReader(GROUP, {}, watch=True)
    reader._generation_read(Content(content, Stat(1, 5, 70, 0)))
    reader._mark_read(Content(b"3", Stat(1, 5, 70, 0)))
    reader.finish()
    assert reader.view.is_recorded is is_recorded


def test_a_generation_that_cannot_be_read_counts_on_from_the_write_that_made_it_so() -> None:
    """In `GroupReader._generation_read`, count on from 0."""
    reader = GroupReader(GROUP, {})
    reader._generation_read(Content(b"junk", Stat(1, 5, 70, 0)))
    assert reader.view.generation == 70


def test_who_may_not_be_read_keeps_what_it_has() -> None:
    """A new leader does not know what it wants. In `Planning._describe`, describe nobody without a registration."""
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    world.add_coordinator()
    for name in "ab":
        world.add_agent(name)
    world.pass_time(2_000)
    before = world.owned()
    sent = sum(event.kind == "command_sent" for event in world.events)

    world.zk.denied.add(("", paths.ids(GROUP, "a-1"), Right.READ))
    world.add_coordinator()
    world.kill_coordinator(world.leader())
    world.pass_time(10_000)
    assert world.owned() == before
    assert sum(event.kind == "command_sent" for event in world.events) == sent

    world.zk.denied.clear()
    world.pass_time(60_000)
    assert world.leader().machine.groups[GROUP].view.members["a-1"].registration is not None


def test_a_topic_is_deleted_that_only_an_unreadable_registration_names() -> None:
    """Nobody tells the group of it. In `Planning.begin`, do not touch members without a registration."""
    world = world_with(partitions=2)
    world.add_agent("a")
    world.run()
    world.zk.denied.add(("", paths.ids(GROUP, "a-1"), Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(2_000)
    world.delete_topic("t")
    world.pass_time(2_000)
    world.add_agent("b")
    world.pass_time(2_000)  # the world compares what planning keeps with what it would find anew
    world.zk.denied.clear()
    world.set_topic("t", 2, "id-2")
    world.pass_time(60_000)
    world.assert_settled()
    assert len(world.owned()) == 2


def test_who_lacks_its_record_and_whose_registration_may_not_be_read_has_a_lease() -> None:
    """It may live, cut off. In `GroupReader._registered_again`, take any refusal for the end of its session."""
    world = world_with(GroupSettings(), "a", "b")
    had = world.owned()["a-1"].keys()
    world.kill_coordinator(world.leader())
    world.agents["a"].silent = True
    world.zk.denied.add(("", paths.ids(GROUP, "a-1"), Right.READ))
    world.zk.perform(Multi((Delete(paths.owners(GROUP, "a-1")),)))
    world.add_coordinator()
    world.pass_time(1_000)
    evicted = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert evicted.partitions.keys() == had
    assert had.isdisjoint(world.owned()["b-1"])
    world.pass_time(60_000)
    world.assert_settled()


def test_a_listing_of_owners_that_is_refused_at_first_makes_nobody_dead() -> None:
    """One whose registration was deleted by hand is known by its record alone. In `GroupReader`, list both at once."""
    world = world_with(GroupSettings(), "a")
    owned = world.owned()
    world.kill_coordinator(world.leader())
    world.zk.denied.add(("", f"{paths.group(GROUP)}/owners", Right.READ))
    world.zk.perform(Multi((Delete(paths.ids(GROUP, "a-1")),)))
    world.agents["a"].silent = True
    world.add_coordinator()
    world.pass_time(SESSION_MS // 6)
    world.zk.denied.clear()
    for _ in range(100):
        world.pass_time(10)
        assert paths.evicted(GROUP, "a-1") in world.zk.nodes or world.owned() == owned
        assert paths.evicted(GROUP, "a-1") in world.zk.nodes or paths.channel(GROUP, "a-1") in world.zk.nodes
    assert not events(world, "ownership_ended")


def test_what_is_pending_is_known_though_the_record_of_its_consumer_may_not_be_read() -> None:
    """As soon as it may, a second command would be sent. In `GroupReader._owners_read`, adopt no commands then."""
    world = world_with(GroupSettings(rebalance_timeout_ms=60_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.run()
    (pending,) = world.zk.children(paths.channel(GROUP, "a-1"))

    world.zk.denied.add(("", paths.owners(GROUP, "a-1"), Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)
    world.zk.denied.clear()
    world.pass_time(10_000)
    assert world.zk.children(paths.channel(GROUP, "a-1")) == [pending]

    world.agents["a"].silent = False
    world.pass_time(2_000)
    world.assert_settled()


def world_with_a_command_that_may_not_be_read(timeout_ms: int) -> tuple[World, str]:
    """`a` has a stop to answer, and is silent; a leader comes that may not read it."""
    world = world_with(GroupSettings(rebalance_timeout_ms=timeout_ms), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.run()
    (node,) = world.zk.children(paths.channel(GROUP, "a-1"))
    path = f"{paths.channel(GROUP, 'a-1')}/{node}"
    world.zk.denied.add(("", path, Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)
    return world, path


def test_who_answers_a_command_that_the_leader_may_not_read_stays_a_member() -> None:
    """In `Membership._owners_read`, do not look whether the command is gone."""
    world, _path = world_with_a_command_that_may_not_be_read(5_000)
    world.pass_time(2_500)  # the pauses between two tries have grown
    world.agents["a"].silent = False
    world.pass_time(20_000)
    assert world.owned().keys() == {"a-1", "b-1"}
    world.assert_settled()


def test_who_has_answered_unseen_what_the_leader_may_not_read_is_not_evicted() -> None:
    """No watch fires while the record may not be read either. In `Departures._has_answered`, return False."""
    world, path = world_with_a_command_that_may_not_be_read(10_000)
    world.pass_time(7_000)  # the pauses between two tries have grown
    leader, owners = str(world.leader().session.session_id), paths.owners(GROUP, "a-1")
    world.zk.identity = str
    world.zk.denied |= {(leader, path, Right.READ), hidden := (leader, owners, Right.READ)}
    world.agents["a"].silent = False
    world.run()
    assert world.zk.withheld
    world.zk.denied.remove(hidden)
    assert not world.zk.children(paths.channel(GROUP, "a-1"))
    world.pass_time(20_000)
    assert world.owned().keys() == {"a-1", "b-1"}
    assert not events(world, "member_left")
    world.assert_settled()


def test_a_command_that_the_leader_may_read_after_a_while_is_waited_for() -> None:
    """In `Membership.ask_again`, ask for no commands: its consumer would be evicted."""
    world, path = world_with_a_command_that_may_not_be_read(30_000)
    world.zk.denied.clear()
    world.pass_time(15_000)
    (pending,) = world.leader().machine.groups[GROUP].view.members["a-1"].pending
    assert pending.node == path
    world.agents["a"].silent = False
    world.pass_time(25_000)
    assert world.owned().keys() == {"a-1", "b-1"}
    world.assert_settled()


def test_who_does_not_answer_what_the_leader_may_not_read_is_evicted_and_others_are_served_meanwhile() -> None:
    """In `Member.is_readable`, count it as readable: the leader would send another command."""
    world, path = world_with_a_command_that_may_not_be_read(10_000)
    world.set_topic("t", 6)
    world.pass_time(1_000)
    assert [("t", number) in world.owned()["b-1"] for number in (4, 5)] == [True, True]
    assert world.zk.children(paths.channel(GROUP, "a-1")) == [path.rpartition("/")[2]]
    world.agents["a"].silent = False
    world.agents["a"].alive = False
    world.pass_time(30_000)
    world.assert_settled()
    assert world.owned().keys() == {"b-1"}


def test_of_two_whose_commands_cannot_be_read_one_is_known_to_own_a_partition() -> None:
    """A record of what was given may be too large. In `Departures._is_of_another`, look at whole members only."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a", "b")
    owned = world.owned()
    world.kill_coordinator(world.leader())
    for name in ("a-1", "b-1"):
        world.agents[name[0]].silent = True
        world.zk.perform(Multi((Create(f"{paths.channel(GROUP, name)}/command-", b"junk", sequence=True),)))
    given = ownership.encode_given({*owned["a-1"], *owned["b-1"]})
    world.zk.perform(Multi((SetContent(paths.given(GROUP, "a-1"), given),)))
    world.add_coordinator()
    world.pass_time(2_000)
    evictions = {name: world.zk.nodes[paths.evicted(GROUP, name)].content for name in owned}
    assert {name: ownership.decode_eviction(content).partitions for name, content in evictions.items()} == owned


def test_what_somebody_else_starts_is_no_claim_of_a_consumer_whose_record_is_gone() -> None:
    """In `GroupReader._registered_again`, take over the commands as they are."""
    world = world_with(GroupSettings(), "a", "b")
    forged = StartFetcher("id", 1, 1, Cause("id", "retry"), dict.fromkeys(world.owned()["b-1"], 0))
    world.kill_coordinator(world.leader())
    world.agents["a"].silent = True
    channel = paths.channel(GROUP, "a-1")
    world.zk.perform(Multi((Create(f"{channel}/command-", command.encode(forged), sequence=True),)))
    world.zk.perform(Multi((Delete(paths.owners(GROUP, "a-1")),)))
    world.readable_records.pop("a-1")
    world.add_coordinator()
    world.pass_time(1_000)
    evicted = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert evicted.partitions.keys().isdisjoint(world.owned()["b-1"])


@pytest.mark.parametrize(("claimed", "generation"), [(50, 50), (71, 3)])
def test_no_generation_is_above_the_number_of_the_transaction_that_wrote_of_it(claimed: int, generation: int) -> None:
    """A group that is created again counts on from a transaction. In `GroupReader._note_generation`, believe more."""
    reader = GroupReader(GROUP, {})
    reader._generation_read(Content(b"3", Stat(1, 5, 70, 0)))
    reader.view.members["a"] = Member("a")
    reader._owners_read("a", Content(ownership.encode_owners(OwnersRecord(claimed, None, {})), Stat(1, 5, 70, 0)))
    reader.finish()
    assert reader.view.generation == generation


@pytest.mark.parametrize("generation", [2**63 - 1, cluster_nodes.MAX_COUNTER])
def test_a_generation_that_leaves_no_number_to_count_on_is_believed_of_nobody(generation: int) -> None:
    """In `GroupReader._note_generation`, believe any: no command of the group would be accepted any more."""
    world = world_with(GroupSettings(), "a", "b")
    before = world.generation()
    forged = ownership.encode_owners(OwnersRecord(generation, None, world.owned()["a-1"]))
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), forged),)))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.set_topic("t", 6)
    world.pass_time(20_000)
    world.assert_settled()
    assert before < world.generation() < before + 10
    assert world.agents["b"].registrations == 1


@pytest.mark.parametrize("waits_for", ["rights", "leases"])
def test_groups_that_have_to_wait_keep_no_other_from_being_read(
    monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """In `Coordinator._note_waiting`, and in `Loading._listed`, let the group count on as one that is being read."""
    monkeypatch.setattr(coordinator, "MAX_LOADING", 1)
    world = world_with(GroupSettings(), "a")
    for name in ("before-1", "before-2"):
        world.zk.perform(Multi((Create(paths.group(name)),)))
        if waits_for == "rights":
            world.zk.denied.add(("", paths.group(name), Right.READ))
        else:
            world.zk.perform(Multi((Create(paths.served(name)),)))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.set_topic("t", 6)
    world.pass_time(10_000)
    world.assert_settled()


def test_a_group_that_is_deleted_while_it_waits_to_be_read_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Coordinator._drop`, leave it in `groups_to_load`: it would stay in memory, as one that is being read."""
    monkeypatch.setattr(coordinator, "MAX_LOADING", 1)
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.group("later")),)))
    world.kill_coordinator(world.leader())
    process = world.add_coordinator()
    while "later" not in process.machine.groups_to_load:
        assert answer_one(world, process)
    world.zk.perform(Multi((Delete(paths.group("later")),)))
    world.pass_time(10_000)
    assert process.machine.groups.keys() == {GROUP}


def test_a_group_that_is_gone_keeps_no_other_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Loading._note_gone`, let the group count on as one that is being read."""
    monkeypatch.setattr(coordinator, "MAX_LOADING", 1)
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.group("before")),)))
    world.kill_coordinator(world.leader())
    process = world.add_coordinator()
    while not any(call == ListChildren(paths.group("before"), watch=True) for _id, call in process.session.sent):
        assert answer_one(world, process)
    world.zk.denied.add(("", paths.GROUPS, Right.READ))  # so that no list shows that it is gone
    world.zk.perform(Multi((Delete(paths.group("before")),)))
    world.set_topic("t", 6)
    world.pass_time(10_000)
    world.assert_settled()


@pytest.mark.parametrize("path", [paths.owners(GROUP, "a-1"), paths.channel(GROUP, "a-1")])
def test_who_may_not_be_read_is_no_worse_than_others(path: str) -> None:
    """Nobody is evicted for a right that the leader lacks. In `Moving.expect_readable`, limit the time of all.

    In `Membership.ask_again`, ask for none of it.
    """
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a", "b")
    owned = world.owned()
    world.zk.denied.add(("", path, Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(60_000)
    assert world.owned() == owned
    shown = obstacles.decode(world.zk.nodes[paths.COORDINATOR_OBSTACLES].content)[1]
    assert [(found.group, found.path, found.right) for found in shown] == [(GROUP, path, "READ")]
    reads = sum("ZooKeeper refuses" in text for text in world.warnings)
    assert reads == 1

    world.zk.denied.clear()
    world.add_agent("c")
    world.pass_time(40_000)
    world.assert_settled()
    assert world.owned().keys() == {"a-1", "b-1", "c-1"}
    assert world.leader().machine.groups[GROUP].view.members["a-1"].is_readable


@pytest.mark.parametrize("kind", ["owners", "channel"])
def test_a_late_stop_is_no_reason_to_evict_whose_answer_may_not_be_read(kind: str) -> None:
    """It is one again when the leader may see it. In `Moving.limit`, limit the time of all; in `owners_read`, none."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.run()
    path = paths.owners(GROUP, "a-1") if kind == "owners" else paths.channel(GROUP, "a-1")
    world.zk.denied.add(("", path, Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(20_000)
    assert paths.owners(GROUP, "a-1") in world.zk.nodes
    assert not events(world, "member_left")

    world.zk.denied.clear()
    world.pass_time(40_000)
    assert [event["reason"] for event in events(world, "member_left")] == ["evicted"]
