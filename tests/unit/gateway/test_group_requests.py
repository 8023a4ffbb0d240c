"""Members of a group that has others at the brokers are refused, each with the error that makes its client let go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from zkrebalancer.gateway.group_requests import GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.group_protocol.answers import (
    ConsumerGroupHeartbeatAnswer,
    HeartbeatAnswer,
    JoinGroupAnswer,
    LeaveGroupAnswer,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header

OURS = {
    "JoinGroup": JoinGroupAnswer(ErrorCode.NONE, "m"),
    "Heartbeat": HeartbeatAnswer(ErrorCode.NONE),
    "LeaveGroup": LeaveGroupAnswer(ErrorCode.NONE),
    "ConsumerGroupHeartbeat": ConsumerGroupHeartbeatAnswer(ErrorCode.NONE),
}


def error_of(name: str, fields: dict[str, Any], *, is_elsewhere: bool) -> ErrorCode:
    def receive(_request: object, _version: int, _client: object, when_answered: Any) -> None:
        when_answered(OURS[name])

    groups = cast("Groups", SimpleNamespace(receive=receive, is_settled=True))
    store = SimpleNamespace(is_elsewhere=lambda _group: is_elsewhere, was_elsewhere=lambda _group: is_elsewhere)
    version = 5 if name == "JoinGroup" else 1
    asked = GroupRequests(groups, cast("OffsetStore", store), Metrics())
    header = Header(KEYS[name], version, 1, "c")
    content = codec.encode(f"{name}Request", version, {"group_id": "g", **fields})
    answer = asked.answer(header, content, "h", is_coordinator=True)
    return ErrorCode(codec.decode(f"{name}Response", version, answer)["error_code"])


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("JoinGroup", {"member_id": ""}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("JoinGroup", {"member_id": "m"}, ErrorCode.NONE),  # refused, a cooperative client would read on
        ("Heartbeat", {"member_id": "m"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": 0}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": -1}, ErrorCode.NONE),
        ("LeaveGroup", {"member_id": "m"}, ErrorCode.NONE),
    ],
)
def test_who_is_refused_while_the_group_has_members_at_the_brokers(
    name: str, fields: dict[str, Any], expected: ErrorCode
) -> None:
    assert error_of(name, fields, is_elsewhere=True) is expected
    assert error_of(name, fields, is_elsewhere=False) is ErrorCode.NONE
