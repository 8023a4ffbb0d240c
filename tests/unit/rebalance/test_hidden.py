"""A node of one topic, static member or consumer may not be read: nothing else stands still."""

from __future__ import annotations

import pytest

from tests.support.groups import events, owner_of, world_of_two_topics, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import MAX_STATIC_GRACE_MS
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance import coordinator
from zkrebalancer.rebalance.states import REST, GroupState, MemberState
from zkrebalancer.rebalance.view import GroupView

MODES = pytest.mark.parametrize("mode", [EAGER, INCREMENTAL])
MARK, RECORD = paths.offsets(GROUP, "t"), paths.incarnations(GROUP, "t")
GIVEN = paths.given(GROUP, "a-1")
LEADERS = ["next", "same"]
STATIC = paths.static(GROUP, "i")
RECORDS = pytest.mark.parametrize("path", [STATIC, paths.static(GROUP)])  # one record, or all of them


def hide(world: World, path: str) -> None:
    world.zk.denied.add(("", path, Right.READ))


def read_again(world: World, leader: str = "next") -> None:
    """Let the group be read, by the next leader or by the present one, which knows it."""
    if leader == "next":
        world.kill_coordinator(world.leader())
        world.add_coordinator()
    else:
        world.zk.disconnect(world.leader().session)
        world.zk.reconnect(world.leader().session)
    world.pass_time(3_000)


def show_again(world: World) -> None:
    world.zk.denied.clear()
    world.pass_time(40_000)  # the pauses between tries are up to 30 s; reconciliations come later
    world.assert_settled()


def view_of(world: World) -> GroupView:
    return world.leader().machine.groups[GROUP].view


def state_of(world: World) -> GroupState:
    return world.leader().machine.groups[GROUP].state


def count_logged(world: World, path: str) -> int:
    return sum(f"{path}: no permission" in text or f"{path} may not be read" in text for text in world.warnings)


def triggers(world: World) -> list[object]:
    return [event["trigger"] for event in events(world, "rebalance_requested")]


# ---- a topic's mark, or its record


def world_with_a_hidden_topic(mode: str, path: str) -> World:
    """`t` and `u` are read by two members; the next leader may not read what the offsets of `t` say."""
    world = world_of_two_topics(GroupSettings(mode=mode), "a", "b")
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"4711"),)))
    hide(world, path)
    return world


@MODES
@pytest.mark.parametrize("path", [MARK, RECORD])
def test_other_topics_are_served_while_the_marks_of_one_are_hidden(mode: str, path: str) -> None:
    """In `expected_refusals`, expect only that it is missing; in `Planning._standing`, return {}.

    In `Planning._is_eager`, do not look at hidden topics: an eager group would stop what it may not start again.
    """
    world = world_with_a_hidden_topic(mode, path)
    before = world.owned()
    read_again(world)
    assert world.owned() == before
    assert state_of(world) in REST
    world.kill_agent(world.agents["b"])
    world.zk.expire(world.agents["b"].session)
    world.pass_time(5_000)
    owned = world.owned()["a-1"].keys()
    assert owned >= {("u", 0), ("u", 1)}
    assert owned >= {tp for tp in before["a-1"] if tp[0] == "t"}
    assert state_of(world) in REST
    world.pass_time(300_000)
    assert count_logged(world, path) == 1
    show_again(world)


def test_a_newcomer_takes_nothing_of_a_topic_whose_marks_are_hidden() -> None:
    """It could not be started there. In `Planning.begin`, look at topics that wait for a reset only."""
    world = world_with_a_hidden_topic(INCREMENTAL, MARK)
    before = {tp: owner_of(world, tp) for tp in (("t", 0), ("t", 1))}
    read_again(world)
    for client in "cde":
        world.add_agent(client, {"t": 1})
    world.pass_time(5_000)
    assert {tp: owner_of(world, tp) for tp in before} == before
    assert state_of(world) in REST
    show_again(world)


@pytest.mark.parametrize("path", [MARK, RECORD])
def test_offsets_are_not_deleted_while_their_marks_are_hidden_and_are_afterwards(path: str) -> None:
    """In `OffsetMarks.is_stale`, judge by one of the two; in `names_to_store`, overwrite what nobody has read."""
    world = world_with_a_hidden_topic(INCREMENTAL, path)
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    for agent in world.agents.values():  # what is held is not reset in any case
        world.kill_agent(agent)
        world.zk.expire(agent.session)
    world.set_topic("t", 2, "id-2")
    mark = world.zk.nodes[MARK].content
    world.add_coordinator()
    world.pass_time(3_000)
    assert (world.zk.children(MARK), world.zk.nodes[MARK].content) == (["0"], mark)
    show_again(world)
    assert world.zk.children(MARK) == []


