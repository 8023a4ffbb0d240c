"""A gateway that assigned centrally is started again with `--assign client`."""

from __future__ import annotations

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import Coordinator
from tests.support.kip848_group import Client
from tests.unit.group_protocol.test_central import CENTRAL, EVERYTHING, Member, all_owned, central_group, run
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


def act_alone(coordinator: Coordinator, *members: Member) -> None:
    """Let members act without a rebalancer."""
    for _ in range(60):
        for member in members:
            member.act()
            owned = all_owned(*members)
            assert len(owned) == len(set(owned)), "two owners"
        coordinator.pass_time(1_000)
