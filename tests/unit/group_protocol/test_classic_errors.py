"""What every request is answered in every state of a classic group; Kafka's own codes. None: it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.group_coordinator import DELAY_MS, GROUP, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from zkrebalancer.group_protocol.answers import (
    DeleteGroupsAnswer,
    DescribeGroupsAnswer,
    LeaveGroupAnswer,
    ListGroupsAnswer,
    OffsetCheckAnswer,
    OffsetDeleteAnswer,
)
from zkrebalancer.group_protocol.effects import BucketLoading, BucketLost
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    Request,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

OTHER = (JoinGroupProtocol("other", b""),)
BOTH = (*RANGE, *OTHER)
STATES = ("none", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")


@dataclass
class Place:
    """A group in a state; `leader` and `follower` are its members, or were; the follower is static."""

    coordinator: Coordinator
    leader: str = "nobody"
    follower: str = "somebody"
    generation: int = 1


def place(state: str) -> Place:
    coordinator = Coordinator()
    if state == "none":
        return Place(coordinator)
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    there = Place(coordinator, ids["a"], ids["b"])
    if state == "PreparingRebalance":
        coordinator.join(client_id="c")
    elif state == "CompletingRebalance":
        joins = [coordinator.join(client_id="c"), coordinator.join(there.leader)]
        joins.append(coordinator.join(there.follower, instance="pod"))
        assert {coordinator.join_error(ticket) for ticket in joins} == {E.NONE}
    elif state in {"Empty", "Dead"}:
        coordinator.leave(there.leader, there.follower)
        if state == "Dead":
            coordinator.stores_at_once = False
            coordinator.send(DeleteGroupsRequest((GROUP,)))
    there.generation = coordinator.generation() if state != "Dead" else 2
    assert coordinator.state() == state
    return there


def join(there: Place, member_id: str = "", protocols: tuple[JoinGroupProtocol, ...] = RANGE, **more: str) -> Request:
    protocol_type = more.get("protocol_type", "consumer")
    instance = more.get("instance")
    return JoinGroupRequest(GROUP, member_id, SESSION_MS, protocol_type, protocols, REBALANCE_MS, instance)


def sync(there: Place, member_id: str, later: int = 0, **more: str) -> Request:
    return SyncGroupRequest(
        GROUP, there.generation + later, member_id, more.get("instance"), more.get("type"), more.get("name")
    )


def beat(there: Place, member_id: str, later: int = 0, instance: str | None = None) -> Request:
    return HeartbeatRequest(GROUP, there.generation + later, member_id, instance)


def commit(there: Place, member_id: str, later: int = 0, instance: str | None = None) -> Request:
    return OffsetCommitRequest(GROUP, there.generation + later, member_id, instance)


def in_transaction(there: Place, member_id: str, later: int = 0, instance: str | None = None) -> Request:
    return TxnOffsetCommitRequest(GROUP, there.generation + later, member_id, instance)


UNKNOWN, ILLEGAL, AGAIN, GONE = (
    E.UNKNOWN_MEMBER_ID,
    E.ILLEGAL_GENERATION,
    E.REBALANCE_IN_PROGRESS,
    (E.COORDINATOR_NOT_AVAILABLE),
)
MIXED, FENCED, MISSING, OK = E.INCONSISTENT_GROUP_PROTOCOL, E.FENCED_INSTANCE_ID, E.GROUP_ID_NOT_FOUND, E.NONE
# What is sent -> the code in each of STATES.
TABLE: dict[str, tuple[Callable[[Place], Request], tuple[E | None, ...]]] = {
    "join, no id": (join, (None, None, None, None, None, GONE)),
    "join, no id, no common protocol": (lambda p: join(p, "", OTHER), (None, None, MIXED, MIXED, MIXED, GONE)),
    "join, no id, no protocol": (lambda p: join(p, "", ()), (MIXED, MIXED, MIXED, MIXED, MIXED, GONE)),
    "join, no id, no type": (lambda p: join(p, protocol_type=""), (MIXED, MIXED, MIXED, MIXED, MIXED, GONE)),
    "join, no id, other type": (lambda p: join(p, protocol_type="connect"), (None, None, MIXED, MIXED, MIXED, GONE)),
    "join, no id, known instance": (lambda p: join(p, instance="pod"), (None, None, None, None, OK, GONE)),
    "join, leader": (lambda p: join(p, p.leader), (UNKNOWN, UNKNOWN, None, OK, None, GONE)),
    "join, follower": (lambda p: join(p, p.follower, instance="pod"), (UNKNOWN, UNKNOWN, None, OK, OK, GONE)),
    "join, follower, changed": (
        lambda p: join(p, p.follower, BOTH, instance="pod"),
        (UNKNOWN, UNKNOWN, None, None, None, GONE),
    ),
    "join, unknown id": (lambda p: join(p, "x"), (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "join, unknown instance": (
        lambda p: join(p, p.leader, instance="x"),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    ),
    "join, fenced": (lambda p: join(p, "x", instance="pod"), (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED, GONE)),
    "sync, leader": (lambda p: sync(p, p.leader), (UNKNOWN, UNKNOWN, AGAIN, OK, OK, GONE)),
    "sync, follower": (lambda p: sync(p, p.follower), (UNKNOWN, UNKNOWN, AGAIN, None, OK, GONE)),
    "sync, unknown": (lambda p: sync(p, "x"), (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "sync, fenced": (lambda p: sync(p, "x", instance="pod"), (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED, GONE)),
    "sync, unknown instance": (lambda p: sync(p, p.leader, instance="x"), (*(UNKNOWN,) * 5, GONE)),
    "sync, later": (lambda p: sync(p, p.leader, 1), (UNKNOWN, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, GONE)),
    "sync, earlier": (lambda p: sync(p, p.leader, -1), (UNKNOWN, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, GONE)),
    "sync, type": (lambda p: sync(p, p.leader, type="connect"), (UNKNOWN, UNKNOWN, MIXED, MIXED, MIXED, GONE)),
    "sync, name": (lambda p: sync(p, p.leader, name="other"), (UNKNOWN, UNKNOWN, MIXED, MIXED, MIXED, GONE)),
    "heartbeat": (lambda p: beat(p, p.leader), (UNKNOWN, UNKNOWN, AGAIN, OK, OK, GONE)),
    "heartbeat, unknown": (lambda p: beat(p, "x"), (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "heartbeat, fenced": (lambda p: beat(p, "x", 0, "pod"), (UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED, GONE)),
    "heartbeat, static": (lambda p: beat(p, p.follower, 0, "pod"), (UNKNOWN, UNKNOWN, AGAIN, OK, OK, GONE)),
    "heartbeat, later": (lambda p: beat(p, p.leader, 1), (UNKNOWN, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, GONE)),
    "commit": (lambda p: commit(p, p.leader), (MISSING, UNKNOWN, OK, AGAIN, OK, GONE)),
    "commit, unknown": (lambda p: commit(p, "x"), (MISSING, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "commit, later": (lambda p: commit(p, p.leader, 1), (MISSING, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, GONE)),
    "commit, fenced": (lambda p: commit(p, "x", 0, "pod"), (MISSING, UNKNOWN, FENCED, FENCED, FENCED, GONE)),
    "commit, no member": (lambda _: OffsetCommitRequest(GROUP), (OK, OK, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "commit, no generation": (
        lambda p: OffsetCommitRequest(GROUP, -1, p.leader),
        (OK, OK, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "in transaction": (lambda p: in_transaction(p, p.leader), (ILLEGAL, UNKNOWN, OK, OK, OK, GONE)),
    "in transaction, unknown": (lambda p: in_transaction(p, "x"), (ILLEGAL, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "in transaction, later": (
        lambda p: in_transaction(p, p.leader, 1),
        (ILLEGAL, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, GONE),
    ),
    "in transaction, fenced": (
        lambda p: in_transaction(p, "x", 0, "pod"),
        (ILLEGAL, UNKNOWN, FENCED, FENCED, FENCED, GONE),
    ),
    "in transaction, no member": (lambda _: TxnOffsetCommitRequest(GROUP), (OK, OK, OK, OK, OK, GONE)),
    "fetch": (lambda _: OffsetFetchRequest(GROUP), (OK,) * 6),
    "offset delete": (
        lambda _: OffsetDeleteRequest(GROUP, ("t",)),
        (MISSING, OK, OK, OK, OK, MISSING),
    ),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("state", STATES)
def test_each_request_in_each_state(state: str, name: str) -> None:
    make, expected = TABLE[name]
    there = place(state)
    ticket = there.coordinator.send(make(there), version=3 if name.startswith("join") else 9)
    answer = there.coordinator.answers.get(ticket)
    assert getattr(answer, "error_code", None) == expected[STATES.index(state)]


@pytest.mark.parametrize("state", STATES)
def test_a_newcomer_asks_for_its_id_first_in_each_state(state: str) -> None:
    coordinator = place(state).coordinator
    assert coordinator.join_error(coordinator.join(version=4)) is (GONE if state == "Dead" else E.MEMBER_ID_REQUIRED)


LEAVES: dict[str, tuple[tuple[E, ...], Callable[[Place], MemberIdentity]]] = {
    "leader": ((UNKNOWN, UNKNOWN, OK, OK, OK), lambda p: MemberIdentity(p.leader)),
    "static": ((UNKNOWN, UNKNOWN, OK, OK, OK), lambda p: MemberIdentity(p.follower, "pod")),
    "by instance": ((UNKNOWN, UNKNOWN, OK, OK, OK), lambda _: MemberIdentity("", "pod")),
    "unknown instance": ((UNKNOWN,) * 5, lambda _: MemberIdentity("", "x")),
    "unknown": ((UNKNOWN,) * 5, lambda _: MemberIdentity("x")),
    "nobody": ((UNKNOWN,) * 5, lambda _: MemberIdentity("")),
    "fenced": ((UNKNOWN, UNKNOWN, FENCED, FENCED, FENCED), lambda _: MemberIdentity("x", "pod")),
}


@pytest.mark.parametrize("who", LEAVES)
@pytest.mark.parametrize("state", STATES[:-1])
def test_a_member_leaves_in_each_state(state: str, who: str) -> None:
    expected, make = LEAVES[who]
    for version in (2, 5):
        there = place(state)
        answer = there.coordinator.ask(LeaveGroupRequest(GROUP, (make(there),)), LeaveGroupAnswer, version)
        (member,) = answer.members
        assert member.error_code == expected[STATES.index(state)]
        assert answer.error_code == (member.error_code if version == 2 else OK)


def test_nobody_leaves_a_dead_group() -> None:
    there = place("Dead")
    request = LeaveGroupRequest(GROUP, (MemberIdentity(there.leader),))
    assert there.coordinator.ask(request, LeaveGroupAnswer).error_code is GONE


@pytest.mark.parametrize(
    ("state", "expected"),
    [*zip(STATES, (MISSING, OK, *(E.NON_EMPTY_GROUP,) * 3, MISSING), strict=True)],
)
def test_a_group_is_deleted_in_each_state(state: str, expected: E) -> None:
    coordinator = place(state).coordinator
    (result,) = coordinator.ask(DeleteGroupsRequest((GROUP,)), DeleteGroupsAnswer).results
    assert (result.group_id, result.error_code) == (GROUP, expected)
    if expected is OK:
        assert GROUP not in coordinator.kept
        assert coordinator.state() == "Dead"
        assert GROUP not in coordinator.machine.group_names()


def test_offsets_of_a_group_of_another_type_stay_while_it_has_members() -> None:
    coordinator = Coordinator()
    coordinator.join(protocol_type="connect")
    answer = coordinator.ask(OffsetDeleteRequest(GROUP, ("t",)), OffsetDeleteAnswer)
    assert answer.error_code is E.NON_EMPTY_GROUP


def test_offsets_of_subscribed_topics_stay() -> None:
    subscription = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
    coordinator = Coordinator()
    coordinator.join(protocols=(JoinGroupProtocol("range", subscription),))
    coordinator.pass_time(DELAY_MS)
    answer = coordinator.ask(OffsetDeleteRequest(GROUP, ("t", "u")), OffsetDeleteAnswer)
    assert (answer.error_code, answer.subscribed_topics) == (OK, frozenset({"t"}))


def test_no_offsets_are_deleted_while_a_subscription_cannot_be_read() -> None:
    coordinator = Coordinator()
    coordinator.join(protocols=(JoinGroupProtocol("range", b"\0\1\0\0\0\2\0\1t"),))
    answer = coordinator.ask(OffsetDeleteRequest(GROUP, ("t", "u")), OffsetDeleteAnswer)
    assert answer.subscribed_topics == {"t", "u"}


def test_older_commits_to_an_unknown_group_get_the_older_code() -> None:
    coordinator = Coordinator()
    assert coordinator.commit("m", 3, version=8) is ILLEGAL
    assert coordinator.commit("m", 3, version=9) is MISSING


def test_a_group_has_a_name() -> None:
    coordinator = Coordinator()
    for request in (
        JoinGroupRequest("", "", SESSION_MS, "consumer", RANGE),
        SyncGroupRequest("", 1, "m"),
        HeartbeatRequest("", 1, "m"),
        LeaveGroupRequest("", ()),
        TxnOffsetCommitRequest(""),
        OffsetDeleteRequest("", ()),
    ):
        assert getattr(coordinator.answers[coordinator.send(request)], "error_code", None) is E.INVALID_GROUP_ID
    assert coordinator.ask(OffsetCommitRequest(""), OffsetCheckAnswer).error_code is OK
    assert coordinator.ask(OffsetFetchRequest(""), OffsetCheckAnswer).error_code is OK


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_a_session_is_neither_too_short_nor_too_long(timeout_ms: int) -> None:
    coordinator = Coordinator()
    ticket = coordinator.send(JoinGroupRequest(GROUP, "", timeout_ms, "consumer", RANGE))
    assert coordinator.join_error(ticket) is E.INVALID_SESSION_TIMEOUT


def test_a_group_of_another_gateway_is_refused_and_its_waiting_clients_are_told() -> None:
    there = place("PreparingRebalance")
    coordinator = there.coordinator
    waiting = coordinator.join(there.leader)
    coordinator.step(BucketLost(bucket_of(GROUP)))
    assert coordinator.join_error(waiting) is E.NOT_COORDINATOR
    for request in (
        join(there),
        sync(there, there.leader),
        beat(there, there.leader),
        LeaveGroupRequest(GROUP, ()),
        commit(there, there.leader),
        OffsetFetchRequest(GROUP),
        in_transaction(there, there.leader),
        OffsetDeleteRequest(GROUP, ()),
    ):
        assert getattr(coordinator.answers[coordinator.send(request)], "error_code", None) is E.NOT_COORDINATOR
    assert coordinator.describe().error_code is E.NOT_COORDINATOR
    (deleted,) = coordinator.ask(DeleteGroupsRequest((GROUP,)), DeleteGroupsAnswer).results
    assert deleted.error_code is E.NOT_COORDINATOR


def test_a_lost_bucket_costs_no_look_at_the_names_of_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Machine._lose`, compute the bucket of each group: with many, a gateway stops for seconds."""
    coordinator = Coordinator()
    waiting = [coordinator.join(group=str(number)) for number in range(100)]
    asked: list[str] = []

    def noted(name: str) -> int:
        asked.append(name)
        return bucket_of(name)

    monkeypatch.setattr("zkrebalancer.group_protocol.machine.bucket_of", noted)
    coordinator.lose_buckets()
    assert (asked, coordinator.machine.group_names()) == ([], frozenset())
    assert {coordinator.join_error(ticket) for ticket in waiting} == {E.NOT_COORDINATOR}