@pytest.mark.parametrize(("waits", "reason"), [("reconciliation", "outdated"), ("reconnected", "reconnected")])
def test_groups_wait_for_their_turn_when_a_right_is_back(
    monkeypatch: pytest.MonkeyPatch, waits: str, reason: str
) -> None:
    """In `Group`, load at once if something is `Readable`: all groups would be read at the same time.

    Replace any reason: a group that was read because of a broken connection would keep its time limits.
    """
    world = world_with_a_hidden_topic(INCREMENTAL, MARK)
    read_again(world)
    turns = world.leader().machine.groups_to_load
    monkeypatch.setattr(coordinator, "MAX_LOADING", 0)
    turns.add(GROUP, waits)
    world.zk.denied.clear()
    world.pass_time(40_000)
    assert "outdated" not in triggers(world)
    assert turns.next() == (GROUP, reason), "a reconciliation waits until the group is at rest"
    turns.add(GROUP, "outdated")
    monkeypatch.undo()
    world.tick()
    show_again(world)
    assert not view_of(world).hidden_topics


def test_offsets_of_an_absent_topic_are_not_deleted_while_their_record_is_hidden() -> None:
    """In `OffsetMarks.absent_topics`, count it."""
    world = world_with_a_hidden_topic(INCREMENTAL, RECORD)
    read_again(world)
    world.delete_topic("t")
    world.pass_time(7_200_000)
    assert world.zk.children(MARK) == ["0"]
    world.zk.denied.clear()
    world.pass_time(4_000_000)
    assert MARK not in world.zk.nodes


# ---- a static member


def world_with_a_static_member(
    leader: str, grace_ms: int, path: str = STATIC, mode: str = INCREMENTAL
) -> tuple[World, dict[tuple[str, int], int]]:
    """`i` is away, and its record is hidden when the group is read again; returns what it has had."""
    world = world_with(GroupSettings(static_grace_ms=grace_ms, mode=mode), "a")
    agent = world.add_agent("s", instance_id="i")
    world.pass_time(2_000)
    had = world.owned()["s-1"]
    assert len(had) == 2
    world.kill_agent(agent)
    world.zk.expire(agent.session)
    world.pass_time(1_000)
    hide(world, path)
    read_again(world, leader)
    return world, had


@RECORDS
def test_only_what_had_no_holder_may_wait_for_a_static_member_that_a_leader_does_not_know(path: str) -> None:
    """In `StaticMembers._note_hidden`, let nothing wait: somebody may still read it; or count what is free later."""
    world, had = world_with_a_static_member("next", 20_000, path)
    world.add_agent("b")
    world.pass_time(60_000)
    assert not [tp for tp in had if owner_of(world, tp)]
    world.kill_agent(world.agents["a"])
    world.zk.expire(world.agents["a"].session)
    world.set_topic("t", 5)
    world.pass_time(10_000)
    assert len(world.owned()["b-1"]) == 3
    assert count_logged(world, path) == 1
    show_again(world)


@MODES
@RECORDS
def test_no_plan_waits_for_what_may_wait_for_a_static_member(path: str, mode: str) -> None:
    """In `Planning.admissible`, give it away: each trigger makes a plan, for which an eager group stops everything."""
    world, had = world_with_a_static_member("next", 20_000, path, mode)
    told = len(events(world, "command_sent")), len(events(world, "rebalance_planned"))
    read_again(world, "same")
    world.pass_time(60_000)
    assert state_of(world) in REST
    assert (len(events(world, "command_sent")), len(events(world, "rebalance_planned"))) == told
    assert len(world.owned()["a-1"]) == 2
    world.pass_time(MAX_STATIC_GRACE_MS)
    assert had.keys() <= world.owned()["a-1"].keys()


@RECORDS
def test_the_longest_grace_ends_though_the_record_is_hidden(path: str) -> None:
    """In `StaticMembers._note_hidden`, set no timer."""
    world, _had = world_with_a_static_member("next", 20_000, path)
    world.pass_time(MAX_STATIC_GRACE_MS + 1_000)
    assert len(world.owned()["a-1"]) == 4


