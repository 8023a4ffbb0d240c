"""What clients of a gateway hear that has just begun."""

from __future__ import annotations

import gevent
import pytest

from tests.support.deadlines import WITHIN_S
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway import service
from zkrebalancer.gateway.service import Gateway, GatewayConfig
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS, gateway_of
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

WAIT_S = WITHIN_S


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A gateway that does not run: the test does its work."""
    monkeypatch.setattr(service, "JOIN_WAIT_S", 10 * WAIT_S)
    monkeypatch.setattr(service, "Session", lambda *_: ModelSession())
    return Gateway(GatewayConfig("z:1", ("gw", 1), "gw", [], None, 6_000), GroupProtocolSettings())


def test_who_asks_for_the_nodes_too_early_waits_until_the_gateway_is_one_of_them(gateway: Gateway) -> None:
    """In `Gateway.learn`, answer at once: the client would see brokers only, and no groups."""
    asked = gevent.spawn(gateway.learn, [])
    gevent.sleep(0)
    gateway._keep_up()
    assert asked.get(timeout=WAIT_S).gateways == {0: ("gw", 1)}


def test_without_zookeeper_the_nodes_are_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> None:
    monkeypatch.setattr(gateway, "_join_until_ms", 0)
    assert gevent.spawn(gateway.learn, []).get(timeout=WAIT_S).gateways == {}


def test_the_gateway_of_a_bucket_is_looked_up_once_for_all_its_groups(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> None:
    """In `Gateway.coordinators`, look it up for each group: 100,000 of them take seconds with many gateways."""
    gateway._keep_up()
    looked_up: list[int] = []

    def counted(bucket: int, names: list[str]) -> str:
        looked_up.append(bucket)
        return gateway_of(bucket, names)

    monkeypatch.setattr(gateway._offsets, "coordinator_error", lambda _group: ErrorCode.NONE)
    monkeypatch.setattr(service, "gateway_of", counted)
    groups = [f"g{number}" for number in range(1_000)]
    assert {place and place.node_id for _error, place in gateway.coordinators(groups).values()} == {1_000_000}
    assert sorted(looked_up) == list(range(BUCKETS))
