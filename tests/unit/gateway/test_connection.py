"""A client's connection, with a broker that the test plays, on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import gevent
import pytest
from gevent import socket as gevent_socket
from gevent.event import Event
from gevent.socket import socket
from gevent.ssl import SSLContext

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import connection, security
from zkrebalancer.gateway.addresses import Addresses, Node
from zkrebalancer.gateway.connection import Connection, Room
from zkrebalancer.gateway.dialing import Dialer
from zkrebalancer.gateway.frames import FIRST_PIECE_BYTES, PIECE_BYTES, FrameReader, framed, size_of
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.schema import Versions

TLS = Path(__file__).parents[2] / "support" / "tls"
WAIT_S = WITHIN_S
LIST_OFFSETS = 2  # a request that is relayed unread
Fields = dict[str, Any]


class Desk:
    """A gateway of one group, `mine`; every heartbeat in it is answered."""

    served: Mapping[int, Versions] = {KEYS["Heartbeat"]: Versions(0, 4)}

    def __init__(self, broker: tuple[str, int], upstream: security.Upstream, *, asks_for_rights: bool) -> None:
        self.metrics = Metrics()
        self.room = Room()
        self.api_versions: dict[int, bytes] = {}
        self.since_us: list[int] = []  # of the requests so far
        self.complaints: list[str] = []
        self.answers = Event()
        self.answers.set()
        self.asks_for_rights = asks_for_rights
        self._broker = broker
        self._dialer = Dialer(upstream)

    def addresses(self) -> Addresses:
        return Addresses("gw", 1, {}, {})

    def learn(self, _brokers: list[Node]) -> Addresses:
        return self.addresses()

    def connect(self, _broker_id: int | None) -> socket:
        return self._dialer.dial_any([self._broker])

    def note_malformed(self, _client_host: str, error: Exception) -> None:
        self.complaints.append(str(error))
        self.metrics.malformed += 1

    def coordinators(self, groups: list[str]) -> dict[str, tuple[int, Node | None]]:
        return {group: (0, Node(7, "gw", 1)) for group in groups}

    def answer(
        self, header: Header, _content: bytes, _client_host: str, since_us: int, *, is_coordinator: bool
    ) -> bytes:
        self.since_us.append(since_us)
        self.answers.wait(WAIT_S)
        return codec.encode("HeartbeatResponse", header.version, {"error_code": int(not is_coordinator)})


Broker = Callable[[Header, bytes], bytes | None]  # returns an answer's content, None to hang up


class Wire:
    """Both ends of a connection of the gateway."""

    def __init__(self, broker: Broker, *, with_tls: bool, asks_for_rights: bool) -> None:
        certificate, ca = TLS / "localhost.pem", str(TLS / "ca.pem")
        server = security.listener(certificate, None, None) if with_tls else None
        own = {"security.protocol": "ssl", "ssl.ca.location": ca} if with_tls else {}
        self._listener = socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._accepted: list[socket] = []
        self._workers = [gevent.spawn(partial(self._play, broker, server))]
        upstream = security.upstream(own)
        self.desk = desk = Desk(self._listener.getsockname(), upstream, asks_for_rights=asks_for_rights)
        near, far = gevent_socket.socketpair()

        def serve() -> None:
            Connection(server.wrap_socket(far, server_side=True) if server else far, "h", None, desk).run()

        self.served = gevent.spawn(serve)
        self._workers.append(self.served)
        self.client = upstream.context.wrap_socket(near, server_hostname="localhost") if upstream.context else near
        self.client.settimeout(WAIT_S)
        self._reader = FrameReader(self.client)

    def _play(self, broker: Broker, tls: SSLContext | None) -> None:
        while True:
            one, _where = self._listener.accept()
            self._workers.append(gevent.spawn(partial(self._serve, one, broker, tls)))

    def _serve(self, one: socket, broker: Broker, tls: SSLContext | None) -> None:
        served = tls.wrap_socket(one, server_side=True) if tls else one
        self._accepted.append(served)
        reader = FrameReader(served)
        while (size := reader.next_size()) is not None:
            content = reader.take(size)
            header, at = codec.decode_header(content)
            answer = broker(header, content[at:])
            if answer is None:
                break
            served.sendall(framed(header.correlation_id.to_bytes(4, "big") + answer))
        served.close()

    def send(self, key: int, version: int, content: bytes) -> None:
        self.client.sendall(framed(codec.encode_header(Header(key, version, 5, "c")) + content))

    def heartbeat(self, group: str = "mine") -> Fields:
        self.send(KEYS["Heartbeat"], 3, codec.encode("HeartbeatRequest", 3, {"group_id": group, "member_id": "m"}))
        return codec.decode("HeartbeatResponse", 3, self.received()[4:])

    def received(self) -> bytes:
        size = self._reader.next_size()
        return b"" if size is None else self._reader.take(size)

    def hang_up(self) -> None:
        """Let the broker end its connections."""
        while self._accepted:
            socket.shutdown(self._accepted.pop(), SHUT_RDWR)

    def close(self) -> None:
        gevent.killall(self._workers)
        self.client.close()
        self._listener.close()


Open = Callable[..., Wire]


@pytest.fixture
def connect() -> Iterator[Open]:
    """Return a function that opens a connection to a gateway whose broker is a function."""
    opened: list[Wire] = []

    def open_one(broker: Broker, *, with_tls: bool = False, asks_for_rights: bool = False) -> Wire:
        opened.append(Wire(broker, with_tls=with_tls, asks_for_rights=asks_for_rights))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def member(header: Header, content: bytes) -> bytes | None:
    """Answer questions for rights as a broker does: group `mine` may be read."""
    assert header.api_key == KEYS["Heartbeat"]
    group = codec.decode("HeartbeatRequest", header.version, content)["group_id"]
    return b"\0" + codec.encode("HeartbeatResponse", 4, {"error_code": 25 if group == "mine" else 30})


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


def test_a_client_that_sends_as_soon_as_it_is_answered_has_waited_for_nothing(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection._answer`, do not note the time: its commits are refused if its first request came before."""
    sent = Event()
    send = Connection._send

    def send_slowly(self: Connection, content: bytes) -> None:
        sent.clear()
        send(self, content)
        sent.wait(WAIT_S)  # the client is faster

    monkeypatch.setattr(Connection, "_send", send_slowly)
    wire = connect(member)
    beat = codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"})
    for _ in range(4):
        wire.send(KEYS["Heartbeat"], 3, beat)
        sent.set()
        wire.received()
    sent.set()
    _first, second, third, fourth = wire.desk.since_us
    assert second < third < fourth


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


