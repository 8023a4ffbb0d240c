"""The endpoints that coordinators, gateways and agents share."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from unittest import mock

import gevent
import pytest
from gevent.event import Event
from gevent.socket import create_connection
from prometheus_client import CollectorRegistry, Histogram

from tests.support.deadlines import WITHIN_S
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime import http_server
from zkrebalancer.runtime.http_limits import Pace
from zkrebalancer.runtime.http_server import Pages, Server, Stream, serve, serving_in_a_thread
from zkrebalancer.runtime.vitals import Health

WELL = Health(None, [], leads=True, facts={"epoch": 3})
ILL = Health("the loop has not moved for 11 s", ["ZooKeeper does not answer"], leads=False)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Limits:
    """What ends slow clients: when the test says so, however slow the machine is."""

    def __init__(self, server: Server) -> None:
        self._begun: list[tuple[gevent.Timeout, gevent.Greenlet[..., object]]] = []
        server.start_limit = self._start

    def _start(self, _seconds: float) -> gevent.Timeout:
        limit, client = gevent.Timeout.start_new(10 * WITHIN_S), gevent.getcurrent()
        assert isinstance(client, gevent.Greenlet)
        self._begun.append((limit, client))
        return limit

    def running(self) -> list[tuple[gevent.Timeout, gevent.Greenlet[..., object]]]:
        return [(limit, client) for limit, client in self._begun if limit.pending]

    def end(self) -> None:
        """End those that are running now."""
        for limit, client in self.running():
            client.kill(limit, block=False)
        gevent.sleep(0)


def pages(health: Health = WELL) -> Pages:
    return Pages(lambda: health, CollectorRegistry(), {"/assignment": lambda: (True, {"partitions": []})})


@pytest.mark.parametrize(
    ("path", "well", "ill"),
    [
        ("/liveness", {"alive": True, "faults": [], "epoch": 3}, {"alive": False, "faults": [ILL.death]}),
        ("/readiness", {"ready": True, "faults": [], "epoch": 3}, {"ready": False, "faults": ILL.faults}),
        ("/leader", {"leader": True, "epoch": 3}, {"leader": False}),
    ],
)
def test_a_probe_says_what_is_wrong(path: str, well: dict[str, object], ill: dict[str, object]) -> None:
    for health, status, document in ((WELL, "200 OK", well), (ILL, "503 Service Unavailable", ill)):
        answer = pages(health).answer(path)
        assert (answer.status, json.loads(answer.content)) == (status, document)


def test_an_unknown_path_names_the_known_ones() -> None:
    answer = pages().answer("/healthy")
    assert answer.status == "404 Not Found"
    assert b"/liveness, /readiness, /leader, /metrics, /assignment" in answer.content


def test_exemplars_are_shown_to_those_who_ask_for_openmetrics() -> None:
    registry = CollectorRegistry()
    Histogram("x_seconds", "X.", buckets=(1,), registry=registry).observe(0.5, {"cause": "member-joined"})
    shown = Pages(lambda: WELL, registry)
    plain, open_metrics = shown.answer("/metrics"), shown.answer("/metrics", OPENMETRICS)
    assert (plain.kind.partition(";")[0], b"member-joined" in plain.content) == ("text/plain", False)
    assert open_metrics.kind.startswith("application/openmetrics-text")
    assert b'x_seconds_bucket{le="1.0"} 1.0 # {cause="member-joined"} 0.5' in open_metrics.content


def test_clients_that_send_half_a_request_keep_no_probe_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Handler.handle_one_request`, begin no limit."""
    monkeypatch.setattr(http_server, "MAX_CLIENTS", 2)
    server = serve(("127.0.0.1", 0), pages())
    limits = Limits(server)
    slow = [create_connection(("127.0.0.1", server.server_port)) for _ in range(2)]
    probe = create_connection(("127.0.0.1", server.server_port))
    try:
        with gevent.Timeout(WITHIN_S):
            for one in slow:
                one.sendall(b"GET /live")
            probe.sendall(b"GET /liveness HTTP/1.0\r\n\r\n")
            while len(limits.running()) < 2:
                gevent.sleep(0.001)
            limits.end()
            assert probe.recv(100).startswith(b"HTTP/1.1 200 OK")
            assert [one.recv(100) for one in slow] == [b"", b""]
    finally:
        server.stop(timeout=0)
        for one in (*slow, probe):
            one.close()


