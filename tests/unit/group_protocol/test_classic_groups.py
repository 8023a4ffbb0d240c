"""A classic group beyond the table of errors: delays, votes, timeouts, static members, writes."""

from __future__ import annotations

import pytest

from tests.support.group_coordinator import DELAY_MS, GROUP, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from zkrebalancer.group_protocol.answers import LeaveGroupAnswer
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_states import ClassicState, InvalidTransitionError
from zkrebalancer.group_protocol.effects import Stored
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import (
    DeleteGroupsRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
)
from zkrebalancer.group_protocol.scheduler import Scheduler
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

A, B, C = (JoinGroupProtocol(name, name.encode()) for name in "ABC")

# ---- the first join


def test_the_first_join_waits_for_others_and_each_newcomer_extends_it() -> None:
    coordinator = Coordinator()
    first = coordinator.join()
    coordinator.pass_time(DELAY_MS - 1)
    second = coordinator.join()
    coordinator.pass_time(1)
    assert coordinator.is_waiting(first)
    coordinator.pass_time(DELAY_MS)
    assert {coordinator.joined(ticket).generation_id for ticket in (first, second)} == {1}


def test_the_first_join_is_over_at_once_when_nobody_else_comes() -> None:
    coordinator = Coordinator()
    ticket = coordinator.join()
    coordinator.pass_time(DELAY_MS)
    assert coordinator.join_error(ticket) is E.NONE


