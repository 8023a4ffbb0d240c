"""A test for each rule by which the coordinator keeps a partition from two owners (`docs/reference/protocol.md`).

Each test fails when its rule is switched off; the docstring says what to take out to see it.
"""

from __future__ import annotations

import pytest

from tests.support.groups import commands, copies, events, owner_of, read_paths, run_until_commands_are_sent, world_with
from tests.support.world import GROUP, SESSION_MS, World
from zkrebalancer.protocol import ownership, paths, settings
from zkrebalancer.protocol.calls import Check, Create, Delete, Multi, SetContent
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.registration import LEFT
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance.election import ElectionState
from zkrebalancer.rebalance.states import GroupState

T0, T1 = ("t", 0), ("t", 1)


def test_rule_1_channels_are_read_before_ids_and_owners_before_evicted() -> None:
    """Swap two stages of `GroupReader`."""
    world = world_with(GroupSettings(), "a")
    asked = read_paths(world)
    world.leader().machine.groups[GROUP].load("reconciliation")
    world.tick()
    world.run()
    order = ["/channel", "/channel/a-1", "/owners", "/ids", "/ids/a-1", "/owners/a-1", "/evicted"]
    positions = [asked.index(f"{paths.group(GROUP)}{part}") for part in order]
    assert positions == sorted(positions)


def test_rule_2_an_unreadable_record_holds_all_of_its_topics_until_its_consumer_is_evicted_and_its_lease_is_over() -> (
    None
):
    """Let `Member.blocked_topics` return ()."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    agent = world.agents["a"]
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), b"garbage"),)))
    agent.silent = True
    world.add_agent("b")
    world.pass_time(900)
    assert not commands(world, world.agents["b"])
    assert world.owned()["b-1"] == {}
    world.pass_time(200)
    assert events(world, "member_left")[-1] == {"member": "a-1", "reason": "evicted"}
    assert world.owned() == {"b-1": {}}
    world.pass_time(SESSION_MS)
    assert len(world.owned()["b-1"]) == 4


@pytest.mark.parametrize("mode", ["incremental", "eager"])
def test_rule_2_who_has_lost_its_channel_leaves_or_is_evicted(mode: str) -> None:
    """It cannot be told anything, and does not know it. In `Moving._not_sent`, only leave it out."""
    world = world_with(GroupSettings(mode=mode, rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.zk.perform(Multi((Delete(paths.channel(GROUP, "a-1")),)))
    world.add_agent("b")
    world.pass_time(900)
    assert world.owned()["b-1"] == {}
    world.pass_time(200)
    assert events(world, "member_left")[-1] == {"member": "a-1", "reason": "evicted"}
    world.pass_time(SESSION_MS)
    assert len(world.owned()["b-1"]) == 4


def test_rule_2_a_commands_disappearance_is_not_an_acknowledgement() -> None:
    """Count a command as done when its node is gone: let `Plan.look_at` count it as served."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.set_topic("t", 6)
    world.pass_time(100)
    channel = paths.channel(GROUP, "a-1")
    (node,) = world.zk.children(channel)
    world.zk.perform(Multi((Delete(f"{channel}/{node}"),)))
    world.pass_time(1_100)
    (again,) = commands(world, world.agents["a"])
    assert set(again.partitions or ()) == {("t", 4), ("t", 5)}


def test_rule_3_a_start_whose_reply_was_lost_counts_as_held() -> None:
    """In `Moving._send`, do not append to `pending` before the answer."""
    world = world_with()
    process = world.leader()
    agent = world.add_agent("a")
    world.act(agent)
    run_until_commands_are_sent(world, process)
    world.zk.perform_next(process.session)  # it happened, and the answer is lost
    world.zk.disconnect(process.session)
    other = world.add_agent("b")
    world.act(other)
    world.zk.reconnect(process.session)
    agent.silent = True
    world.pass_time(1_000)
    assert {tp for start in commands(world, agent) for tp in start.partitions or ()} == {("t", n) for n in range(4)}
    assert world.owned()["b-1"] == {}


def test_rule_4_after_a_lost_reply_it_leads_only_with_its_own_node_of_the_last_election() -> None:
    """In `CoordinatorElector._coordinator_read`, do not compare the zxids."""
    world = World()
    world.create_group()
    process = world.add_coordinator()
    while not any(isinstance(call, Multi) and len(call.operations) == 2 for _id, call in process.session.sent):
        if process.session.sent:
            world.zk.perform_next(process.session)
        else:
            world.deliver(process)
    world.zk.perform_next(process.session)
    world.zk.disconnect(process.session)
    world.zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, b"9"),)))  # somebody was elected since
    world.zk.reconnect(process.session)
    world.run()
    assert process.machine.coordinator_elector.epoch == 10
    assert process.machine.coordinator_elector.state is ElectionState.LEADING


