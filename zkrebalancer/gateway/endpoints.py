"""`--http`: /liveness, /readiness and /metrics of a gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.pywsgi import WSGIHandler, WSGIServer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from zkrebalancer.protocol.errors import ConfigurationError

MAX_CLIENTS = 20
CLIENT_TIMEOUT_S = 2.0  # then a client is disconnected, because slow ones would delay a probe of /liveness
JSON = "application/json"


class _Handler(WSGIHandler):
    """Serves one client."""

    def handle(self) -> None:
        gevent.with_timeout(CLIENT_TIMEOUT_S, super().handle, timeout_value=None)


def server(address: tuple[str, int], faults: Callable[[], list[str]], registry: CollectorRegistry) -> WSGIServer:
    """Start and return the server; `faults` returns why the gateway is not ready.

    Raises:
        ConfigurationError: it cannot listen at the address.

    """

    def answer(environment: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        status, kind, content = _answer(environment["PATH_INFO"], faults, registry)
        start(status, [("Content-Type", kind), ("Content-Length", str(len(content)))])
        return [content]

    found = WSGIServer(address, answer, log=None, error_log=None, spawn=MAX_CLIENTS, handler_class=_Handler)
    try:
        found.start()
    except OSError as error:
        raise ConfigurationError(f"--http: {address[0]}:{address[1]} cannot be served: {error.strerror}") from None
    return found


def _answer(path: str, faults: Callable[[], list[str]], registry: CollectorRegistry) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
    if path == "/liveness":
        return "200 OK", JSON, _document({"alive": True})
    if path == "/readiness":
        found = faults()
        status = "503 Service Unavailable" if found else "200 OK"
        return status, JSON, _document({"ready": not found, "faults": found})
    return "404 Not Found", JSON, _document({"error": "there are /liveness, /readiness and /metrics"})


def _document(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
