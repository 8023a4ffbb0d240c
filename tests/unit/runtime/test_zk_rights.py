"""Who is who in a secured tree: whatever the first read finds, a client becomes usable once the node can be read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent.event import AsyncResult
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, MarshallingError, NoAuthError, NoNodeError
from kazoo.protocol.states import EventType

from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.rights import Principals
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.zk_login import Login
from zkrebalancer.runtime.zk_rights import TreeRights

WHO = rights.encode(Principals(coordinators=("sasl:c",)))
CHANGED = SimpleNamespace(type=EventType.CHANGED)


class Connection:
    """A client of ZooKeeper whose answers the test gives, one after the other."""

    def __init__(self) -> None:
        self.connected = True
        self.asked: list[str] = []
        self.watch: Any = None
        self._waiting: list[AsyncResult[Any]] = []
        self.rights = TreeRights(cast("KazooClient", self), Login(ZooKeeperSecurity(user="u", password="p")))  # noqa: S106  # of this test
        self.usable_count = 0

    def read(self) -> None:
        self.rights.read(self._become_usable)

    def _become_usable(self) -> None:
        self.usable_count += 1

    def exists_async(self, path: str, watch: object) -> AsyncResult[Any]:
        assert path == paths.SECURITY
        self.watch = watch
        return self._asked("exists")

    def get_async(self, path: str) -> AsyncResult[Any]:
        assert path == paths.SECURITY
        return self._asked("get")

    def _asked(self, what: str) -> AsyncResult[Any]:
        self.asked.append(what)
        self._waiting.append(AsyncResult())
        return self._waiting[-1]

    def answer(self, *answers: object) -> None:
        for answer in answers:
            result = self._waiting.pop(0)
            if isinstance(answer, Exception):
                result.set_exception(answer)
            else:
                result.set(answer)
            self.settle()

    def settle(self) -> None:
        for _ in range(5):
            gevent.sleep(0)


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses before retries, which take no time here.

    Only here: other tests of this process may have left greenlets that try again, and would do so without a pause.
    """
    pauses_s: list[float] = []

    def later(pause_s: float, retry: Callable[..., None], number: int) -> None:
        pauses_s.append(pause_s)
        retry(number)

    only_here = SimpleNamespace(spawn=gevent.spawn, spawn_later=later)
    monkeypatch.setattr("zkrebalancer.runtime.zk_rights.gevent", only_here)
    return pauses_s


@pytest.fixture
def connection(pauses_s: list[float]) -> Connection:
    assert pauses_s == []
    connection = Connection()
    connection.read()
    return connection


STAT = object()
READABLE = (STAT, (WHO, STAT))


def test_a_client_is_usable_once_it_knows_who_is_who(connection: Connection) -> None:
    connection.answer(STAT)
    assert connection.usable_count == 0
    connection.answer((WHO, STAT))
    assert connection.usable_count == 1
    assert connection.rights.acl(paths.GROUPS) is not None


def test_an_open_tree_makes_it_usable_at_once(connection: Connection) -> None:
    connection.answer(None)
    assert connection.usable_count == 1
    assert connection.rights.acl(paths.GROUPS) is None


@pytest.mark.parametrize("kind", [EventType.CREATED, EventType.CHANGED, EventType.DELETED])
def test_whatever_happens_to_the_node_is_read(connection: Connection, kind: str) -> None:
    """In `TreeRights._changed`, look at changes only: a tree that becomes secured stays open for this client."""
    connection.answer(None)
    asked = len(connection.asked)
    connection.watch(SimpleNamespace(type=EventType.NONE))
    assert len(connection.asked) == asked
    connection.watch(SimpleNamespace(type=kind))
    assert len(connection.asked) == asked + 1


def test_a_change_while_it_reads_leaves_it_usable(connection: Connection) -> None:
    """It never became usable on this connection: the answer to the read that counts called nobody."""
    connection.watch(CHANGED)
    connection.answer(STAT, STAT, (WHO, STAT))
    assert connection.usable_count == 1
    connection.watch(CHANGED)
    connection.answer(*READABLE)
    assert connection.usable_count == 1


@pytest.mark.parametrize("content", [b"{", b'{"version": 9}'])
def test_a_node_that_is_repaired_makes_it_usable(
    connection: Connection, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection.answer(STAT, (content, STAT))
    assert "nothing is written until it is repaired" in caplog.text
    assert "delete it as a coordinator, and run `security init`" in str(connection.rights.fault)
    connection.watch(CHANGED)
    connection.answer(*READABLE)
    assert (connection.usable_count, connection.rights.fault) == (1, None)


@pytest.mark.parametrize("error", [NoAuthError(), MarshallingError()])
@pytest.mark.parametrize("before", [(), (STAT,)])
def test_a_refused_read_is_tried_again_and_told_once(
    connection: Connection, error: Exception, before: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody tells when a right is granted."""
    for _ in range(3):
        connection.answer(*before, error)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{paths.SECURITY} ")
    connection.answer(*READABLE)
    assert connection.usable_count == 1


def test_pauses_grow(connection: Connection, pauses_s: list[float]) -> None:
    for _ in range(2_000):
        connection.answer(NoAuthError())
    assert pauses_s[:11] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    connection.answer(*READABLE)
    connection.watch(CHANGED)
    connection.answer(NoAuthError())
    assert pauses_s[-1] == 0.1


def test_a_broken_connection_ends_the_read(connection: Connection) -> None:
    connection.answer(ConnectionLoss())
    assert connection.asked == ["exists"]
    connection.read()
    connection.answer(*READABLE)
    assert connection.usable_count == 1


def test_after_the_connection_broke_nothing_is_tried_again(connection: Connection) -> None:
    connection.connected = False
    connection.answer(NoAuthError())
    assert connection.asked == ["exists"]


def test_a_node_that_is_deleted_in_between_is_looked_for_again(connection: Connection) -> None:
    connection.answer(STAT, NoNodeError(), None)
    assert connection.usable_count == 1
