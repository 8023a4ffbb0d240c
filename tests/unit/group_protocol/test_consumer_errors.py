"""What every request is answered in every state of a KIP-848 group; Kafka's own codes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.group_coordinator import GROUP, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, described, group_of, settle, topic_id
from zkrebalancer.group_protocol.answers import (
    ConsumerGroupDescribeAnswer,
    ConsumerGroupHeartbeatAnswer,
    DeleteGroupsAnswer,
    DescribeGroupsAnswer,
    ListGroupsAnswer,
    OffsetDeleteAnswer,
)
from zkrebalancer.group_protocol.effects import BucketLost
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    Request,
    SyncGroupRequest,
    TopicPartitions,
    TxnOffsetCommitRequest,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

STATES = ("none", "Empty", "Reconciling", "Stable", "Dead")
UNKNOWN, STALE, ILLEGAL, GONE, MISSING, OK = (
    E.UNKNOWN_MEMBER_ID,
    E.STALE_MEMBER_EPOCH,
    E.ILLEGAL_GENERATION,
    E.COORDINATOR_NOT_AVAILABLE,
    E.GROUP_ID_NOT_FOUND,
    E.NONE,
)
BEAT = ConsumerGroupHeartbeatRequest(GROUP, "a", 1)
JOIN = ConsumerGroupHeartbeatRequest(
    GROUP, "n", 0, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=("t",), topic_partitions=()
)


def place(state: str) -> tuple[Coordinator, int]:
    """Return a group in this state, with the epoch of its member "a"; "pod" is a static member."""
    coordinator = coordinator_with({"t": 4})
    if state == "none":
        return coordinator, 1
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    if state == "Reconciling":
        Client(coordinator, "c").beat()
    elif state in {"Empty", "Dead"}:
        a.beat(-1)
        b.beat(-1)
        if state == "Dead":
            coordinator.stores_at_once = False
            coordinator.send(DeleteGroupsRequest((GROUP,)))
            return coordinator, 2
    assert described(coordinator).group_state == state
    return coordinator, 2


Make = Callable[[int], Request]
TABLE: dict[str, tuple[Make, tuple[E, ...]]] = {
    "join": (lambda _: JOIN, (OK, OK, OK, OK, GONE)),
    "join, known instance": (
        lambda _: replace(JOIN, instance_id="pod"),
        (OK, OK, E.UNRELEASED_INSTANCE_ID, E.UNRELEASED_INSTANCE_ID, GONE),
    ),
    "beat": (lambda e: replace(BEAT, member_epoch=e), (UNKNOWN, UNKNOWN, OK, OK, GONE)),
    "beat, unknown": (lambda e: replace(BEAT, member_id="x", member_epoch=e), (*(UNKNOWN,) * 4, GONE)),
    "beat, later": (
        lambda e: replace(BEAT, member_epoch=e + 1),
        (UNKNOWN, UNKNOWN, E.FENCED_MEMBER_EPOCH, E.FENCED_MEMBER_EPOCH, GONE),
    ),
    "beat, fenced": (
        lambda e: replace(BEAT, member_epoch=e, instance_id="pod"),
        (UNKNOWN, UNKNOWN, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID, GONE),
    ),
    "leave": (lambda _: replace(BEAT, member_epoch=-1), (UNKNOWN, UNKNOWN, OK, OK, GONE)),
    "leave, unknown": (lambda _: replace(BEAT, member_id="x", member_epoch=-1), (*(UNKNOWN,) * 4, GONE)),
    "leave for a while": (
        lambda _: replace(BEAT, member_id="b", member_epoch=-2, instance_id="pod"),
        (UNKNOWN, UNKNOWN, OK, OK, GONE),
    ),
    "leave for a while, fenced": (
        lambda _: replace(BEAT, member_id="x", member_epoch=-2, instance_id="pod"),
        (UNKNOWN, UNKNOWN, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID, GONE),
    ),
    "commit": (lambda e: OffsetCommitRequest(GROUP, e, "a"), (MISSING, UNKNOWN, OK, OK, GONE)),
    "commit, earlier": (lambda e: OffsetCommitRequest(GROUP, e - 1, "a"), (MISSING, UNKNOWN, STALE, STALE, GONE)),
    "commit, later": (lambda e: OffsetCommitRequest(GROUP, e + 1, "a"), (MISSING, UNKNOWN, STALE, STALE, GONE)),
    "commit, unknown": (lambda e: OffsetCommitRequest(GROUP, e, "x"), (MISSING, *(UNKNOWN,) * 3, GONE)),
    "commit, no member": (lambda _: OffsetCommitRequest(GROUP), (OK, OK, UNKNOWN, UNKNOWN, GONE)),
    "in transaction": (lambda e: TxnOffsetCommitRequest(GROUP, e, "a"), (ILLEGAL, UNKNOWN, OK, OK, GONE)),
    "in transaction, earlier": (
        lambda e: TxnOffsetCommitRequest(GROUP, e - 1, "a"),
        (ILLEGAL, UNKNOWN, ILLEGAL, ILLEGAL, GONE),
    ),
    "in transaction, no member": (lambda _: TxnOffsetCommitRequest(GROUP), (OK, OK, OK, OK, GONE)),
    "in transaction, no epoch": (
        lambda _: TxnOffsetCommitRequest(GROUP, member_id="a"),
        (OK, OK, ILLEGAL, ILLEGAL, GONE),
    ),
    "fetch, a tool": (lambda _: OffsetFetchRequest(GROUP), (OK,) * 5),
    "fetch": (lambda e: OffsetFetchRequest(GROUP, "a", e), (OK, UNKNOWN, OK, OK, UNKNOWN)),
    "fetch, earlier": (lambda e: OffsetFetchRequest(GROUP, "a", e - 1), (OK, UNKNOWN, STALE, STALE, UNKNOWN)),
    "fetch, unknown": (lambda e: OffsetFetchRequest(GROUP, "x", e), (OK, *(UNKNOWN,) * 4)),
    "offset delete": (lambda _: OffsetDeleteRequest(GROUP, ("t",)), (MISSING, OK, OK, OK, MISSING)),
    "classic sync": (lambda e: SyncGroupRequest(GROUP, e, "a"), (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
    "classic heartbeat": (lambda e: HeartbeatRequest(GROUP, e, "a"), (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, GONE)),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("state", STATES)
def test_each_request_in_each_state(state: str, name: str) -> None:
    make, expected = TABLE[name]
    coordinator, epoch = place(state)
    if state == "Dead":
        coordinator.stores_at_once = False
    ticket = coordinator.send(make(epoch), 9)
    assert getattr(coordinator.answers.get(ticket), "error_code", None) is expected[STATES.index(state)]


@pytest.mark.parametrize(
    ("wrong", "version"),
    [
        (replace(JOIN, group_id=""), 1),
        (replace(JOIN, member_id=""), 1),
        (replace(JOIN, instance_id=""), 1),
        (replace(JOIN, rack_id=""), 1),
        (replace(JOIN, rebalance_timeout_ms=-1), 1),
        (replace(JOIN, topic_partitions=None), 1),
        (replace(JOIN, topic_partitions=(TopicPartitions(topic_id(1), (0,)),)), 1),
        (replace(JOIN, subscribed_topic_names=None), 1),
        (replace(BEAT, member_epoch=-3), 1),
        (replace(BEAT, member_epoch=-2), 1),
        (replace(BEAT, member_id="", member_epoch=-1), 0),
        (replace(BEAT, member_id=""), 0),
    ],
)
def test_an_invalid_heartbeat_is_refused_with_a_text(wrong: ConsumerGroupHeartbeatRequest, version: int) -> None:
    coordinator = coordinator_with({"t": 4})
    answer = coordinator.ask(wrong, ConsumerGroupHeartbeatAnswer, version)
    assert answer.error_code is E.INVALID_REQUEST
    assert answer.error_message is not None
    assert answer.error_message.endswith(".")
    assert coordinator.machine.group_names() == frozenset()


@pytest.mark.parametrize(
    "joins",
    [
        replace(JOIN, subscribed_topic_names=()),
        replace(JOIN, subscribed_topic_names=None, subscribed_topic_regex=""),
        replace(JOIN, subscribed_topic_names=("not-there",)),
    ],
)
def test_a_client_that_wants_no_topic_yet_is_a_member(joins: ConsumerGroupHeartbeatRequest) -> None:
    """In `validate`, look at the topics instead of whether there is a list: Java's client then ends.

    It makes the list from its own pattern, which may not match any topic yet.
    """
    coordinator = coordinator_with({"t": 4})
    answer = coordinator.ask(joins, ConsumerGroupHeartbeatAnswer, 1)
    assert (answer.error_code, answer.member_epoch) == (OK, 1)
    later = replace(BEAT, member_id="n", subscribed_topic_names=("t",), topic_partitions=())
    answer = coordinator.ask(later, ConsumerGroupHeartbeatAnswer, 1)
    assert answer.assignment is not None
    assert [topic.partitions for topic in answer.assignment.topic_partitions] == [(0, 1, 2, 3)]


def test_in_version_0_the_coordinator_gives_the_id() -> None:
    answer = coordinator_with({"t": 4}).ask(replace(JOIN, member_id=""), ConsumerGroupHeartbeatAnswer, 0)
    assert answer.error_code is OK
    assert answer.member_id


def test_commits_of_older_versions_are_not_for_members_of_this_protocol() -> None:
    coordinator, epoch = place("Stable")
    assert coordinator.commit("a", epoch, version=8) is E.UNSUPPORTED_VERSION
    assert coordinator.commit("x", epoch, version=8) is UNKNOWN


@pytest.mark.parametrize(
    ("state", "expected"), [*zip(STATES, (MISSING, OK, E.NON_EMPTY_GROUP, E.NON_EMPTY_GROUP, MISSING), strict=True)]
)
def test_a_group_is_deleted_in_each_state(state: str, expected: E) -> None:
    coordinator, _epoch = place(state)
    (result,) = coordinator.ask(DeleteGroupsRequest((GROUP,)), DeleteGroupsAnswer).results
    assert result.error_code is expected
    if expected is OK:
        assert GROUP not in coordinator.kept
        assert GROUP not in coordinator.machine.group_names()


def test_a_group_is_described_and_listed_with_its_own_type() -> None:
    coordinator, epoch = place("Stable")
    group = described(coordinator)
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (epoch, epoch, "uniform")
    member = group.members[1]
    assert (member.member_id, member.instance_id, member.member_epoch, member.member_type) == ("b", "pod", epoch, 1)
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("t",), None)
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, len(assigned.partitions)) == ("t", 2)
    assert member.assignment == member.target_assignment
    (listed,) = coordinator.ask(ListGroupsRequest(types_filter=("consumer",)), ListGroupsAnswer).groups
    assert (listed.group_state, listed.protocol_type, listed.group_type) == ("Stable", "consumer", "consumer")
    (classic,) = coordinator.ask(DescribeGroupsRequest((GROUP,)), DescribeGroupsAnswer, 6).groups
    assert (classic.error_code, classic.is_used) == (MISSING, True)


def test_a_classic_group_is_described_as_one_only() -> None:
    coordinator = coordinator_with({"t": 4})
    coordinator.stable("a")
    request = ConsumerGroupDescribeRequest((GROUP, "", "x"))
    codes = [group.error_code for group in coordinator.ask(request, ConsumerGroupDescribeAnswer).groups]
    assert codes == [MISSING, E.INVALID_GROUP_ID, MISSING]


def test_a_group_of_another_gateway_is_refused_and_its_waiting_clients_are_told() -> None:
    coordinator, epoch = place("Stable")
    coordinator.stores_at_once = False
    waiting = [coordinator.send(JOIN, 1), coordinator.send(replace(JOIN, member_id="m"), 1)]
    coordinator.step(BucketLost(bucket_of(GROUP)))
    coordinator.finish_writes()
    for ticket in [*waiting, coordinator.send(replace(BEAT, member_epoch=epoch), 1)]:
        assert coordinator.answer(ticket, ConsumerGroupHeartbeatAnswer).error_code is E.NOT_COORDINATOR
    assert described(coordinator).error_code is E.NOT_COORDINATOR


def test_offsets_of_topics_that_somebody_wants_stay() -> None:
    coordinator, _epoch = place("Stable")
    answer = coordinator.ask(OffsetDeleteRequest(GROUP, ("t", "u")), OffsetDeleteAnswer)
    assert answer.subscribed_topics == {"t"}


def test_a_member_of_another_protocol_type_cannot_join() -> None:
    coordinator, _epoch = place("Stable")
    ticket = coordinator.send(JoinGroupRequest(GROUP, "", SESSION_MS, "connect", RANGE), 3)
    assert coordinator.join_error(ticket) is E.INCONSISTENT_GROUP_PROTOCOL


def test_the_first_classic_client_of_a_central_group_is_a_member_though_it_wants_no_topic_yet() -> None:
    """In `consumer_classic.join`, raise the epoch only for a subscription: generation 0 would be of no group."""
    coordinator = coordinator_with({"t": 4}, GroupProtocolSettings(assigns_centrally=True))
    nothing = (JoinGroupProtocol("range", struct.pack(">hii", 0, 0, -1)),)
    ticket = coordinator.join(protocols=nothing)
    assert described(coordinator).group_epoch == 1
    coordinator.pass_time(SESSION_MS)  # for as long as it waits for a first share
    assert coordinator.joined(ticket).generation_id == 1


def test_a_group_that_is_named_many_times_is_described_once() -> None:
    """In `Machine._receive`, describe each: a request of 1 MB could ask for more than fits into memory."""
    coordinator, _epoch = place("Stable")
    names = (GROUP, "x", GROUP, "x")
    consumers = coordinator.ask(ConsumerGroupDescribeRequest(names), ConsumerGroupDescribeAnswer).groups
    classic = coordinator.ask(DescribeGroupsRequest(names), DescribeGroupsAnswer).groups
    assert [[one.group_id for one in groups] for groups in (consumers, classic)] == [[GROUP, "x"]] * 2