def test_while_groups_are_loaded_clients_wait_but_heartbeats_pass() -> None:
    there = place("none")
    coordinator = there.coordinator
    coordinator.step(BucketLoading(bucket_of(GROUP)))
    assert coordinator.heartbeat("m", 1) is OK
    assert coordinator.join_error(coordinator.join()) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.commit("m", 1) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.ask(ListGroupsRequest(), ListGroupsAnswer).error_code is E.COORDINATOR_LOAD_IN_PROGRESS


def test_groups_are_described_and_listed() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", instances={"b": "pod"})
    described = coordinator.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    members = {member.member_id: member for member in described.members}
    shown = members[ids["b"]]
    assert (shown.group_instance_id, shown.client_id, shown.client_host) == ("pod", "b", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (b"metadata", f"for {ids['b']}".encode())
    coordinator.leave(ids["a"])
    described = coordinator.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {member.member_metadata for member in described.members} == {b""}

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
        answer = coordinator.ask(ListGroupsRequest(states, types), ListGroupsAnswer)
        return [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in answer.groups]

    mine = [(GROUP, "consumer", "PreparingRebalance", "classic")]
    assert listed() == listed((" preparingREBALANCE",)) == listed((), ("Classic",)) == mine
    assert listed(("Stable",)) == listed((), ("consumer",)) == []


def test_a_group_that_is_not_there_is_dead_or_from_version_6_on_not_found() -> None:
    coordinator = Coordinator()
    request = DescribeGroupsRequest(("x",))
    (old,) = coordinator.ask(request, DescribeGroupsAnswer, 5).groups
    (new,) = coordinator.ask(request, DescribeGroupsAnswer, 6).groups
    assert (old.error_code, old.group_state) == (OK, "Dead")
    assert (new.error_code, new.group_state, new.error_message) == (MISSING, "Dead", "Group x not found.")