@pytest.mark.parametrize("sent", [b"", b"GET /liveness HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_many_clients_that_send_nothing_more_delay_a_probe_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """In `_Handler.handle`, give each the whole time: a few hundred idle ones keep a probe waiting for ever."""
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 10 * WITHIN_S)
    monkeypatch.setattr(http_server, "CROWD_TIMEOUT_S", 0.001)
    monkeypatch.setattr(http_server, "MAX_CLIENTS", 4)
    server = serve(("127.0.0.1", 0), pages())
    idle = [create_connection(("127.0.0.1", server.server_port)) for _ in range(40)]
    probe = create_connection(("127.0.0.1", server.server_port))
    try:
        for one in idle:
            one.sendall(sent)
        probe.sendall(b"GET /liveness HTTP/1.0\r\n\r\n")
        with gevent.Timeout(WITHIN_S):
            assert probe.recv(100).startswith(b"HTTP/1.1 200 OK")
    finally:
        server.stop(timeout=0)
        for one in (*idle, probe):
            one.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        *((f"{method} /liveness HTTP/1.0\r\n\r\n", "405") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")),
        ("HEAD /liveness HTTP/1.0\r\n\r\n", "200"),
        ("GET /" + "a" * 10_000 + " HTTP/1.0\r\n\r\n", "414"),
        ("GET /liveness HTTP/1.0\r\n" + "".join(f"H{number}: x\r\n" for number in range(200)) + "\r\n", "400"),
        ("GET /liveness HTTP/1.0\r\nH: " + "x" * 100_000 + "\r\n\r\n", "400"),
        ("POST /liveness HTTP/1.0\r\nContent-Length: 1000000000000\r\n\r\n", "405"),
        ("GET /../../etc/passwd HTTP/1.0\r\n\r\n", "404"),
        ("GET\xa0/liveness\r\n\r\n", "400"),
    ],
)
def test_what_is_not_a_small_request_to_read_is_refused(request_: str, status: str) -> None:
    server = serve(("127.0.0.1", 0), pages())
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            with contextlib.suppress(ConnectionError):  # the server may answer before it has read everything
                client.sendall(request_.encode("latin-1"))
            assert client.recv(100).split()[1].decode() == status
    finally:
        server.stop(timeout=0)


def test_a_client_gets_an_answer_that_takes_long_to_make() -> None:
    """In `_Handler.run_application`, let the client's limit go on: a leader in a storm shows no metrics."""
    assert ask_slow(ends=True) == "HTTP/1.1 200 OK"


def test_an_answer_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAKING_TIMEOUT_S", 0.05)
    assert ask_slow(ends=False) == "HTTP/1.1 503 Service Unavailable"


def ask_slow(*, ends: bool) -> str:
    """Return the first line of the answer of a page that is made until all limits of clients are over, or for ever."""
    begun, may_end = Event(), Event()

    def page() -> tuple[bool, dict[str, object]]:
        begun.set()
        may_end.wait()
        return True, {}

    server = serve(("127.0.0.1", 0), Pages(lambda: WELL, CollectorRegistry(), {"/slow": page}))
    limits = Limits(server)
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            begun.wait()
            limits.end()
            if ends:
                may_end.set()
            return client.recv(1 << 10).decode().partition("\r\n")[0]
    finally:
        server.stop(timeout=0)


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /leader HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx",
        b"GET /leader HTTP/1\r\n\r\n",
        b"GET /leader HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
        b"GET /leader HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"GET /leader HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=9\xff;q=a\r\n\r\n",
        b"GET /leader HTTP/1.1\r\n\r\n" * 100_000,  # whose answers are not read
    ],
)
def test_no_client_fills_the_log(
    request_: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Remove a method of `_Handler`: gevent writes a traceback for each request."""
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 0.05)
    server = serve(("127.0.0.1", 0), pages())
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(request_)
            with contextlib.suppress(ConnectionError):
                while answer := client.recv(1 << 20):
                    assert b" 500 " not in answer
    finally:
        server.stop(timeout=0)
    assert capfd.readouterr() == ("", "")


def test_only_so_many_clients_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `serve`, limit nothing."""
    monkeypatch.setattr(http_server, "MAX_CLIENTS", 2)
    begun, may_end = list[int](), Event()

    def page() -> tuple[bool, dict[str, object]]:
        begun.append(1)
        may_end.wait(WITHIN_S)
        return True, {}

    server = serve(("127.0.0.1", 0), Pages(lambda: WELL, CollectorRegistry(), {"/slow": page}))
    clients = [create_connection(("127.0.0.1", server.server_port)) for _ in range(3)]
    try:
        with gevent.Timeout(WITHIN_S):
            for client in clients:
                client.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            while len(begun) < 2:
                gevent.sleep(0)
            for _ in range(20):  # turns of the loop, in which the third would begin
                gevent.sleep(0)
            assert len(begun) == 2
            may_end.set()
            assert all(client.recv(100).startswith(b"HTTP/1.1 200 OK") for client in clients)
    finally:
        server.stop(timeout=0)
        for client in clients:
            client.close()


class Counted(Pace):
    """A pace that is only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def wait(self) -> None:
        self.requests += 1


def test_each_request_waits_for_its_turn_also_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Handler`, let a client that keeps its connection go on: a flood delays the loop."""
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 10 * WITHIN_S)
    server = serve(("127.0.0.1", 0), pages())
    server.pace = pace = Counted()
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /leader HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
            answers = b""
            while answers.count(b"200 OK") < 3:
                answers += (received := client.recv(1_000))
                assert received
    finally:
        server.stop(timeout=0)
    assert pace.requests >= 3


