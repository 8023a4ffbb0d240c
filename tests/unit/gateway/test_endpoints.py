"""The gateway's HTTP endpoints."""

from __future__ import annotations

import gevent
import pytest
from gevent.socket import create_connection

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import endpoints, metrics

WAIT_S = WITHIN_S


def test_clients_that_send_half_a_request_keep_no_probe_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(endpoints, "MAX_CLIENTS", 2)
    registry = metrics.registry(metrics.Metrics(), dict)
    server = endpoints.server(("127.0.0.1", 0), list, registry)
    try:
        with gevent.Timeout(WAIT_S):
            slow = [create_connection(("127.0.0.1", server.server_port)) for _ in range(2)]
            for one in slow:
                one.sendall(b"GET /live")
            probe = create_connection(("127.0.0.1", server.server_port))
            probe.sendall(b"GET /liveness HTTP/1.0\r\n\r\n")
            assert probe.recv(100).startswith(b"HTTP/1.1 200 OK")
            assert [one.recv(100) for one in slow] == [b"", b""]
    finally:
        server.stop(timeout=0)
        for one in (*slow, probe):
            one.close()