def test_rule_4_every_write_of_the_leader_checks_the_epoch() -> None:
    """Let `PartScheduler.write` leave out the fence."""
    world = world_with(GroupSettings(), "a", "b")
    process = world.leader()
    version = world.zk.nodes[paths.COORDINATOR_EPOCH].version
    agents = {agent.session.session_id for agent in world.agents.values()}
    world.zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, b"7"),)))  # deposed, and does not know it
    before = len(world.zk.transactions)
    world.set_topic("t", 8)
    while process.session.inbox or process.session.sent or process.computing:
        if process.machine.leadership is None:
            break
        world.run_once()
    written = [operations for operations in world.zk.transactions[before + 1 :] if agents]
    fenced = [ops for ops in written if ops[0] == Check(paths.COORDINATOR_EPOCH, version)]
    assert not fenced
    assert events(world, "leader_resigned")[-1]["reason"] == "another coordinator leads"


def test_rule_5_one_death_does_not_hold_up_the_others_of_its_transaction() -> None:
    """In `Moving._not_sent`, treat the refusal like a lost leadership, or do not drop the member."""
    world = world_with()
    process = world.leader()
    doomed, living = world.add_agent("a"), world.add_agent("b")
    world.act(doomed)
    world.act(living)
    run_until_commands_are_sent(world, process)
    world.kill_agent(doomed)
    world.zk.perform(Multi((Delete(paths.channel(GROUP, "a-1")),)))
    world.pass_time(1_000)
    assert len(world.owned()["b-1"]) == 4
    assert process.machine.coordinator_elector.state is ElectionState.LEADING


def test_rule_6_commands_check_the_settings_and_the_generation_rises_with_the_first_of_a_plan() -> None:
    """In `Moving._send`, leave out the check of the group or the generation."""
    world = world_with(GroupSettings(), "a")
    first = world.generation()
    sending = [
        ops for ops in world.zk.transactions if any("command-" in op.path for op in ops if isinstance(op, Create))
    ]
    assert sending
    for operations in sending:
        assert any(isinstance(op, Check) and op.path == paths.group(GROUP) and op.version >= 0 for op in operations)
    assert any(isinstance(op, SetContent) and op.path == paths.generation(GROUP) for op in sending[0])
    world.add_agent("b")
    world.pass_time(1_000)
    assert world.generation() == first + 1


def test_rule_10_the_acknowledgement_or_the_cancel_wins_never_both() -> None:
    """In `Moving._late`, drop the pending command before the answer to its deletion."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000, max_rebalance_retries=3))
    process = world.leader()
    agent = world.add_agent("a")
    agent.silent = True
    world.act(agent)
    agent.silent = False
    world.act(agent)
    agent.silent = True
    world.pass_time(990)
    world.now_us += 20_000
    world.tick()  # the deletion of the late start is on its way
    assert process.session.sent
    agent.silent = False
    world.act(agent)
    world.act(agent)  # the acknowledgement is quicker
    world.pass_time(500)
    assert len(world.owned()["a-1"]) == 4
    assert len(events(world, "command_sent")) == 1


def test_rule_12_a_late_start_is_cancelled_and_tried_again_then_its_consumer_is_evicted() -> None:
    """In `Moving.drop_cancelled`, never evict; or do not make the consumer a candidate again."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000, max_rebalance_retries=2), "a")
    other = world.add_agent("b")
    world.act(other)
    other.silent = True
    world.pass_time(3_900)
    starts = [event for event in events(world, "command_sent") if event["member"] == "b-1"]
    assert len(starts) == 3
    assert any("rebalance failed after 3 tries, still waiting for b-1" in warning for warning in world.warnings)
    assert events(world, "rebalance_finished")[-1]["outcome"] in {"failed", "finished"}
    world.pass_time(SESSION_MS)
    assert len(world.owned()["a-1"]) == 4