def test_pages_in_a_thread_can_only_be_read() -> None:
    with serving_in_a_thread(("127.0.0.1", 0), pages()) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/leader?pretty", timeout=WITHIN_S) as answer:
            assert json.load(answer) == {"leader": True, "epoch": 3}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/leader", data=b"x")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=WITHIN_S)  # noqa: S310  # a literal address
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def test_an_address_that_is_used_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = used.getsockname()
        with pytest.raises(ConfigurationError, match="cannot be served"), serving_in_a_thread(address, pages()):
            pass


def test_a_server_that_cannot_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop needs descriptors, and may hang without."""
    with (
        mock.patch("gevent.get_hub", side_effect=SystemError("(libev) error creating pipe")),
        pytest.raises(ConfigurationError, match=r"^--http: no server can work: .libev. error creating pipe"),
        serving_in_a_thread(("127.0.0.1", 0), pages()),
    ):
        pass
    monkeypatch.setattr(http_server, "START_TIMEOUT_S", 0.01)
    released = threading.Event()

    def late_hub() -> None:
        released.wait(WITHIN_S)
        raise SystemError

    with (
        mock.patch("gevent.get_hub", side_effect=late_hub),
        pytest.raises(ConfigurationError, match=r"^--http: the server did not begin to work within 0"),
        serving_in_a_thread(("127.0.0.1", 0), pages()),
    ):
        pass
    released.set()


def streaming(pieces: Iterator[bytes]) -> Pages:
    return Pages(
        lambda: WELL, CollectorRegistry(), site=lambda path, _query: Stream("x/y", pieces) if path == "/s" else None
    )


def test_a_stream_lasts_longer_than_other_answers_and_ends_its_connection() -> None:
    """In `_Handler._last`, cancel nothing."""
    may_end = Event()

    def pieces() -> Iterator[bytes]:
        yield b"first"
        may_end.wait(WITHIN_S)
        yield b"last"

    server = serve(("127.0.0.1", 0), streaming(pieces()))
    limits = Limits(server)
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /s HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while b"first" not in answer:
                answer += (received := client.recv(1_000))
                assert received
            limits.end()
            may_end.set()
            answer += b"".join(iter(lambda: client.recv(1_000), b""))
        assert b"Content-Type: x/y" in answer
        assert answer.endswith(b"4\r\nlast\r\n0\r\n\r\n")
    finally:
        server.stop(timeout=0)


def test_a_client_that_does_not_read_its_stream_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Handler.write`, wait for ever."""
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 0.05)
    closed = Event()

    def pieces() -> Iterator[bytes]:
        try:
            while True:
                yield bytes(1_000_000)
        finally:
            closed.set()

    server = serve(("127.0.0.1", 0), streaming(pieces()))
    try:
        with create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET /s HTTP/1.1\r\nHost: x\r\n\r\n")
            assert closed.wait(WITHIN_S)
    finally:
        server.stop(timeout=0)


def test_the_head_of_a_stream_is_no_stream() -> None:
    server = serve(("127.0.0.1", 0), streaming(iter([b"x"])))
    try:
        with gevent.Timeout(WITHIN_S), create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"HEAD /s HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(1_000), b""))
        assert (answer[9:12], answer.endswith(b"\r\n\r\n")) == (b"200", True)
    finally:
        server.stop(timeout=0)
