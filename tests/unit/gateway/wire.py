"""A client's connection to a gateway, with a broker that the test plays, on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import gevent
from gevent import socket as gevent_socket
from gevent.event import Event
from gevent.socket import socket
from gevent.ssl import SSLContext

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import authorization, security
from zkrebalancer.gateway.addresses import Addresses, Node
from zkrebalancer.gateway.connection import Connection
from zkrebalancer.gateway.dialing import Dialer
from zkrebalancer.gateway.frames import FrameReader, framed
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.rights import Client
from zkrebalancer.gateway.room import Arrived, Room
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.schema import Versions

TLS = Path(__file__).parents[2] / "support" / "tls"
WAIT_S = WITHIN_S
LIST_OFFSETS = 2  # a request that is relayed unread
Fields = dict[str, Any]
ANYBODY = Client("h", is_at_gateway=True, since_us=0, rights=None)


class Desk:
    """A gateway of one group, `mine`; every heartbeat in it is answered."""

    served: Mapping[int, Versions] = {KEYS["Heartbeat"]: Versions(0, 4)}

    def __init__(self, broker: tuple[str, int], upstream: security.Upstream, *, asks_for_rights: bool) -> None:
        self.metrics = Metrics()
        self.room = Room()
        self.api_versions: dict[int, bytes] = {}
        self.versions: dict[int, tuple[int, int]] = {}  # that all brokers know
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

    def broker_versions(self) -> dict[int, tuple[int, int]]:
        return self.versions

    def coordinators(self, groups: list[str]) -> dict[str, tuple[int, Node | None]]:
        return {group: (0, Node(7, "gw", 1)) for group in groups}

    def answer(self, arrived: Arrived, client: Client) -> bytes:
        def go_on(_fields: Fields) -> Fields:
            self.since_us.append(client.since_us)
            self.answers.wait(WAIT_S)
            return {"error_code": int(not client.is_at_gateway)}

        version, rights = arrived.header.version, client.rights
        fields = codec.decode("HeartbeatRequest", version, arrived.content)
        found = go_on(fields) if rights is None else authorization.answer("Heartbeat", version, fields, rights, go_on)
        return codec.encode("HeartbeatResponse", version, found)


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


def member(header: Header, content: bytes) -> bytes | None:
    """Answer questions for rights as a broker does: group `mine` may be read."""
    assert header.api_key == KEYS["Heartbeat"]
    group = codec.decode("HeartbeatRequest", header.version, content)["group_id"]
    return b"\0" + codec.encode("HeartbeatResponse", 4, {"error_code": 25 if group == "mine" else 30})


def describe_all(_header: Header, content: bytes) -> bytes:
    """Play a broker that lets a client describe every group that the gateway asks it for."""
    asked = codec.decode("DescribeGroupsRequest", 5, content)["groups"]
    described = [{"group_id": group, "error_code": 0} for group in asked]
    return b"\0" + codec.encode("DescribeGroupsResponse", 5, {"groups": described})
