"""A client's connection, with a broker that the test plays, on real sockets."""

from __future__ import annotations

from contextlib import suppress

import gevent
import pytest
from gevent.event import Event

from tests.unit.gateway.wire import LIST_OFFSETS, TLS, WAIT_S, Open, member
from zkrebalancer.gateway import connection, security
from zkrebalancer.gateway.connection import Connection
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header


def test_a_large_answer_passes_with_tls_on_both_sides(connect: Open) -> None:
    wire = connect(lambda _header, content: content * 20, with_tls=True)
    for number in range(3):
        content = bytes([number]) * 100_000
        wire.send(LIST_OFFSETS, 1, content)
        assert wire.received()[4:] == content * 20
    assert wire.heartbeat()["error_code"] == 0


def test_a_broker_whose_certificate_is_not_trusted_gets_nothing(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[bytes] = []
    trusted = security.upstream
    wire = connect(lambda _header, content: reached.append(content), with_tls=True)
    wire.close()
    monkeypatch.setattr(
        security, "upstream", lambda given: trusted({**given, "ssl.ca.location": str(TLS / "other-ca.pem")})
    )
    with pytest.raises(OSError, match="certificate verify failed"):
        connect(lambda _header, content: reached.append(content), with_tls=True)
    assert reached == []


@pytest.mark.parametrize("with_tls", [False, True])
def test_what_the_client_may_do_is_asked_over_its_own_connection(connect: Open, *, with_tls: bool) -> None:
    wire = connect(member, with_tls=with_tls, asks_for_rights=True)
    assert [wire.heartbeat(group)["error_code"] for group in ("mine", "other", "mine")] == [0, 30, 0]


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_client_whose_broker_hangs_up_on_the_question_gets_no_answer(connect: Open, *, with_tls: bool) -> None:
    wire = connect(lambda _header, _content: None, with_tls=with_tls, asks_for_rights=True)
    wire.send(KEYS["Heartbeat"], 3, codec.encode("HeartbeatRequest", 3, {"group_id": "mine"}))
    assert wire.received() == b""


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_connection_that_has_shown_who_it_is_ends_with_its_brokers(connect: Open, *, with_tls: bool) -> None:
    wire = connect(member, with_tls=with_tls, asks_for_rights=True)
    assert wire.heartbeat()["error_code"] == 0
    wire.hang_up()
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)  # without an error


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_request_is_as_old_as_the_one_behind_which_it_may_have_waited(connect: Open, *, with_tls: bool) -> None:
    """In `Connection._next_size`, take the present time: a commit may be older than one stored elsewhere."""
    wire = connect(member, with_tls=with_tls)
    beat = codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"})
    wire.desk.answers.clear()
    wire.send(KEYS["Heartbeat"], 3, beat)
    while not wire.desk.since_us:
        gevent.sleep(0)
    wire.send(KEYS["Heartbeat"], 3, beat)
    wire.desk.answers.set()
    wire.received()
    wire.received()
    wire.heartbeat()
    first, second, third = wire.desk.since_us
    assert first == second < third


ASKS_FOR_ONE = codec.encode("FindCoordinatorRequest", 3, {"key": "mine"})


@pytest.mark.parametrize(
    "before", [[], [("ApiVersions", 4, b"\1\1\0")], [("ApiVersions", 99, b"")], [("FindCoordinator", 3, ASKS_FOR_ONE)]]
)
def test_a_client_that_sends_as_soon_as_it_is_answered_has_waited_for_nothing(
    connect: Open, monkeypatch: pytest.MonkeyPatch, before: list[tuple[str, int, bytes]]
) -> None:
    """In `Connection._send`, do not note the time: its commits are refused if its first request came before."""
    sent = Event()
    send = Connection._send

    def send_slowly(self: Connection, content: bytes) -> None:
        sent.clear()
        send(self, content)
        sent.wait(WAIT_S)  # the client is faster

    monkeypatch.setattr(Connection, "_send", send_slowly)
    wire = connect(member)
    wire.desk.api_versions[4] = codec.encode("ApiVersionsResponse", 4, {})
    beat = codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"})
    for name, version, content in (*before, *[("Heartbeat", 3, beat)] * 4):
        wire.send(KEYS[name], version, content)
        sent.set()
        wire.received()
    sent.set()
    first, second, third, fourth = wire.desk.since_us
    assert (first if before else 1) > 0
    assert first < second < third < fourth


def test_a_connection_without_rights_outlives_its_brokers(connect: Open) -> None:
    wire = connect(lambda _header, content: content)
    for _ in range(2):
        wire.send(LIST_OFFSETS, 1, b"x")
        assert wire.received()[4:] == b"x"
        wire.hang_up()
        assert wire.heartbeat()["error_code"] == 0


@pytest.mark.parametrize(("key", "version"), [(KEYS["SaslHandshake"], 0), (1, 16), (0, 2)])
def test_a_version_after_which_frames_cannot_be_understood_is_refused(connect: Open, key: int, version: int) -> None:
    wire = connect(member)
    wire.send(key, version, b"")
    assert wire.received() == b""