def test_rule_12_only_late_starts_in_a_row_count() -> None:
    """In `Moving._acknowledged`, do not begin to count anew: who is late now and then would be evicted some day."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000, max_rebalance_retries=1), "a")
    other = world.add_agent("b")
    world.pass_time(1_000)
    for partitions in range(6, 14, 2):
        other.silent = True
        world.set_topic("t", partitions)
        world.pass_time(1_500)
        assert world.leader().machine.groups[GROUP].view.members["b-1"].failed_tries == 1
        other.silent = False
        world.pass_time(2_000)
        assert len(world.owned()["b-1"]) == partitions // 2
    assert not events(world, "member_left")


def test_rule_12_a_late_stop_means_eviction_and_one_whole_lease_of_waiting() -> None:
    """In `Leases._await_lease`, wait for nothing."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(1_200)
    assert paths.evicted(GROUP, "a-1") in world.zk.nodes
    evicted = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert (evicted.lease_ms, len(evicted.partitions)) == (SESSION_MS * 2 // 3, 4)
    world.pass_time(3_700)
    assert world.owned() == {"b-1": {}}
    world.pass_time(400)
    assert len(world.owned()["b-1"]) == 4
    assert paths.evicted(GROUP, "a-1") not in world.zk.nodes


def test_rule_12_a_broken_connection_does_not_begin_the_lease_anew() -> None:
    """In `Leases._await_lease`, count from now each time."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(1_200)
    leader = world.leader()
    for _ in range(3):
        world.pass_time(1_000)
        world.zk.disconnect(leader.session)
        world.run()
        world.zk.reconnect(leader.session)
        world.run()
    assert world.owned() == {"b-1": {}}
    world.pass_time(900)  # 5.1 s since the stop was sent
    assert len(world.owned()["b-1"]) == 4
    assert paths.evicted(GROUP, "a-1") not in world.zk.nodes


def test_rule_12_a_new_leader_waits_a_whole_lease_again() -> None:
    """Count the lease from `evicted_at_ms`."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(3_000)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(3_900)
    assert world.owned() == {"b-1": {}}
    world.pass_time(400)
    assert len(world.owned()["b-1"]) == 4


def test_rule_15_a_topic_that_was_created_again_is_read_from_offsets_of_its_own() -> None:
    """Let `TopicReset.is_stale` return False."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"4711"),)))
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.pass_time(1_000)
    assert not world.zk.children(paths.offsets(GROUP, "t"))
    assert world.zk.nodes[paths.offsets(GROUP, "t")].content.startswith(b"id-2 czxid-")
    assert len(world.owned()["a-1"]) == 4
    (copy,) = copies(world)
    assert (copy.topic, copy.incarnation.split()[0], copy.offsets) == ("t", "id-1", {0: 4711})


def test_rule_15_also_when_the_leader_fails_in_between() -> None:
    """Keep the incarnation in memory only."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"4711"),)))
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", 4, "id-2")
    world.add_coordinator()
    world.pass_time(1_000)
    assert not world.zk.children(paths.offsets(GROUP, "t"))
    assert len(world.owned()["a-1"]) == 4


def test_rule_16_a_frozen_group_moves_nothing_and_starts_what_nobody_holds() -> None:
    """In `planning.admissible`, ignore `frozen`."""
    world = world_with(GroupSettings(), "a")
    world.configure(settings.encode(GroupSettings(frozen=True)))
    world.add_agent("b")
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 4
    assert world.leader().machine.groups[GROUP].state is GroupState.FROZEN
    world.set_topic("t", 6)
    world.pass_time(1_000)
    assert owner_of(world, ("t", 5)) is not None
    assert {("t", n) for n in range(4)} <= world.owned()["a-1"].keys()


def test_rule_17_a_static_members_partitions_wait_for_it_until_its_deadline() -> None:
    """Let `StaticMembers.absent` return {}."""
    world = world_with(GroupSettings(static_grace_ms=10_000), "a")
    static = world.add_agent("s", instance_id="pod-1")
    world.pass_time(1_000)
    had = set(world.owned()["s-1"])
    assert len(had) == 2
    world.kill_agent(static)
    world.pass_time(9_000)
    assert len(world.owned()["a-1"]) == 2
    world.add_agent("s2", instance_id="pod-1")
    world.pass_time(500)
    assert set(world.owned()["s2-1"]) == had
    world.kill_agent(world.agents["s2"])
    world.pass_time(11_000)
    assert len(world.owned()["a-1"]) == 4
    assert not world.zk.children(paths.static(GROUP))


def test_rule_18_while_offsets_are_reset_nobody_is_started() -> None:
    """In `GroupView.may_start`, ignore `starts_paused`."""
    world = world_with(GroupSettings(starts_paused=True), "a")
    assert world.owned() == {"a-1": {}}
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 4


def test_rule_19_what_the_dead_leave_is_removed() -> None:
    """In `Departures.end`, do not sweep; in `TopicReset.maybe_begin`, do not look for abandoned topics."""
    world = world_with(GroupSettings(), "a", "b")
    world.kill_agent(world.agents["b"])
    world.pass_time(1_000)
    assert world.zk.children(paths.channel(GROUP)) == ["a-1"]
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"4711"),)))
    world.delete_topic("t")
    world.pass_time(3_700_000)
    assert not world.zk.children(paths.offsets(GROUP))
    (copy,) = copies(world)
    assert copy.offsets == {0: 4711}