def test_the_first_join_ends_within_the_rebalance_timeout_though_newcomers_keep_coming() -> None:
    coordinator = Coordinator()
    tickets = []
    for _ in range(REBALANCE_MS // 1_000 + 2):
        tickets.append(coordinator.join())
        coordinator.pass_time(1_000)
    assert coordinator.join_error(tickets[0]) is E.NONE
    assert coordinator.joined(tickets[0]).generation_id == 1


def test_later_joins_do_not_wait_for_the_delay() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    joins = [coordinator.join(), coordinator.join(ids["a"])]
    assert [coordinator.joined(ticket).generation_id for ticket in joins] == [2, 2]


def test_from_version_4_on_a_dynamic_member_gets_an_id_first() -> None:
    coordinator = Coordinator()
    told = coordinator.joined(coordinator.join(version=4, client_id="app"))
    assert (told.error_code, told.member_id[:4]) == (E.MEMBER_ID_REQUIRED, "app-")
    assert coordinator.state() == "Empty"
    ticket = coordinator.join(told.member_id, version=4)
    coordinator.pass_time(DELAY_MS)
    assert coordinator.joined(ticket).member_id == told.member_id


def test_an_id_that_nobody_uses_is_forgotten_with_its_session_and_the_group_with_it() -> None:
    coordinator = Coordinator()
    told = coordinator.joined(coordinator.join(version=4))
    coordinator.pass_time(SESSION_MS)
    assert coordinator.machine.group_names() == frozenset()
    assert coordinator.join_error(coordinator.join(told.member_id, version=4)) is E.UNKNOWN_MEMBER_ID


def test_a_static_member_gets_no_id_first_and_an_id_that_was_given_out_is_not_for_static_members() -> None:
    coordinator = Coordinator()
    assert coordinator.is_waiting(coordinator.join(version=9, instance="pod"))
    told = coordinator.joined(coordinator.join(version=9))
    assert coordinator.join_error(coordinator.join(told.member_id, instance="x")) is E.UNKNOWN_SERVER_ERROR


def test_a_member_that_is_about_to_join_is_waited_for() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    told = coordinator.joined(coordinator.join(version=4))
    leader = coordinator.join(ids["a"])
    assert coordinator.is_waiting(leader)
    coordinator.join(told.member_id, version=4)
    assert coordinator.joined(leader).generation_id == 2


def test_ids_that_were_given_out_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrebalancer.group_protocol.classic_join.MAX_PENDING_MEMBERS", 2)
    coordinator = Coordinator()
    codes = [coordinator.join_error(coordinator.join(version=4)) for _ in range(3)]
    assert codes == [E.MEMBER_ID_REQUIRED, E.MEMBER_ID_REQUIRED, E.GROUP_MAX_SIZE_REACHED]


# ---- protocols


@pytest.mark.parametrize(
    ("lists", "chosen"),
    [
        ([(A, B), (B, A)], "A"),  # a draw: the first vote
        ([(A, B), (B, A), (B, A)], "B"),
        ([(A, B), (B,), (C, B)], "B"),  # the only one that all have
        ([(A, B, C), (C, A), (C, A), (A, C)], "A"),
        ([(A, A)], "A"),  # one that is listed twice is one
        ([(A, A, B), (B, A)], "A"),
    ],
)
def test_the_protocol_that_most_prefer_among_those_that_all_have(
    lists: list[tuple[JoinGroupProtocol, ...]], chosen: str
) -> None:
    coordinator = Coordinator()
    tickets = [coordinator.join(protocols=protocols) for protocols in lists]
    coordinator.pass_time(20 * DELAY_MS)
    answers = [coordinator.joined(ticket) for ticket in tickets]
    assert {answer.protocol_name for answer in answers} == {chosen}
    (members,) = [answer.members for answer in answers if answer.members]
    assert {member.metadata for member in members} == {chosen.encode()}


def test_a_protocol_that_a_member_lists_twice_is_not_one_of_two_members() -> None:
    coordinator = Coordinator()
    tickets = [coordinator.join(protocols=(A, B)), coordinator.join(protocols=(B,))]
    twice = coordinator.join(protocols=(A, A))
    assert coordinator.join_error(twice) is E.INCONSISTENT_GROUP_PROTOCOL
    coordinator.pass_time(20 * DELAY_MS)
    assert {coordinator.joined(ticket).protocol_name for ticket in tickets} == {"B"}


def test_any_protocol_type_is_served_with_opaque_bytes() -> None:
    coordinator = Coordinator()
    protocols = (JoinGroupProtocol("compatible", b"\xff\0 no subscription"),)
    ticket = coordinator.join(protocols=protocols, protocol_type="connect")
    coordinator.pass_time(DELAY_MS)
    answer = coordinator.joined(ticket)
    assert (answer.protocol_type, answer.members[0].metadata) == ("connect", protocols[0].metadata)
    synced = coordinator.synced(coordinator.sync(answer.member_id, 1, {answer.member_id: b"\xfe"}))
    assert (synced.protocol_type, synced.protocol_name, synced.assignment) == ("connect", "compatible", b"\xfe")


def test_an_emptied_group_may_take_another_type() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.leave(ids["a"])
    ticket = coordinator.join(protocol_type="connect")
    coordinator.pass_time(DELAY_MS)
    assert coordinator.joined(ticket).protocol_type == "connect"


# ---- size


def test_a_full_group_refuses_newcomers_but_not_its_members() -> None:
    coordinator = Coordinator(GroupProtocolSettings(group_max_size=2))
    ids = coordinator.stable("a", "b")
    assert coordinator.join_error(coordinator.join()) is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.state() == "Stable"
    joins = [coordinator.join(ids["a"]), coordinator.join(ids["b"])]
    assert {coordinator.join_error(ticket) for ticket in joins} == {E.NONE}


def test_while_a_group_joins_the_last_ones_are_too_many() -> None:
    coordinator = Coordinator(GroupProtocolSettings(group_max_size=2))
    tickets = [coordinator.join() for _ in range(3)]
    assert coordinator.join_error(tickets[2]) is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.is_waiting(tickets[0])


def test_a_group_that_is_too_large_when_loaded_is_made_smaller() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", "c")
    coordinator.settings = GroupProtocolSettings(group_max_size=2)
    coordinator.crash()
    assert coordinator.state() == "PreparingRebalance"
    joins = [coordinator.join(member_id) for member_id in ids.values()]
    assert [coordinator.join_error(ticket) for ticket in joins] == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]