@pytest.mark.parametrize("begin", [b"", b"\0", b"\0\0\1\0half"])
def test_a_client_that_neither_goes_on_nor_goes_away_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, connect: Open, begin: bytes
) -> None:
    """Such clients would use up the connections that a gateway may have."""
    monkeypatch.setattr(connection, "MAX_IDLE_S", 0.05)
    wire = connect(lambda _header, _content: b"")
    wire.client.sendall(begin)
    assert wire.received() == b""


BEAT = codec.encode("HeartbeatRequest", 3, {"group_id": "mine", "member_id": "m"})
LARGE_BEGIN = (1 << 20).to_bytes(4, "big") + codec.encode_header(Header(KEYS["Heartbeat"], 3, 5, "c"))


@pytest.mark.parametrize("has_logged_in", [False, True])
def test_a_large_request_is_read_only_from_a_client_that_has_logged_in(
    connect: Open, monkeypatch: pytest.MonkeyPatch, *, has_logged_in: bool
) -> None:
    """In `Connection._handle_here`, do not require it: anybody could fill the memory with beginnings of requests."""
    monkeypatch.setattr(connection, "FIRST_PIECE_BYTES", 10)
    monkeypatch.setattr(connection, "MAX_SMALL_BYTES", 10)
    asked: list[int] = []

    def broker(header: Header, content: bytes) -> bytes | None:
        asked.append(header.api_key)
        if header.api_key != KEYS["Metadata"]:
            return member(header, content)
        return b"\0" + codec.encode("MetadataResponse", 9, {"brokers": [], "topics": []}) if has_logged_in else None

    wire = connect(broker, asks_for_rights=True)
    if not has_logged_in:
        wire.client.sendall(LARGE_BEGIN)
        assert wire.received() == b""
        wire.served.get(timeout=WAIT_S)
        assert asked == [KEYS["Metadata"]]
        return
    assert [wire.heartbeat()["error_code"] for _ in range(3)] == [0, 0, 0]
    assert asked.count(KEYS["Metadata"]) == 1