def test_rule_20_a_new_leader_adopts_pending_commands_and_moves_nothing_needlessly() -> None:
    """In `Loading._finish`, forget the commands that were found."""
    world = world_with(GroupSettings(), "a")
    agent = world.add_agent("b")
    world.act(agent)
    agent.silent = True
    world.pass_time(1_000)
    pending = commands(world, agent)
    assert [type(each) for each in pending] == [StartFetcher]
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(1_000)
    assert commands(world, agent) == pending
    assert owner_of(world, T0) == "a-1"
    agent.silent = False
    world.pass_time(1_000)
    world.assert_settled()
    assert commands(world, agent) == []


def static_pair(mode: str) -> World:
    """Return a world with a consumer `a`, and `s` of the instance pod-1, which share four partitions."""
    world = world_with(GroupSettings(mode=mode, static_grace_ms=10_000), "a")
    world.add_agent("s", instance_id="pod-1")
    world.pass_time(1_000)
    return world


@pytest.mark.parametrize("mode", [INCREMENTAL, EAGER])
def test_rule_17_a_static_member_that_comes_back_concerns_nobody_else(mode: str) -> None:
    """Let `StaticMembers.only_return` return False."""
    world = static_pair(mode)
    had = set(world.owned()["s-1"])
    told = len(events(world, "command_sent"))
    world.kill_agent(world.agents["s"])
    world.pass_time(1_000)
    world.add_agent("s2", instance_id="pod-1")
    world.pass_time(1_000)
    assert set(world.owned()["s2-1"]) == had
    assert [event["member"] for event in events(world, "command_sent")[told:]] == ["s2-1"]
    assert events(world, "rebalance_finished")[-1]["moved_count"] == 0


@pytest.mark.parametrize("mode", [INCREMENTAL, EAGER])
def test_rule_17_a_killed_static_member_waits_for_the_end_of_its_old_session_only(mode: str) -> None:
    """Let `StaticMembers.fenced` return {}."""
    world = static_pair(mode)
    had = set(world.owned()["s-1"])
    told = len(events(world, "command_sent"))
    world.agents["s"].silent = True
    world.add_agent("s2", instance_id="pod-1")
    world.pass_time(1_000)
    assert world.owned()["s2-1"] == {}
    world.kill_agent(world.agents["s"])
    world.pass_time(100)
    assert set(world.owned()["s2-1"]) == had
    assert {event["member"] for event in events(world, "command_sent")[told:]} == {"s-1", "s2-1"}


def test_rule_17_the_older_of_two_consumers_with_one_instance_is_told_to_leave_even_if_it_owns_nothing() -> None:
    """In `make_plan`, do not look at `fenced`."""
    world = static_pair(INCREMENTAL)
    world.set_topic("t", 1)  # one of the two is left with nothing
    world.pass_time(1_000)
    idle = next(name for name, owned in world.owned().items() if not owned)
    if idle == "a-1":
        world.add_agent("b", instance_id="pod-2")
        idle = "b-1"
    world.pass_time(1_000)
    assert world.owned()[idle] == {}
    instance = "pod-2" if idle == "b-1" else "pod-1"
    world.add_agent("c", instance_id=instance)
    world.pass_time(1_000)
    assert idle not in world.owned()
    assert "c-1" in world.owned()


def test_rule_17_a_frozen_group_fences_nobody() -> None:
    """In `StaticMembers.fenced`, do not look at `frozen`."""
    world = static_pair(INCREMENTAL)
    had = world.owned()
    world.configure(settings.encode(GroupSettings(frozen=True)))
    world.add_agent("s2", instance_id="pod-1")
    world.pass_time(1_000)
    assert world.owned() == {**had, "s2-1": {}}


@pytest.mark.parametrize(("mark", "reason"), [(LEFT, "closed"), (b"", "expired")])
def test_a_consumer_that_may_not_delete_its_nodes_leaves_by_a_mark(mark: bytes, reason: str) -> None:
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((SetContent(paths.channel(GROUP, "a-1"), mark),)))
    world.kill_agent(world.agents["a"])
    world.run()
    assert events(world, "member_left") == [{"member": "a-1", "reason": reason}]
    world.assert_nothing_left()
