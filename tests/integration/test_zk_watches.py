"""Lasting watches of a real ZooKeeper: they report what that in memory reports, and end with the connection."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import gevent
from gevent.queue import Queue

from tests.support.deadlines import WITHIN_S
from tests.support.zk_model import ZkModel
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import (
    Connected,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Replied,
    SetContent,
    WatchBelow,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.runtime.zk import BlockingZk, ZkClient

TOP = "/lasting"
WRITES: tuple[tuple[Operation, ...], ...] = (
    (Create(f"{TOP}/command-", b"1", sequence=True),),
    (Create(f"{TOP}/command-", b"2", sequence=True), SetContent(f"{TOP}/command-0000000000", b"3")),
    (Create(f"{TOP}/command-0000000001/below"), Create(f"{TOP}-beside")),
    (Delete(f"{TOP}/command-0000000001/below"), Delete(f"{TOP}/command-0000000001")),
    (SetContent(TOP, b"4"), Delete(f"{TOP}-beside")),
    (Delete(f"{TOP}/command-0000000000"), Delete(TOP)),
    (Create(TOP), Create(f"{TOP}/command-", sequence=True)),
)


def expected() -> list[Watched]:
    model = ZkModel()
    model.perform(Multi((Create(TOP),)))
    session = model.open()
    model.send(session, 1, WatchBelow(TOP))
    model.perform_next(session)
    for operations in WRITES:
        assert isinstance(model.perform(Multi(operations)), Done)
    return [event for event, _position in session.inbox if isinstance(event, Watched)]


def test_a_lasting_watch_names_every_node_that_changes_until_the_connection_breaks(agent_cluster: LocalCluster) -> None:
    with BlockingZk(agent_cluster.zookeeper) as top:
        top.perform(Multi((Create("/watches"), Create(f"/watches{TOP}"))))
    hosts = f"{agent_cluster.zookeeper}/watches"
    events: Queue[ZooKeeperEvent] = Queue()
    client = ZkClient(hosts, 6_000, events.put)
    with closing(client), gevent.Timeout(WITHIN_S):
        client.start()
        assert isinstance(events.get(), Connected)
        client.request(1, WatchBelow(TOP))
        assert events.get() == Replied(1, Done())
        client.request(2, ListChildren(TOP))
        assert isinstance(events.get(), Replied)
        with BlockingZk(hosts) as other:
            for operations in WRITES:
                other.perform(Multi(operations))
            found = [events.get() for _ in expected()]
            assert found == expected()
            cast("Any", client)._kazoo._connection._socket.close()
            while not isinstance(events.get(), Connected):
                pass
            other.perform(Multi((Create(f"{TOP}/command-", sequence=True),)))
            client.request(3, Get(TOP))
            assert isinstance(events.get(), Replied)