def test_a_group_that_may_not_be_seen_has_no_coordinator(connect: Open) -> None:
    def broker(_header: Header, content: bytes) -> bytes:
        asked = codec.decode("DescribeGroupsRequest", 5, content)["groups"]
        described = [{"group_id": group, "error_code": 0 if group == "mine" else 30} for group in asked]
        return b"\0" + codec.encode("DescribeGroupsResponse", 5, {"groups": described})

    wire = connect(broker, asks_for_rights=True)
    asked = {"coordinator_keys": ["mine", "x"]}
    wire.send(KEYS["FindCoordinator"], 4, codec.encode("FindCoordinatorRequest", 4, asked))
    found = codec.decode("FindCoordinatorResponse", 4, wire.received()[5:])["coordinators"]
    assert {one["key"]: (one["error_code"], one["node_id"]) for one in found} == {"mine": (0, 7), "x": (30, -1)}


@pytest.mark.parametrize("asks_for_rights", [False, True])
def test_a_broker_that_hangs_keeps_no_connection_for_ever(
    connect: Open, monkeypatch: pytest.MonkeyPatch, *, asks_for_rights: bool
) -> None:
    """In `Connection._await_answers`, wait for ever: a client that has gone would keep both connections."""
    monkeypatch.setattr(connection, "MAX_SILENCE_S", 0.05)
    never = Event()
    wire = connect(lambda _header, _content: never.wait() and None, asks_for_rights=asks_for_rights)
    if not asks_for_rights:
        wire.send(LIST_OFFSETS, 1, b"x")
    wire.send(KEYS["Heartbeat"], 3, codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"}))
    wire.served.get(timeout=WAIT_S)
    assert wire.received() == b""


def test_a_broker_that_reads_nothing_keeps_no_connection_for_ever(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_send_patiently`, wait for ever: clients that close meanwhile would use up the connections."""
    monkeypatch.setattr(connection, "MAX_SILENCE_S", 0.05)
    never = Event()
    wire = connect(lambda _header, _content: never.wait() and None)

    def produce() -> None:
        with suppress(OSError):
            wire.send(LIST_OFFSETS, 1, b"x")
            wire.send(LIST_OFFSETS, 1, bytes(32 << 20))  # more than sockets hold

    producer = gevent.spawn(produce)
    wire.served.get(timeout=WAIT_S)
    producer.get(timeout=WAIT_S)


def test_the_own_port_offers_what_all_brokers_know(connect: Open) -> None:
    """In `Connection._handle`, answer what one broker offers: while brokers are upgraded, another one hangs up."""
    offered = {0: (3, 9), 3: (0, 13), 12: (0, 4), 22: (0, 5), 74: (0, 0)}
    apis = [{"api_key": key, "min_version": least, "max_version": most} for key, (least, most) in offered.items()]
    wire = connect(lambda _header, _content: codec.encode("ApiVersionsResponse", 3, {"api_keys": apis}))
    found: list[dict[int, tuple[int, int]]] = []
    for versions in ({}, {}, {0: (4, 11), 3: (0, 12), 12: (0, 3), 22: (6, 9)}):
        wire.desk.versions = versions
        wire.send(KEYS["ApiVersions"], 3, codec.encode("ApiVersionsRequest", 3, {}))
        answer = codec.decode("ApiVersionsResponse", 3, wire.received()[4:])
        found.append({one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]})
    assert found == [offered, offered, {0: (4, 9), 3: (0, 12), 12: (0, 4)}]  # the gateway itself answers heartbeats


def test_an_answer_about_versions_that_only_one_client_gets_is_not_given_to_others(connect: Open) -> None:
    """In `Connection._rewritten`, keep each answer: one client with a strange name keeps all others from connecting."""
    answers = iter([(42, 0), (0, 9_000)])

    def broker(_header: Header, _content: bytes) -> bytes:
        error, throttle_ms = next(answers)
        return codec.encode("ApiVersionsResponse", 3, {"error_code": error, "throttle_time_ms": throttle_ms})

    wire = connect(broker)
    found = []
    for _ in range(3):
        wire.send(KEYS["ApiVersions"], 3, codec.encode("ApiVersionsRequest", 3, {}))
        answer = codec.decode("ApiVersionsResponse", 3, wire.received()[4:])
        found.append((answer["error_code"], answer["throttle_time_ms"]))
    assert found == [(42, 0), (0, 9_000), (0, 0)]


@pytest.mark.parametrize("begin", [b"", b"\0", b"\0\0\1\0half"])
def test_a_client_that_neither_goes_on_nor_goes_away_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, connect: Open, begin: bytes
) -> None:
    """Such clients would use up the connections that a gateway may have."""
    monkeypatch.setattr(connection, "MAX_IDLE_S", 0.05)
    wire = connect(lambda _header, _content: b"")
    wire.client.sendall(begin)
    assert wire.received() == b""
