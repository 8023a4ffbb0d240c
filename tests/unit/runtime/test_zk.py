"""The kazoo wrapper beside a server that answers what nobody has asked."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from gevent.queue import Queue
from gevent.server import StreamServer
from gevent.socket import socket

from tests.support.deadlines import WITHIN_S
from zkrebalancer.protocol.calls import (
    Connected,
    Done,
    Refusal,
    Refused,
    Replied,
    Suspended,
    Sync,
    ZooKeeperEvent,
)
from zkrebalancer.runtime.zk import ZkClient

SESSION = 77
TIMEOUT_MS = 30_000
PING = -2


class OddServer:
    """Speaks ZooKeeper's protocol; the replies of its first connection are spoilt by `spoil`."""

    def __init__(self, spoilt: bytes) -> None:
        self._spoilt = spoilt
        self._count = 0
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.stop(timeout=0)

    def _serve(self, connection: socket, _address: object) -> None:
        self._count += 1
        is_first = self._count == 1
        stream = connection.makefile("rwb")
        for number, frame in enumerate(_frames(stream)):
            if number == 0:
                answer = struct.pack(">iiqi16sb", 0, TIMEOUT_MS, SESSION, 16, b"", 0)
            elif is_first and self._xid(frame) != PING:
                answer = self._spoilt
            else:
                answer = struct.pack(">iqi", self._xid(frame), 1, 0) + struct.pack(">i1s", 1, b"/")
            stream.write(struct.pack(">i", len(answer)) + answer)
            stream.flush()

    @staticmethod
    def _xid(frame: bytes) -> int:
        return int(struct.unpack_from(">i", frame)[0])


def _frames(stream: object) -> Iterator[bytes]:
    while length := stream.read(4):  # type: ignore[attr-defined]
        yield stream.read(struct.unpack(">i", length)[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "spoilt",
    [struct.pack(">iqi", 2, 1, 0) + struct.pack(">i1s", 1, b"/"), b""],
    ids=["of another call", "no header"],
)
def test_an_answer_that_cannot_be_read_costs_the_connection_only(spoilt: bytes) -> None:
    """In `runtime.zk_connection`, do not catch it: kazoo ends for good, and the session with it."""
    events: Queue[ZooKeeperEvent] = Queue()
    server = OddServer(spoilt)
    client = ZkClient(server.address, TIMEOUT_MS, events.put)
    client.start()
    try:
        connected = Connected(SESSION, TIMEOUT_MS)
        assert events.get(timeout=WITHIN_S) == connected
        client.request(1, Sync("/"))
        found = [events.get(timeout=WITHIN_S) for _ in range(3)]
        assert sorted(map(repr, found)) == sorted(
            map(repr, [Replied(1, Refused(Refusal.CONNECTION_LOST)), Suspended(), connected])
        )
        client.request(2, Sync("/"))
        assert events.get(timeout=WITHIN_S) == Replied(2, Done())
    finally:
        client.close()
        server.close()
