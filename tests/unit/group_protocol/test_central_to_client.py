"""A gateway is started again with the other `--assign`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import Coordinator
from tests.support.kip848_group import Client, coordinator_with
from tests.unit.group_protocol.test_central import CENTRAL, EVERYTHING, Member, all_owned, central_group, run
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings


@pytest.mark.parametrize("rounds", [7, 40], ids=["while partitions move", "settled"])
@pytest.mark.parametrize("kind", [ClassicConsumer, Client])
def test_a_central_group_whose_gateway_lets_clients_assign_again(kind: type[Member], rounds: int) -> None:
    """Its members have what they had; then the group works as at a broker, and may become central again."""
    coordinator, outside = central_group()
    a, b, c = ClassicConsumer(coordinator, "a"), kind(coordinator, "b"), ClassicConsumer(coordinator, "c")
    run(outside, a, b, rounds=rounds)
    coordinator.settings = GroupProtocolSettings()
    coordinator.crash()
    for members in ((a, b), (a, b, c)):
        act_alone(coordinator, *members)
        assert all_owned(*members) == EVERYTHING
        assert all(member.owned for member in (a, c)[: len(members) - 1])
    coordinator.leave(a.member_id)
    if isinstance(b, Client):
        b.send(-1)
    else:
        coordinator.leave(b.member_id)
    act_alone(coordinator, c)
    assert (coordinator.state(), c.numbers()) == ("Stable", EVERYTHING)
    coordinator.settings = CENTRAL
    coordinator.crash()
    run(Outside(coordinator), c)
    assert c.numbers() == EVERYTHING


@pytest.mark.parametrize(("name", "reported"), [("payments", ["m"]), ("payments/ids", []), ("..", []), ("g" * 201, [])])
def test_members_of_a_group_whose_name_is_no_nodes_name_are_not_reported(name: str, reported: list[str]) -> None:
    """In `ConsumerGroup`, let any group be central: those of `payments/ids` would register as members of `payments`."""
    coordinator = coordinator_with({"t": 4})
    join = ConsumerGroupHeartbeatRequest(
        name, "m", 0, rebalance_timeout_ms=10_000, subscribed_topic_names=("t",), topic_partitions=()
    )
    joined = coordinator.ask(join, ConsumerGroupHeartbeatAnswer, 1)
    coordinator.settings = CENTRAL
    coordinator.crash()
    assert sorted({member.member_id for report in coordinator.unheard for member in report.members}) == reported
    present = replace(join, member_epoch=joined.member_epoch, subscribed_topic_names=None, topic_partitions=None)
    error = coordinator.ask(present, ConsumerGroupHeartbeatAnswer, 1).error_code
    assert error is (E.NONE if reported else E.INVALID_GROUP_ID)


def act_alone(coordinator: Coordinator, *members: Member) -> None:
    """Let members act without a rebalancer."""
    for _ in range(60):
        for member in members:
            member.act()
            owned = all_owned(*members)
            assert len(owned) == len(set(owned)), "two owners"
        coordinator.pass_time(1_000)
