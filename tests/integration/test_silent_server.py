"""No session is lost to a server that never answers because it is starting, or its host is cut off."""

from __future__ import annotations

import contextlib

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer
from gevent.socket import socket

from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.zk import ZkClient
from zkrebalancer.runtime.zk_connection import CONNECT_TRIES, Handler, patient_hosts, tcp_connect_s
from zkrebalancer.runtime.zk_login import Login

SESSION_MS = 18_000  # of which a try takes a third
SESSION_S = 12.0
HANDSHAKE_S = SESSION_S / CONNECT_TRIES
MORE_THAN_A_QUEUE = 4
TLS = Login(ZooKeeperSecurity(tls=True))


def test_a_silent_server_is_asked_again_while_the_session_lasts() -> None:
    taken: Queue[socket] = Queue()
    end = Event()

    def hold(connection: socket, _address: object) -> None:
        taken.put(connection)
        end.wait()

    server = StreamServer(("127.0.0.1", 0), hold)
    server.start()
    client = ZkClient(f"127.0.0.1:{server.server_port}", SESSION_MS, lambda _event: None)
    client.start()
    try:
        taken.get(timeout=SESSION_MS / 1000)
        taken.get(timeout=SESSION_MS / 1000 * 0.9)
    finally:
        end.set()
        client.close()
        server.stop()


def test_servers_are_named_until_there_are_enough_tries() -> None:
    assert patient_hosts("a:1") == "a:1,a:1,a:1"
    assert patient_hosts("a:1,b:2/root/below") == "a:1,b:2,a:1,b:2/root/below"
    assert patient_hosts("a:1,b:2,c:3/root") == "a:1,b:2,c:3/root"


@pytest.mark.parametrize("login", [None, TLS], ids=["plain", "tls"])
def test_a_host_that_is_cut_off_is_given_up_while_the_session_lasts(login: Login | None) -> None:
    """In `Handler.create_connection`, wait for the connection as long as for the session."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket())  # whose kernel drops what comes when its queue is full
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(MORE_THAN_A_QUEUE):
            waiting = stack.enter_context(socket())
            waiting.setblocking(False)  # noqa: FBT003
            waiting.connect_ex(listener.getsockname())
        with gevent.Timeout(HANDSHAKE_S), pytest.raises(OSError, match="timed out"):
            Handler(login).create_connection(listener.getsockname(), "localhost", SESSION_S)


def test_the_rest_of_a_session_suffices_for_a_silent_host_and_another() -> None:
    assert [tcp_connect_s(session_s) for session_s in (0.9, 3, 6, 18)] == [0.3, 1, 1, 3]
