"""What clients of a gateway hear that has just begun."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import gevent
import pytest
from gevent.pool import Pool

from tests.support.deadlines import WITHIN_S
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway import service
from zkrebalancer.gateway.addresses import MAX_SLOTS, Node
from zkrebalancer.gateway.service import Gateway, GatewayConfig
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS, gateway_of
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Lost
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime import clock

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


def test_a_gateway_that_waits_for_a_restore_says_so_once(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Gateway._keep_up`, log it each second, stop trying, or keep the fault; in `_faults`, leave it out."""
    monkeypatch.setattr(service, "RETRY_S", 0.01)
    session = gateway._session
    assert isinstance(session, ModelSession)
    session.do(Create(paths.CONSUMERS), Create(paths.COORDINATOR), Create(paths.RESTORE))
    for _ in range(3):
        gateway._keep_up()
    assert [line for line in caplog.messages if "restore" in line] == [
        "no group is served, because a restore runs, or was interrupted"
    ]
    assert "no group is served, because a restore runs, or was interrupted" in gateway._faults()
    session.do(Delete(paths.RESTORE), Delete(paths.COORDINATOR))
    assert gateway._changed.wait(WAIT_S)
    gateway._keep_up()
    assert gateway._membership.number == 0
    assert not any("restore" in fault for fault in gateway._faults())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_gateway_warns_of_the_end_of_its_session_unless_it_ends(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, *, is_stopped: bool
) -> None:
    """In `Gateway._session_changed`, lose the groups in any case: each restart would leave a warning."""
    gateway._keep_up()
    with gevent.Timeout(WAIT_S):
        while not gateway._groups.served_buckets:
            gevent.sleep(0.001)
    if is_stopped:
        gateway.stop()
    gateway._session.session_id = 0
    gateway._session_changed(Lost())
    warned = [line for line in caplog.messages if line.startswith("no group is served until")]
    assert len(warned) == (0 if is_stopped else 1)


@pytest.mark.parametrize("is_leased", [True, False])
def test_events_during_a_fault_add_no_tries(monkeypatch: pytest.MonkeyPatch, gateway: Gateway, is_leased: bool) -> None:
    """In `Gateway._keep_up_later`, keep each of them: one more for each event, for as long as the fault lasts."""
    session = gateway._session
    assert isinstance(session, ModelSession)
    session.is_leased = is_leased
    session.forbidden.add(paths.RESTORE)
    monkeypatch.setattr(service, "RETRY_S", 0)
    monkeypatch.setattr(service, "FIRST_RETRY_S", 0)
    monkeypatch.setattr(gateway, "_changed", changed := mock.Mock())
    for _ in range(10):
        gateway._keep_up()
    with gevent.Timeout(WAIT_S):
        while not changed.set.called:
            gevent.sleep(0)
    for _ in range(20):
        gevent.sleep(0)
    assert changed.set.call_count == 1


def test_without_zookeeper_the_nodes_are_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> None:
    monkeypatch.setattr(gateway, "_join_until_ms", 0)
    assert gevent.spawn(gateway.learn, []).get(timeout=WAIT_S).gateways == {}


def test_an_outage_of_zookeeper_makes_a_gateway_unready_and_is_no_reason_to_restart_it(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> None:
    """In `Gateway`, make `Vitals` without `stalled`: systemd ends what the gateway relays without ZooKeeper."""
    session = gateway._session
    assert isinstance(session, ModelSession)
    session.is_leased = False
    late_us = clock.steady_us() + 3_600_000_000
    monkeypatch.setattr(gateway._vitals, "_now_us", lambda: late_us)
    assert gateway._health().death == "the loop has not moved for 3600 s"
    gateway._vitals.looped()
    health = gateway._health()
    assert (health.death, health.faults[0]) == (None, "ZooKeeper does not answer")
    session.why_stalled = "nothing connects to ZooKeeper any more"
    assert gateway._health().death == session.why_stalled


def test_a_gateway_that_serves_no_further_client_says_so_once(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Gateway._beat`, forget it: new clients are connected, and wait without a word, while the gateway is ready."""
    monkeypatch.setattr(gateway, "_connections", Pool(2))
    monkeypatch.setattr(gateway._vitals, "beat_s", 0)
    beats: list[str] = []
    monkeypatch.setattr(gateway._vitals, "report", lambda *, is_ready, status: beats.append(f"{is_ready} {status}"))
    beat = gevent.spawn(gateway._beat)
    for count in (1, 2):
        gateway._connections.spawn(gevent.sleep, WAIT_S)
        with gevent.Timeout(WAIT_S):
            while len(beats) < 5 * count:
                gevent.sleep(0)
        assert caplog.messages == ["20000 connections are open: others wait until one is closed"] * (count - 1)
    gevent.killall([beat, *gateway._connections])


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


def test_a_broker_without_a_port_is_looked_after_at_intervals_and_named_once(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client's question for metadata comes here; and what occupies a port may go away.

    In `Gateway.addresses`, tell of ports that are not open: clients would try them again and again.
    """
    gateway._keep_up()
    now_us, tries = 0, list[int]()

    def listening(_address: object, slot: int) -> object:
        tries.append(slot)
        if now_us < 5_000_000:
            raise ConfigurationError("the port is in use")
        return object()

    monkeypatch.setattr("zkrebalancer.gateway.service.clock.steady_us", lambda: now_us)
    monkeypatch.setattr(gateway, "_listening", listening)
    brokers = [Node(1, "b", 1), Node(2, "b", 2)]
    for _ in range(10):
        for _ in range(20):
            addresses = gateway.learn(brokers)
        assert now_us >= 5_000_000 or addresses.slots == {}
        now_us += 1_000_000
    assert (len(tries), addresses.slots) == (12, {1: 0, 2: 1})
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_a_port_leads_to_the_broker_that_has_its_slot_now(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    gateway._keep_up()
    served: list[int | None] = []
    accept: list[Callable[..., None]] = []  # by slot
    monkeypatch.setattr(service, "Connection", lambda *given: mock.Mock(run=lambda: served.append(given[2])))

    def listening(_address: object, serve: Callable[..., None], **_: object) -> mock.Mock:
        accept.append(serve)
        return mock.Mock()

    monkeypatch.setattr(service, "StreamServer", listening)
    monkeypatch.setattr(service, "prepare", lambda _client: None)
    gateway.learn([Node(number, "b", 1) for number in range(MAX_SLOTS)])
    gateway.learn([Node(number, "b", 1) for number in range(1, MAX_SLOTS + 1)])
    for slot in (0, 1):
        accept[slot](mock.Mock(), ("client", 1))
    assert served == [MAX_SLOTS, 1]
