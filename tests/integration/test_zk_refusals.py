"""Compares refusals of the ZooKeeper in memory with a real one, call by call: rights, missing nodes, versions.

Each call has a separate small tree, in which one right is withheld at the node or at its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id, Permissions

from tests.support.deadlines import WITHIN_S
from tests.support.zk_model import Right, ZkModel
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Connected,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Replied,
    Reply,
    SetContent,
    ZooKeeperEvent,
)
from zkrebalancer.runtime.zk import BlockingZk, ZkClient

ROOT = "/model_refusals"
BITS = {
    Right.READ: Permissions.READ,
    Right.WRITE: Permissions.WRITE,
    Right.CREATE: Permissions.CREATE,
    Right.DELETE: Permissions.DELETE,
}
NODE, LEAF, MISSING, ORPHAN = "/node", "/node/leaf", "/none", "/none/leaf"  # in the tree of a call
OTHER_VERSION = 7
BURST = 1_000


def _each(kind: Callable[[str], Operation | Get | ListChildren], *names: str) -> dict[str, Callable[[str], Call]]:
    return {f"{kind.__name__} {name}": partial(_call, kind, name) for name in names}


def _call(kind: Callable[[str], Operation | Get | ListChildren], name: str, top: str) -> Call:
    what = kind(top + name)
    return what if isinstance(what, Get | ListChildren) else Multi((what,))


def _other_version(path: str) -> Operation:
    return SetContent(path, b"", OTHER_VERSION)


def _other_version_deleted(path: str) -> Operation:
    return Delete(path, OTHER_VERSION)


def _other_version_checked(path: str) -> Operation:
    return Check(path, OTHER_VERSION)


def _set(path: str) -> Operation:
    return SetContent(path, b"1")


def _in_sequence(path: str) -> Operation:
    return Create(f"{path}/n-", sequence=True)


PLACES = ("", NODE, LEAF, MISSING, ORPHAN)
CALLS: dict[str, Callable[[str], Call]] = {
    **_each(Create, NODE, LEAF, NODE + "/new", MISSING, ORPHAN),
    **_each(_in_sequence, NODE, MISSING),
    **_each(_set, *PLACES),
    **_each(_other_version, NODE, MISSING),
    **_each(Delete, *PLACES),
    **_each(_other_version_deleted, NODE, LEAF, MISSING, ORPHAN),
    **_each(Check, *PLACES),
    **_each(_other_version_checked, NODE, MISSING),
    **_each(Get, *PLACES),
    **_each(ListChildren, *PLACES),
    "the second is refused": lambda top: Multi((Check(top), Delete(top + LEAF), SetContent(top + MISSING, b""))),
    "made, then missing": lambda top: Multi((Create(top + MISSING), Delete(top + ORPHAN))),
    "deleted, then used": lambda top: Multi((Delete(top + LEAF), SetContent(top + LEAF, b""))),
    "made, used, deleted": lambda top: Multi((Create(top + MISSING), Check(top + MISSING), Delete(top + MISSING))),
}
WITHHELD = [(None, ""), *((right, place) for place in ("", NODE, LEAF) for right in Right)]
NAMES = [" at ".join((right.value, place or "/")) if right else "nothing" for right, place in WITHHELD]


@pytest.fixture(scope="module")
def operator(agent_cluster: LocalCluster) -> Iterator[KazooClient]:
    """Connect a client that creates trees and withholds rights."""
    client = KazooClient(agent_cluster.zookeeper)
    client.start()
    with closing(client):
        client.create(ROOT)
        yield client
        client.delete(ROOT, recursive=True)
        client.stop()


@pytest.fixture(scope="module")
def real(agent_cluster: LocalCluster, operator: KazooClient) -> Iterator[BlockingZk]:
    """Connect a client that lacks rights."""
    with BlockingZk(agent_cluster.zookeeper + ROOT) as client:
        yield client


def _withhold(operator: KazooClient, path: str, right: Right | None) -> None:
    granted = Permissions.ALL & ~(BITS[right] if right is not None else 0)  # ADMIN stays
    operator.set_acls(path, [ACL(granted, Id("world", "anyone"))])


@pytest.mark.parametrize(("right", "place"), WITHHELD, ids=NAMES)
def test_the_model_refuses_what_a_real_server_refuses(
    operator: KazooClient, real: BlockingZk, right: Right | None, place: str
) -> None:
    differences = []
    refusals = set()
    for number, (what, make) in enumerate(CALLS.items()):
        top = f"/{right.value if right else 'nothing'}-{place.strip('/').replace('/', '-')}-{number}"
        model = ZkModel()
        for name in ("", NODE, LEAF):
            operator.create(ROOT + top + name)
            model.perform(Multi((Create(top + name),)))
        _withhold(operator, ROOT + top + place, right)
        if right is not None:
            model.denied.add(("", top + place, right))
        by_model, by_server = model.perform(make(top)), real.perform(make(top), frozenset(Refusal))
        with suppress(NoNodeError):  # the call has deleted it
            _withhold(operator, ROOT + top + place, None)
        refusals |= {by_server.refusal} if isinstance(by_server, Refused) else set()
        if _outcome(by_model) != _outcome(by_server):
            differences.append(f"{what}: the model says {by_model}, the server {by_server}")

    assert not differences, "\n".join(differences)
    assert len(refusals) >= (3 if right is None else 4), refusals  # missing, there, version; and no right


def _outcome(reply: Reply) -> Reply | type[Reply]:
    """Return the refusal, or the answer without the server's transaction ids and times."""
    return reply if isinstance(reply, Refused | Done) else type(reply)


def _ask(client: ZkClient, numbers: range) -> None:
    for number in numbers:
        client.request(number, Get("/"))


def test_a_thousand_calls_of_one_callback_are_all_answered(agent_cluster: LocalCluster) -> None:
    """In `Bell.send`, count one ring for all calls of a turn; in `ZkClient._finish`, send nothing that waits."""
    connected, replies = Event(), Queue[Reply]()

    def handle(event: ZooKeeperEvent) -> None:
        if isinstance(event, Replied):
            replies.put(event.reply)
        elif isinstance(event, Connected):
            connected.set()

    client = ZkClient(agent_cluster.zookeeper, 10_000, handle)
    client.start()
    try:
        assert connected.wait(WITHIN_S)
        for numbers in (range(BURST), range(1)):
            gevent.get_hub().loop.run_callback(_ask, client, numbers)
            assert {type(replies.get(timeout=WITHIN_S)) for _ in numbers} == {Content}
    finally:
        client.close()