def test_large_requests_have_limited_room_together(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Room.hold`, count nothing, or never give the room back."""
    monkeypatch.setattr(connection, "MAX_SMALL_BYTES", 10)
    monkeypatch.setattr(connection, "MAX_LARGE_BYTES", 1 << 20)
    wire, other = connect(member), connect(member)
    other.desk.room = wire.desk.room
    other.client.sendall(LARGE_BEGIN)
    while not wire.desk.room._used:
        gevent.sleep(0)
    wire.send(KEYS["Heartbeat"], 3, BEAT)
    assert wire.received() == b""
    assert [text.partition(" of ")[0] for text in wire.desk.complaints] == ["no room for a request"]
    other.client.shutdown(SHUT_RDWR)
    other.served.get(timeout=WAIT_S)
    again = connect(member)
    again.desk.room = wire.desk.room
    assert [again.heartbeat()["error_code"] for _ in range(3)] == [0, 0, 0]
    assert wire.desk.room._used == 0


def test_a_large_request_that_does_not_arrive_uses_room_for_a_limited_time(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection._handle_here`, wait as long as bytes arrive: a few clients could use up the room for ever."""
    monkeypatch.setattr(connection, "MAX_ARRIVAL_S", 0.05)
    wire = connect(member)
    wire.client.sendall(LARGE_BEGIN)
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)
    assert wire.desk.room._used == 0


@pytest.fixture
def large_answers(connect: Open, monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    """Two clients that ask, and do not read their answers of 8 MiB; there is room for one."""
    monkeypatch.setattr(connection, "MAX_LARGE_BYTES", 12 << 20)
    wires = [connect(member), connect(member)]
    for wire in wires:
        wire.desk.room = wires[0].desk.room
        monkeypatch.setattr(wire.desk, "answer", lambda *_, **_more: bytes(8 << 20))
        wire.send(KEYS["Heartbeat"], 3, BEAT)
        with gevent.Timeout(WAIT_S):
            while not wire.desk.room._used:
                gevent.sleep(0)
    return wires


def test_large_answers_have_limited_room_together(large_answers: list[Wire]) -> None:
    """In `Connection._send_whole`, hold no room: 20,000 clients that do not read may have MBs each."""
    wire, other = large_answers
    other.served.get(timeout=WAIT_S)
    assert [text.partition(" of ")[0] for text in other.desk.complaints] == ["no room for an answer"]
    assert len(wire.received()) > 8 << 20
    gevent.sleep(0)
    assert (wire.desk.room._used, wire.desk.complaints) == (0, [])


def test_a_large_answer_that_is_not_read_uses_room_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In `Connection._send_whole`, wait for as long as for a small one: the room is used up for minutes."""
    monkeypatch.setattr(connection, "MAX_ARRIVAL_S", 0.05)
    wire, _other = request.getfixturevalue("large_answers")
    wire.served.get(timeout=WAIT_S)
    assert wire.desk.room._used == 0


def test_little_is_read_at_once_from_a_client_that_has_not_logged_in(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Connection`, begin with PIECE_BYTES: 20,000 strangers could make it hold 5 GB. A login may have any size."""
    at_once: list[int] = []
    pass_on = FrameReader.pass_on

    def noted(self: FrameReader, *arguments: Any) -> None:
        at_once.append(self.piece_bytes)
        pass_on(self, *arguments)

    monkeypatch.setattr(FrameReader, "pass_on", noted)
    wire = connect(lambda _header, content: content, asks_for_rights=True)
    token = bytes(100_000)
    for key, version in ((KEYS["SaslHandshake"], 1), (KEYS["SaslAuthenticate"], 0), (LIST_OFFSETS, 1)):
        wire.send(key, version, token)
        assert wire.received()[4:] == token
    wire.send(LIST_OFFSETS, 1, token)
    assert wire.received()[4:] == token
    assert at_once == [FIRST_PIECE_BYTES] * 5 + [PIECE_BYTES] * 3


def test_a_request_for_versions_is_small(connect: Open) -> None:
    """In `Connection._handle`, read it whole: it needs no login, so anybody could fill the memory."""
    wire = connect(lambda _header, _content: None, asks_for_rights=True)
    header = KEYS["ApiVersions"].to_bytes(2) + (99).to_bytes(2) + (5).to_bytes(4)
    wire.client.sendall(size_of(FIRST_PIECE_BYTES + 1) + header)
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)


@pytest.mark.parametrize(("key", "version"), [(KEYS["Heartbeat"], 3), (KEYS["Produce"], 9)])
def test_what_has_to_be_read_whole_is_small_before_a_login(connect: Open, key: int, version: int) -> None:
    asked: list[int] = []
    wire = connect(lambda header, _content: asked.append(header.api_key), asks_for_rights=True)
    wire.client.sendall(size_of(FIRST_PIECE_BYTES + 1) + codec.encode_header(Header(key, version, 5, "c")))
    assert wire.received() == b""
    wire.served.get(timeout=WAIT_S)
    assert asked == [KEYS["Metadata"]]
