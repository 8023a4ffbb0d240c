"""A server that accepts a connection and never answers, as a starting ZooKeeper may, costs no session."""

from __future__ import annotations

from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer
from gevent.socket import socket

from zkrebalancer.runtime.zk import ZkClient, patient_hosts

SESSION_MS = 18_000  # of which a try takes a third


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
