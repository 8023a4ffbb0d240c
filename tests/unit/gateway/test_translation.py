"""Decoded requests are the machine's requests, and its answers can be encoded, in every version that is offered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.gateway.test_group_requests import answered
from tests.unit.gateway.wire import ANYBODY
from zkrebalancer.gateway import translation
from zkrebalancer.gateway.group_requests import BY_MACHINE, GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.room import Arrived, Room
from zkrebalancer.group_protocol import answers, requests
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.schema import message

ANSWERS = {
    "JoinGroup": answers.JoinGroupAnswer(ErrorCode.UNKNOWN_MEMBER_ID, "m"),
    "SyncGroup": answers.SyncGroupAnswer(ErrorCode.NONE, "consumer", "range", b"x"),
    "Heartbeat": answers.HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS),
    "LeaveGroup": answers.LeaveGroupAnswer(ErrorCode.NONE, (answers.LeaveGroupMember("m", None, ErrorCode.NONE),)),
    "DescribeGroups": answers.DescribeGroupsAnswer((answers.DescribedGroup(ErrorCode.NONE, "g"),)),
    "ConsumerGroupHeartbeat": answers.ConsumerGroupHeartbeatAnswer(ErrorCode.FENCED_MEMBER_EPOCH, "", "m", 3, 5),
    "ConsumerGroupDescribe": answers.ConsumerGroupDescribeAnswer((answers.DescribedConsumerGroup(ErrorCode(0), ""),)),
    "ListGroups": answers.ListGroupsAnswer(ErrorCode.NONE, (answers.ListedGroup("g", "consumer", "Empty", "classic"),)),
}  # fmt: skip


def test_a_join_with_everything_in_it() -> None:
    protocol = {"name": "range", "metadata": b"m"}
    fields = {
        "group_id": "g", "member_id": "m", "session_timeout_ms": 6, "rebalance_timeout_ms": 7,
        "protocol_type": "consumer", "protocols": [protocol], "group_instance_id": "i", "reason": "r",
    }  # fmt: skip
    decoded = codec.decode("JoinGroupRequest", 9, codec.encode("JoinGroupRequest", 9, fields))
    expected = requests.JoinGroupRequest(
        "g", "m", 6, "consumer", (requests.JoinGroupProtocol("range", b"m"),), 7, "i", "r"
    )
    assert translation.build(requests.JoinGroupRequest, decoded) == expected


@pytest.mark.parametrize("name", BY_MACHINE)
def test_every_version_can_be_asked_and_answered(name: str) -> None:
    known = message(f"{name}Request").versions
    for version in range(known.first, known.last + 1):
        decoded = codec.decode(f"{name}Request", version, codec.encode(f"{name}Request", version, {}))
        if name == "LeaveGroup":
            assert len(translation.leave_group(version, decoded).members) == (version <= 2)
        else:
            assert isinstance(translation.build(BY_MACHINE[name], decoded), BY_MACHINE[name])
        answer = translation.fields_of(ANSWERS[name])
        if name == "JoinGroup":
            answer = translation.join_group_answer(version, answer)
        read = codec.decode(f"{name}Response", version, codec.encode(f"{name}Response", version, answer))
        assert _errors(read) == _errors(answer)


def _errors(fields: dict[str, Any]) -> list[int]:
    """Return the error codes of an answer and of the groups in it."""
    return [one["error_code"] for one in (fields, *fields.get("groups", ())) if one.get("error_code")]


def test_an_old_leave_is_one_member_that_leaves() -> None:
    expected = requests.LeaveGroupRequest("g", (requests.MemberIdentity("m"),))
    assert translation.leave_group(1, {"group_id": "g", "member_id": "m", "members": []}) == expected


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("JoinGroup", ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),  # else aiokafka ends
        ("JoinGroup", ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.GROUP_MAX_SIZE_REACHED),
        ("SyncGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS),  # else Java ends
        ("SyncGroup", ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.COORDINATOR_NOT_AVAILABLE),  # as above
        ("SyncGroup", ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS),
        ("ConsumerGroupHeartbeat", ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),  # as above
        ("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS),
    ],
)
def test_clients_are_told_errors_at_which_they_do_not_end(name: str, code: ErrorCode, told: ErrorCode) -> None:
    """In `GroupRequests._ask_machine`, answer what the machine does: clients that have to try again end."""
    kinds: dict[str, Any] = {
        "JoinGroup": lambda error: answers.JoinGroupAnswer(error, "m"),
        "SyncGroup": answers.SyncGroupAnswer,
        "Heartbeat": answers.HeartbeatAnswer,
        "ConsumerGroupHeartbeat": answers.ConsumerGroupHeartbeatAnswer,
    }
    assert answered(name, {"member_id": "m"}, kinds[name](code), is_elsewhere=False)["error_code"] == told


@pytest.mark.parametrize("version", [1, 7, 8])
def test_offsets_that_are_not_available_are_asked_for_again(version: int) -> None:
    """In `_fetched`, pass the error on: while ZooKeeper is away, members end at it."""
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    play = SimpleNamespace(
        holds=lambda _group: False, receive=lambda *given: given[-1](answers.OffsetCheckAnswer(ErrorCode.NONE))
    )
    store = SimpleNamespace(send=lambda _group, _name, _fields, when_answered: when_answered(unavailable))
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), Room())
    asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3]}]}
    content = codec.encode("OffsetFetchRequest", version, {**asked, "groups": [asked]})
    found = one.answer(Arrived(Header(KEYS["OffsetFetch"], version, 1, "c"), content), ANYBODY)
    answer = codec.decode("OffsetFetchResponse", version, found)
    group = answer["groups"][0] if answer["groups"] else answer
    (partition,) = group["topics"][0]["partitions"]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (group["error_code"], partition["error_code"]) == (loading if version > 1 else 0, loading)