@RECORDS
def test_a_static_member_with_a_hidden_record_is_served_without_one(path: str) -> None:
    """In `Batch._static_record`, replace what may be needed; in `_static_read`, forget that there is one."""
    world, _had = world_with_a_static_member("next", 20_000, path)
    content = world.zk.nodes[paths.static(GROUP, "i")].content
    world.add_agent("s2", instance_id="i")
    world.set_topic("t", 8)
    world.pass_time(5_000)
    assert len(world.owned()["s2-1"]) >= 2
    assert world.zk.nodes[paths.static(GROUP, "i")].content == content
    assert "outdated" not in triggers(world)
    show_again(world)


@MODES
@RECORDS
def test_rule_17_holds_for_a_member_whose_record_is_hidden(path: str, mode: str) -> None:
    """In `StaticMembers._remember`, note nothing; in `GroupView.may_start`, look at `awaited` only.

    In `is_out_of_reach`, do not ask what can be recorded: new partitions have no owner, and an eager group stops it.
    """
    world = world_with(GroupSettings(mode=mode), "b")
    agent = world.add_agent("s", instance_id="i", static_grace_ms=20_000)
    world.pass_time(2_000)
    had = world.owned()["s-1"]
    hide(world, path)
    read_again(world)
    world.set_topic("t", 6)
    world.pass_time(5_000)
    assert world.owned()["s-1"] == had
    assert len(world.owned()["b-1"]) == 4
    assert state_of(world) in REST
    world.kill_agent(agent)
    world.zk.expire(agent.session)
    read_again(world, "same")
    world.pass_time(15_000)
    assert not [tp for tp in had if owner_of(world, tp)]
    world.pass_time(5_000)
    assert len(world.owned()["b-1"]) == 6


@pytest.mark.parametrize("nodes", [("ids",), ("ids", "owners", "channel")])
@pytest.mark.parametrize("grace_ms", [None, 20_000])
def test_rule_17_holds_for_a_member_whose_registration_is_hidden(nodes: tuple[str, ...], grace_ms: int | None) -> None:
    """In `StaticMembers._note_unread`, note nothing: its record gets a deadline, and is deleted.

    In `_had`, look at registrations only; in `GroupView.cannot_be_recorded`, too: what it gets is in no record.
    """
    world = world_with(GroupSettings(static_grace_ms=20_000), "b")
    agent = world.add_agent("s", instance_id="i", static_grace_ms=grace_ms)
    world.pass_time(2_000)
    had = world.owned()["s-1"]
    for node in nodes:
        hide(world, f"{paths.group(GROUP)}/{node}/s-1")
    read_again(world)
    world.set_topic("t", 8)
    world.pass_time(30_000)
    assert world.owned()["s-1"] == had
    assert len(world.owned()["b-1"]) == 6
    record = ownership.decode_static(world.zk.nodes[paths.static(GROUP, "i")].content)
    assert (record.consumer, record.deadline_ms) == ("s-1", None)
    world.kill_agent(agent)
    world.zk.expire(agent.session)
    world.pass_time(1_000)
    read_again(world)
    world.pass_time(15_000)
    assert not [tp for tp in had if owner_of(world, tp)]
    world.pass_time(5_000)
    world.assert_settled()


@RECORDS
def test_rule_17_what_waits_for_an_unknown_member_includes_what_a_member_had_whose_registration_is_hidden(
    path: str,
) -> None:
    """In `StaticMembers._await_too`, do nothing."""
    world = world_with(GroupSettings(), "b")
    agent = world.add_agent("s", instance_id="i", static_grace_ms=20_000)
    world.pass_time(2_000)
    had = world.owned()["s-1"]
    hide(world, paths.ids(GROUP, "s-1"))
    hide(world, path)
    read_again(world)
    world.kill_agent(agent)
    world.zk.expire(agent.session)
    world.pass_time(20_000)
    assert not [tp for tp in had if owner_of(world, tp)]
    world.pass_time(MAX_STATIC_GRACE_MS)
    world.assert_settled()


def test_who_had_nothing_lets_nothing_wait_for_longer() -> None:
    """In `StaticMembers._await_too`, do not ask what it had: while it restarts, what has no owner waits for ever."""
    world = world_with(GroupSettings(), "b")
    agent = world.add_agent("s", instance_id="i", static_grace_ms=20_000)
    world.pass_time(2_000)
    hide(world, paths.ids(GROUP, "s-1"))
    hide(world, paths.static(GROUP, "i"))
    hide(world, paths.ids(GROUP, "n-1"))
    newcomer = world.add_agent("n")
    world.pass_time(2_000)
    read_again(world)
    assert not view_of(world).members["n-1"].held()
    ends_us = []
    for gone in (newcomer, agent):
        world.kill_agent(gone)
        world.zk.expire(gone.session)
        world.pass_time(20_000)
        awaited = view_of(world).awaited
        assert awaited is not None
        ends_us.append(awaited.until_us - world.now_us)
    longest_us = MAX_STATIC_GRACE_MS * 1_000
    assert ends_us[0] < longest_us - 20_000_000 <= ends_us[1]


