"""The kazoo wrapper with many calls at once, without a server."""

from __future__ import annotations

from typing import Any, cast

import gevent
import gevent.socket
import pytest
from gevent.event import AsyncResult
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, ZnodeStat

from zkrebalancer.protocol.calls import Connected, Content, Get, Replied, ZooKeeperEvent
from zkrebalancer.runtime import zk
from zkrebalancer.runtime.zk import ZkClient

STAT = ZnodeStat(*[0] * 11)
AT_ONCE = 25


class Kazoo:
    """Wakes its reader as kazoo does: a byte per call, into a socket that takes few."""

    client_id = 1, b""

    def __init__(self) -> None:
        self.wake, self.woken = gevent.socket.socketpair()
        self.wake.setsockopt(gevent.socket.SOL_SOCKET, gevent.socket.SO_SNDBUF, 1)
        self.queue: list[AsyncResult[Any]] = []

    def get_async(self, _path: str, **_options: object) -> AsyncResult[Any]:
        answer: AsyncResult[Any] = AsyncResult()
        self.queue.append(answer)
        self.wake.send(b"\0")
        return answer

    def answer_all(self, count: int) -> None:
        """Answer many calls at once, more than bytes fit into the socket."""
        for _ in range(count // AT_ONCE):
            for _ in range(AT_ONCE):
                self.woken.recv(1)
            gevent.sleep(0)
            for _ in range(AT_ONCE):
                self.queue.pop(0).set((b"", STAT))


def test_calls_above_the_limit_are_sent_where_kazoo_may_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ZkClient._finish`, send the calls that wait at once: in the hub, which must not block."""
    monkeypatch.setattr(zk, "MAX_IN_FLIGHT", AT_ONCE)
    events: list[ZooKeeperEvent] = []
    client, kazoo = ZkClient("nowhere:1", 1_000, events.append), Kazoo()
    client._kazoo = cast("KazooClient", kazoo)
    client._session_changed(KazooState.CONNECTED)
    with gevent.Timeout(5):
        reader = gevent.spawn(kazoo.answer_all, 500)
        for call_id in range(500):
            client.request(call_id, Get("/node"))
        reader.join()
        gevent.sleep(0)
    replies = [event for event in events if isinstance(event, Replied)]
    assert [reply.call_id for reply in replies] == list(range(500))
    assert all(isinstance(reply.reply, Content) for reply in replies)
    assert isinstance(events[0], Connected)