# ---- timeouts


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    ticket = coordinator.join(ids["a"])
    for _ in range(REBALANCE_MS // 5_000):
        assert coordinator.is_waiting(ticket)
        assert coordinator.heartbeat(ids["b"], 1) is E.REBALANCE_IN_PROGRESS
        coordinator.pass_time(5_000)
    assert [member.member_id for member in coordinator.joined(ticket).members] == [ids["a"]]
    assert coordinator.heartbeat(ids["b"], 2) is E.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_after_its_session_and_heartbeats_and_commits_renew_it() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", "c")
    for member_id in ids.values():
        coordinator.heartbeat(member_id, 1)
    for _ in range(3):
        coordinator.pass_time(SESSION_MS - 1)
        assert coordinator.heartbeat(ids["a"], 1) is (E.NONE if coordinator.state() == "Stable" else AGAIN)
        assert coordinator.commit(ids["b"], 1) is E.NONE
    assert {member.member_id for member in coordinator.describe().members} == {ids["a"], ids["b"]}
    assert coordinator.state() == "PreparingRebalance"


AGAIN = E.REBALANCE_IN_PROGRESS


def test_a_member_that_waits_for_us_needs_no_heartbeat() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    ticket = coordinator.join(ids["a"])
    for _ in range(3):
        coordinator.heartbeat(ids["b"], 1)
        coordinator.pass_time(SESSION_MS - 1)
    assert coordinator.is_waiting(ticket)
    coordinator.pass_time(SESSION_MS)
    assert coordinator.joined(ticket).members


def test_a_member_that_waited_longer_than_its_session_is_missed_when_it_is_silent_afterwards() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    for _ in range(3):
        coordinator.pass_time(SESSION_MS - 1)
        coordinator.heartbeat(ids["b"], 1)
    coordinator.join(ids["b"])
    assert coordinator.state() == "CompletingRebalance"
    coordinator.pass_time(SESSION_MS)
    assert coordinator.state() == "Empty"


def test_the_join_of_a_new_member_ends_though_the_group_never_comes_together() -> None:
    coordinator = Coordinator(GroupProtocolSettings(new_member_join_timeout_ms=20_000))
    ids = coordinator.stable("a")
    ticket = coordinator.join(client_id="new")
    for _ in range(4):
        coordinator.heartbeat(ids["a"], 1)
        coordinator.pass_time(5_000)
    assert coordinator.joined(ticket).error_code is E.UNKNOWN_MEMBER_ID


def test_members_that_never_ask_for_their_assignment_are_removed_in_time() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    joins = [coordinator.join(ids["a"]), coordinator.join(ids["b"])]
    waiting = coordinator.sync(ids["b"], 2)
    for _ in range(REBALANCE_MS // 5_000):  # the leader lives, but does not assign
        coordinator.heartbeat(ids["a"], 2)
        coordinator.pass_time(5_000)
    assert coordinator.synced(waiting).error_code is AGAIN
    assert {member.member_id for member in coordinator.describe().members} == {ids["b"]}
    assert all(coordinator.join_error(ticket) is E.NONE for ticket in joins)


def test_in_a_stable_group_too_a_member_that_never_syncs_is_removed() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.sync(ids["a"], 2, {})
    for _ in range(REBALANCE_MS // 5_000):
        assert coordinator.state() == "Stable"
        for member_id in ids.values():
            coordinator.heartbeat(member_id, 2)
        coordinator.pass_time(5_000)
    assert coordinator.state() == "PreparingRebalance"


def test_a_group_without_members_is_deleted_after_its_retention() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.leave(ids["a"])
    coordinator.pass_time(coordinator.settings.empty_group_retention_ms)
    assert coordinator.kept == {}
    assert coordinator.machine.group_names() == frozenset()


def test_a_group_whose_members_came_back_is_not_deleted() -> None:
    """In `ClassicGroup.prepare_rebalance`, let the time of its retention go on."""
    coordinator = Coordinator(GroupProtocolSettings(empty_group_retention_ms=2 * SESSION_MS))
    coordinator.leave(coordinator.stable("a")["a"])
    coordinator.pass_time(SESSION_MS)
    (member_id,) = coordinator.stable("b").values()
    for _ in range(6):
        coordinator.pass_time(SESSION_MS // 2)
        assert coordinator.heartbeat(member_id, 3) is E.NONE


# ---- leaving


def test_several_leave_at_once_and_the_others_rebalance_once() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", "c", "d", instances={"d": "pod"})
    members = (MemberIdentity(ids["a"]), MemberIdentity("x"), MemberIdentity("", "pod"))
    answer = coordinator.ask(LeaveGroupRequest(GROUP, members), LeaveGroupAnswer, 5)
    assert [member.error_code for member in answer.members] == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE]
    joins = [coordinator.join(ids["b"]), coordinator.join(ids["c"])]
    assert {coordinator.joined(ticket).generation_id for ticket in joins} == {2}
    assert {coordinator.joined(ticket).leader for ticket in joins} == {ids["b"]}


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    joining = coordinator.join(ids["b"], (*RANGE, A))
    coordinator.leave(ids["b"])
    assert coordinator.join_error(joining) is E.UNKNOWN_MEMBER_ID
    coordinator.join(ids["a"])
    syncing = coordinator.sync(ids["a"], 2, {})
    assert coordinator.synced(syncing).error_code is E.NONE


def test_an_id_that_was_given_out_can_leave() -> None:
    coordinator = Coordinator()
    told = coordinator.joined(coordinator.join(version=4))
    assert coordinator.leave(told.member_id).members[0].error_code is E.NONE
    assert coordinator.machine.group_names() == frozenset()


# ---- repeats


def test_a_join_and_a_sync_that_come_again_end_the_older_ones() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    first, second = coordinator.join(ids["a"]), coordinator.join(ids["a"])
    assert coordinator.join_error(first) is AGAIN
    coordinator.join(ids["b"])
    assert coordinator.join_error(second) is E.NONE
    first, second = coordinator.sync(ids["b"], 2), coordinator.sync(ids["b"], 2)
    assert coordinator.synced(first).error_code is AGAIN
    coordinator.sync(ids["a"], 2, {ids["b"]: b"one"})
    assert coordinator.synced(second).assignment == b"one"


def test_a_leader_that_assigns_again_before_the_first_is_stored_changes_nothing() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.join(ids["a"])
    coordinator.stores_at_once = False
    coordinator.sync(ids["a"], 2, {ids["a"]: b"first"})
    again = coordinator.sync(ids["a"], 2, {ids["a"]: b"second"})
    coordinator.finish_writes()
    assert coordinator.synced(again).assignment == b"first"
    coordinator.crash()
    assert coordinator.synced(coordinator.sync(ids["a"], 2)).assignment == b"first"


# ---- writes that fail, and the table


def test_a_generation_that_cannot_be_stored_is_told_to_all_who_joined() -> None:
    coordinator = Coordinator()
    coordinator.stores_at_once = False
    ticket = coordinator.join()
    coordinator.pass_time(DELAY_MS)
    assert coordinator.is_waiting(ticket)
    coordinator.finish_writes(E.COORDINATOR_NOT_AVAILABLE)
    told = coordinator.joined(ticket)
    assert told.error_code is E.COORDINATOR_NOT_AVAILABLE
    coordinator.stores_at_once = True
    assert coordinator.joined(coordinator.join(told.member_id)).generation_id == 2


def test_nobody_is_answered_before_the_generation_is_stored_in_which_it_is() -> None:
    coordinator = Coordinator()
    coordinator.stores_at_once = False
    first = coordinator.join()
    coordinator.pass_time(DELAY_MS)
    second = coordinator.join()  # ends the generation that is being stored
    (older, _newer) = coordinator.writes
    coordinator.step(Stored(older.write_id))
    assert coordinator.is_waiting(first)
    assert coordinator.is_waiting(second)
    coordinator.finish_writes()
    assert {coordinator.joined(ticket).generation_id for ticket in (first, second)} == {2}


def test_a_join_that_is_sent_again_waits_for_the_write_too_and_no_sync_passes_before() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.stores_at_once = False
    coordinator.join(ids["a"])
    again = coordinator.join(ids["a"])
    assert coordinator.is_waiting(again)
    assert coordinator.synced(coordinator.sync(ids["a"], 2, {})).error_code is AGAIN
    coordinator.finish_writes()
    assert coordinator.joined(again).generation_id == 2


def test_a_deletion_that_fails_says_so() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.leave(ids["a"])
    coordinator.stores_at_once = False
    ticket = coordinator.send(DeleteGroupsRequest((GROUP, "x")))
    assert coordinator.is_waiting(ticket)
    coordinator.finish_writes(E.NOT_COORDINATOR)
    results = coordinator.answers[ticket].results  # type: ignore[union-attr]
    assert [result.error_code for result in results] == [E.NOT_COORDINATOR, E.GROUP_ID_NOT_FOUND]
    coordinator.crash()
    assert coordinator.state() == "Empty"


def test_a_join_of_version_0_takes_its_session_for_the_rebalance() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a")
    coordinator.leave(ids["a"])
    tickets = [coordinator.send(JoinGroupRequest(GROUP, "", 7_000, "consumer", RANGE), 0) for _ in range(2)]
    coordinator.pass_time(7_000)
    first = coordinator.joined(tickets[0]).member_id
    coordinator.sync(first, 3, {})
    again = coordinator.send(JoinGroupRequest(GROUP, first, 7_000, "consumer", RANGE), 0)
    for _ in range(7):
        assert coordinator.is_waiting(again)
        coordinator.heartbeat(coordinator.joined(tickets[1]).member_id, 3)
        coordinator.pass_time(1_000)
    assert len(coordinator.joined(again).members) == 1


def test_a_transition_that_is_not_in_the_table_tells_the_story() -> None:
    group = ClassicGroup("orders", GroupProtocolSettings(), Scheduler(), lambda: None)
    with pytest.raises(InvalidTransitionError, match=r"'orders': 0: Empty -> Stable"):
        group.transition_to(ClassicState.STABLE)
