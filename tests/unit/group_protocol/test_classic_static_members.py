"""Static members of a classic group: they come back to what they had, and fence their former selves."""

from __future__ import annotations

import pytest

from tests.support.group_coordinator import DELAY_MS, GROUP, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from zkrebalancer.group_protocol.answers import LeaveGroupAnswer
from zkrebalancer.group_protocol.classic_roster import MIN_REBALANCE_MS
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol, LeaveGroupRequest, MemberIdentity

A = JoinGroupProtocol("A", b"A")


def test_a_static_member_that_comes_back_has_what_it_had_and_nobody_notices() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    back = coordinator.joined(coordinator.join(instance="pod"))
    assert (back.error_code, back.generation_id, back.skip_assignment) == (E.NONE, 1, False)
    assert back.member_id != ids["b"]
    assert coordinator.synced(coordinator.sync(back.member_id, 1)).assignment == f"for {ids['b']}".encode()
    assert coordinator.heartbeat(ids["a"], 1) is E.NONE
    assert coordinator.heartbeat(ids["b"], 1, "pod") is E.FENCED_INSTANCE_ID
    assert coordinator.commit(ids["b"], 1, "pod") is E.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_comes_back_does_not_assign(version: int) -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"a": "pod"})
    back = coordinator.joined(coordinator.join(instance="pod", version=version))
    if version == 9:
        assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)
    else:
        assert (back.leader, back.skip_assignment, back.members) == (ids["a"], False, ())
    coordinator.crash()
    assert coordinator.synced(coordinator.sync(back.member_id, 1)).assignment == f"for {ids['a']}".encode()


def test_a_static_member_that_comes_back_with_another_protocol_makes_all_join_again() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", instances={"a": "pod"})
    ticket = coordinator.join(instance="pod", protocols=(A,))
    assert coordinator.join_error(ticket) is E.INCONSISTENT_GROUP_PROTOCOL
    ticket = coordinator.join(instance="pod", protocols=(A, *RANGE))
    answer = coordinator.joined(ticket)
    assert (answer.generation_id, answer.protocol_name) == (2, "A")
    assert ids["a"] != answer.member_id


def test_a_static_member_that_comes_back_while_it_waits_fences_itself() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    waiting = coordinator.join(ids["b"], instance="pod", protocols=(*RANGE, A))
    back = coordinator.join(instance="pod")
    assert coordinator.join_error(waiting) is E.FENCED_INSTANCE_ID
    leader = coordinator.join(ids["a"])
    assert coordinator.joined(back).generation_id == coordinator.joined(leader).generation_id == 2
    syncing = coordinator.sync(coordinator.joined(back).member_id, 2)
    again = coordinator.join(instance="pod")
    assert coordinator.synced(syncing).error_code is E.FENCED_INSTANCE_ID
    assert coordinator.is_waiting(again)
    assert coordinator.state() == "PreparingRebalance"


def test_a_replacement_that_cannot_be_stored_leaves_the_former_self() -> None:
    """In `Join._take_back`, keep what the later self has registered, such as its session."""
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    coordinator.stores_at_once = False
    ticket = coordinator.join(instance="pod", protocols=(*RANGE, A), session_ms=3 * SESSION_MS)
    assert coordinator.is_waiting(ticket)
    coordinator.finish_writes(E.NOT_COORDINATOR)
    assert coordinator.joined(ticket).error_code is E.NOT_COORDINATOR
    assert coordinator.heartbeat(ids["b"], 1, "pod") is E.NONE
    assert coordinator.state() == "Stable"
    coordinator.pass_time(SESSION_MS)
    assert ids["b"] not in {member.member_id for member in coordinator.describe().members}


@pytest.mark.parametrize("protocols", [RANGE, (*RANGE, A)])
@pytest.mark.parametrize("error", [E.NONE, E.COORDINATOR_NOT_AVAILABLE])
def test_static_members_that_waited_longer_than_their_sessions_are_missed_when_they_are_silent_afterwards(
    protocols: tuple[JoinGroupProtocol, ...], error: E
) -> None:
    """In `_generation_stored` or `_store_replacement`, start no session: the group is never empty, nor deleted."""
    coordinator = Coordinator()
    ids = coordinator.stable("a", instances={"a": "pod"})
    coordinator.stores_at_once = False
    as_former = ids["a"] if protocols != RANGE else ""
    ticket = coordinator.join(as_former, instance="pod", protocols=protocols)
    coordinator.pass_time(SESSION_MS)
    coordinator.finish_writes(error)
    assert coordinator.joined(ticket).error_code is error
    assert coordinator.state() != "Empty"
    coordinator.pass_time(SESSION_MS + 2 * REBALANCE_MS)
    assert coordinator.state() == "Empty"


def test_of_two_restarts_in_quick_succession_the_later_one_stays() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    coordinator.stores_at_once = False
    first, second = coordinator.join(instance="pod"), coordinator.join(instance="pod")
    assert coordinator.join_error(first) is E.FENCED_INSTANCE_ID
    coordinator.finish_writes()
    member_id = coordinator.joined(second).member_id
    assert coordinator.synced(coordinator.sync(member_id, 1)).assignment == f"for {ids['b']}".encode()


def test_a_static_member_keeps_its_place_through_a_rebalance_in_which_it_is_silent() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    ticket = coordinator.join(ids["a"])
    for _ in range(REBALANCE_MS // 5_000):
        coordinator.heartbeat(ids["b"], 1, "pod")
        coordinator.pass_time(5_000)
    assert {member.member_id for member in coordinator.joined(ticket).members} == set(ids.values())


def test_static_members_of_which_none_joins_are_waited_for_until_their_sessions_end() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"a": "one", "b": "two"})
    coordinator.join(client_id="c", version=4)
    coordinator.join(ids["a"], instance="one", protocols=(*RANGE, A))
    coordinator.ask(LeaveGroupRequest(GROUP, (MemberIdentity("", "one"),)), LeaveGroupAnswer)
    for _ in range(2 * REBALANCE_MS // 5_000):
        coordinator.heartbeat(ids["b"], 1, "two")
        coordinator.pass_time(5_000)
    assert coordinator.state() == "PreparingRebalance"
    coordinator.pass_time(SESSION_MS)
    assert coordinator.state() == "Empty"


@pytest.mark.parametrize("rebalance_ms", [-(2**31), 0, 1])
@pytest.mark.parametrize("has_crashed", [False, True])
def test_static_members_that_leave_no_time_for_a_rebalance_do_not_keep_the_gateway_busy(
    rebalance_ms: int, *, has_crashed: bool
) -> None:
    """In `rebalance_timeout_ms`, take what clients say: no step ends any more, or a thousand are made each second.

    Another gateway that takes the group over would hang, too: the departure is stored with the next generation.
    """
    coordinator = Coordinator()
    joins = {"s": coordinator.join(instance="pod", rebalance_ms=rebalance_ms), "d": coordinator.join(client_id="d")}
    coordinator.pass_time(DELAY_MS)
    ids = coordinator.settle(joins)
    coordinator.leave(ids["d"])
    if has_crashed:
        coordinator.crash()
        assert coordinator.state() == "Stable"
        coordinator.leave(ids["d"])
    for _ in range(3):
        assert coordinator.state() == "PreparingRebalance"
        assert coordinator.machine.next_deadline_ms() == coordinator.now_ms + MIN_REBALANCE_MS
        coordinator.pass_time(MIN_REBALANCE_MS)
    coordinator.pass_time(SESSION_MS)
    assert coordinator.state() == "Empty"