@RECORDS
def test_a_hidden_static_member_keeps_its_grace_under_a_leader_that_knows_it(path: str) -> None:
    """In `GroupView.become`, forget it; in `note_stored`, count its version on: each write would be contradicted."""
    world, had = world_with_a_static_member("same", 200_000, path)
    world.pass_time(60_000)
    assert len(world.owned()["a-1"]) == 2
    world.add_agent("s2", instance_id="i")
    world.pass_time(2_000)
    assert world.owned()["s2-1"].keys() == had.keys()
    world.set_topic("t", 6)
    world.pass_time(2_000)
    assert len(world.owned()["s2-1"]) == 3
    assert state_of(world) in REST
    assert count_logged(world, path) == 1
    assert "outdated" not in triggers(world)
    show_again(world)


def test_who_left_for_good_and_came_back_unseen_is_served_while_all_records_are_hidden() -> None:
    """In `Batch.forget_statics`, keep the record that is gone: each write of it would be contradicted."""
    world = world_with(GroupSettings(), "a")
    agent = world.add_agent("s", instance_id="i")
    world.pass_time(2_000)
    hide(world, paths.static(GROUP))
    world.zk.disconnect(world.leader().session)
    world.zk.perform(Multi((Delete(STATIC),)))
    world.leave(agent)
    assert world.act(agent), "it registers"
    world.zk.reconnect(world.leader().session)
    world.pass_time(5_000)
    assert len(world.owned()["s-2"]) == 2
    assert state_of(world) in REST
    show_again(world)


# ---- the `given` node of a consumer


@MODES
@pytest.mark.parametrize("leader", LEADERS)
def test_who_was_given_something_hidden_keeps_it_and_the_others_are_served(mode: str, leader: str) -> None:
    """In `make_plan`, let it stop first; in `Member._implied_state`, let it be ready."""
    world = world_with(GroupSettings(mode=mode, rebalance_timeout_ms=2_000), "a", "b")
    before, content = world.owned(), world.zk.nodes[GIVEN].content
    hide(world, GIVEN)
    read_again(world, leader)
    assert view_of(world).members["a-1"].state is MemberState.UNREADABLE
    world.add_agent("c")
    world.pass_time(100_000)
    owned = world.owned()
    assert owned["a-1"] == before["a-1"]
    assert len(owned["b-1"]) + len(owned["c-1"]) == 2
    assert world.zk.nodes[GIVEN].content == content
    assert count_logged(world, GIVEN) == 1
    world.set_topic("t", 6)
    show_again(world)
    assert not events(world, "false_claim")
    assert view_of(world).members["a-1"].state is MemberState.READY


def test_what_somebody_claims_while_what_it_was_given_is_hidden_is_judged_as_soon_as_it_is_not() -> None:
    """In `GroupView.refresh`, note it as given: it would be true from then on."""
    world = world_with(GroupSettings(), "a", "b")
    world.agents["a"].silent = True
    world.rogues.add("a-1")
    hide(world, GIVEN)
    world.kill_coordinator(world.leader())
    claim = ownership.encode_owners(OwnersRecord(1, None, {("t", number): 0 for number in range(4)}))
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), claim),)))
    world.add_coordinator()
    world.pass_time(20_000)
    assert not events(world, "false_claim")
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert len(events(world, "false_claim")) == 1
    assert len(world.owned()["b-1"]) == 4


def test_the_end_of_a_session_is_seen_though_what_its_consumer_was_given_is_hidden() -> None:
    """In `GroupView.remove`, keep its path: the group would be read once more for nothing."""
    world = world_with(GroupSettings(), "a", "b")
    hide(world, GIVEN)
    read_again(world)
    world.kill_agent(world.agents["a"])
    world.zk.expire(world.agents["a"].session)
    world.pass_time(1_000)
    assert len(world.owned()["b-1"]) == 4
    assert GIVEN not in world.zk.nodes
    world.pass_time(60_000)
    assert "outdated" not in triggers(world)
    world.assert_settled()
