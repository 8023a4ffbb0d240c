"""Requests of Kafka's protocol, written to a socket one by one."""

from __future__ import annotations

import socket
import struct
from typing import Any

from zkrebalancer.gateway.frames import framed
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header


def request(name: str, version: int, fields: dict[str, Any]) -> bytes:
    header = codec.encode_header(Header(KEYS[name], version, 7, "raw"))
    return framed(header + codec.encode(f"{name}Request", version, fields))


def received(client: socket.socket, size: int) -> bytes:
    """Return so many bytes; a socket with a timeout does not wait for all of them, whatever its flags are."""
    content = b""
    while len(content) < size:
        piece = client.recv(size - len(content))
        assert piece, "the connection was ended"
        content += piece
    return content


def answer(name: str, version: int, client: socket.socket) -> dict[str, Any]:
    (size,) = struct.unpack(">i", received(client, 4))
    content = received(client, size)
    return codec.decode(f"{name}Response", version, content[codec.answer_body(KEYS[name], version, content) :])
