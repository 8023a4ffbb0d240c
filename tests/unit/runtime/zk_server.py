"""A ZooKeeper server that does what a real one does only rarely."""

from __future__ import annotations

import struct
from collections.abc import Callable

from gevent.server import StreamServer
from gevent.socket import socket

SESSION, TIMEOUT_MS = 77, 30_000
PING = -2

Answers = Callable[[int, int], list[bytes]]  # the kind of a request and its number -> what the server sends


def answer(number: int, body: bytes = b"", error: int = 0) -> bytes:
    return struct.pack(">iqi", number, 1, error) + body


class Server:
    """Speaks ZooKeeper's protocol; `answers` decides what follows a request. Keeps the kinds of all requests."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.connections = 0
        self.kinds: list[int] = []
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.stop(timeout=0)

    def _serve(self, connection: socket, _address: object) -> None:
        self.connections += 1
        stream = connection.makefile("rwb")
        self._frame(stream)
        self._send(stream, struct.pack(">iiqi16sb", 0, TIMEOUT_MS, SESSION, 16, b"", 0))
        while frame := self._frame(stream):
            number, kind = struct.unpack_from(">ii", frame)
            if number == PING:
                continue
            self.kinds.append(kind)
            sent = self._answers(kind, number)
            if not sent:
                connection.close()
                return
            for one in sent:
                self._send(stream, one)

    @staticmethod
    def _frame(stream: object) -> bytes:
        length = stream.read(4)  # type: ignore[attr-defined]
        return stream.read(struct.unpack(">i", length)[0]) if length else b""  # type: ignore[attr-defined]

    @staticmethod
    def _send(stream: object, frame: bytes) -> None:
        stream.write(struct.pack(">i", len(frame)) + frame)  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
