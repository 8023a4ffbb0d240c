"""Programs of a cluster: a failed start is reported at once, with the log."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zkrebalancer.localcluster.errors import LocalClusterError, ServerStartError
from zkrebalancer.localcluster.ports import free_ports, is_free, reserve_ports
from zkrebalancer.localcluster.server import Server

LISTENING = (
    "import socket,sys; s=socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up', flush=True); s.accept()"
)


class ServerFactory:
    """Creates servers from Python code; the fixture kills them all."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "server.log"
        self.spawn_count = 0
        self.made: list[Server] = []

    def server(self, code: str, is_ready: Callable[[int], bool]) -> Server:
        (port,) = free_ports(1)
        command = [sys.executable, "-c", code, str(port)]
        made = Server("probe", command, self.log, self._count, port=port, is_ready=lambda: is_ready(port))
        self.made.append(made)
        return made

    def _count(self) -> None:
        self.spawn_count += 1


@pytest.fixture
def factory(tmp_path: Path) -> Iterator[ServerFactory]:
    made = ServerFactory(tmp_path)
    yield made
    for server in made.made:
        server.kill()


def test_a_server_is_ready_when_it_answers_and_is_gone_after_stop(factory: ServerFactory) -> None:
    server = factory.server(LISTENING, lambda port: not is_free(port))
    server.start()
    assert not is_free(server.port)
    assert factory.spawn_count == 1
    server.stop()
    assert is_free(server.port)
    assert not server.is_running


def test_a_server_can_be_killed_and_started_again_with_a_new_record(factory: ServerFactory) -> None:
    server = factory.server(LISTENING, lambda port: not is_free(port))
    server.start()
    first = server.process
    server.kill()
    server.start()
    assert server.process != first


def test_a_server_that_dies_is_reported_with_its_last_log_lines(factory: ServerFactory) -> None:
    code = "print('first line'); print('2026 ERROR no disk left'); print('bye'); raise SystemExit(7)"
    server = factory.server(code, lambda _port: False)
    with pytest.raises(
        ServerStartError, match=r"probe ended with exit code 7 .*ERROR no disk left.*server\.log"
    ) as caught:
        server.start()
    assert "first line\n2026 ERROR no disk left\nbye" in caught.value.__notes__
    assert "\n" not in str(caught.value)
    assert server.has_failed


def test_a_server_that_never_answers_is_reported_after_the_deadline(factory: ServerFactory) -> None:
    server = factory.server("import time; time.sleep(600)", lambda _port: False)
    server.spawn()
    with pytest.raises(ServerStartError, match=r"not ready within 0\.2 s"):
        server.wait_until(lambda: False, deadline_s=0.2)


def test_a_port_in_use_is_reported_before_the_spawn(factory: ServerFactory) -> None:
    server = factory.server(LISTENING, lambda port: not is_free(port))
    with socket.create_server(("127.0.0.1", server.port)):
        with pytest.raises(LocalClusterError, match=f"port {server.port} on 127.0.0.1, which probe needs, is in use"):
            server.start()
        assert factory.spawn_count == 0


def test_a_running_server_is_not_spawned_twice(factory: ServerFactory) -> None:
    server = factory.server(LISTENING, lambda port: not is_free(port))
    server.start()
    with pytest.raises(LocalClusterError, match="is running already"):
        server.spawn()


def test_free_ports_are_distinct_and_below_the_range_of_outgoing_connections() -> None:
    ports = free_ports(20)
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert max(ports) < lowest_outgoing or lowest_outgoing < 16_000


def test_a_reserved_port_is_for_its_own_server_only() -> None:
    (reserved,) = reserve_ports(1)
    with reserved:
        address = reserved.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        for _begun_again in range(2):
            with socket.create_server(address):  # sets SO_REUSEADDR, as Java does
                pass
