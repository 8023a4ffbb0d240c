"""The kazoo wrapper beside a server that answers what nobody has asked."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from socket import AI_NUMERICHOST, gaierror
from typing import Any, cast
from unittest import mock
from unittest.mock import DEFAULT

import gevent
import pytest
from gevent.event import AsyncResult
from gevent.queue import Queue
from kazoo.exceptions import ConnectionLoss, MarshallingError
from kazoo.protocol.states import KazooState

from tests.support.deadlines import WITHIN_S
from tests.unit.runtime.zk_server import SESSION, TIMEOUT_MS, Server, answer
from zkrebalancer.protocol.calls import (
    Connected,
    Delete,
    Done,
    Multi,
    Refusal,
    Refused,
    Replied,
    Suspended,
    Sync,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.zk import BlockingZk, ZkClient


def odd_server(spoilt: bytes) -> Server:
    """Return a server whose answers to its first connection are spoilt."""

    def answers(_kind: int, number: int) -> list[bytes]:
        return [spoilt if server.connections == 1 else answer(number, struct.pack(">i1s", 1, b"/"))]

    server = Server(answers)
    return server


@pytest.mark.parametrize(
    "spoilt",
    [struct.pack(">iqi", 2, 1, 0) + struct.pack(">i1s", 1, b"/"), b""],
    ids=["of another call", "no header"],
)
def test_an_answer_that_cannot_be_read_costs_the_connection_only(spoilt: bytes) -> None:
    """In `runtime.zk_connection`, do not catch it: kazoo ends for good, and the session with it."""
    events: Queue[ZooKeeperEvent] = Queue()
    server = odd_server(spoilt)
    client = ZkClient(server.address, TIMEOUT_MS, events.put)
    client.start()
    try:
        connected = Connected(SESSION, TIMEOUT_MS)
        assert events.get(timeout=WITHIN_S) == connected
        client.request(1, Sync("/"))
        found = [events.get(timeout=WITHIN_S) for _ in range(3)]
        assert sorted(map(repr, found)) == sorted(
            map(repr, [Replied(1, Refused(Refusal.CONNECTION_LOST)), Suspended(), connected])
        )
        client.request(2, Sync("/"))
        assert events.get(timeout=WITHIN_S) == Replied(2, Done())
    finally:
        client.close()
        server.close()


def test_an_error_that_kazoo_does_not_know_is_a_refusal() -> None:
    """In `zk_answers`, leave it to kazoo: the call would never be answered."""
    events: Queue[ZooKeeperEvent] = Queue()
    server = odd_server(struct.pack(">iqi", 1, 1, -999))
    client = ZkClient(server.address, TIMEOUT_MS, events.put)
    client.start()
    try:
        assert events.get(timeout=WITHIN_S) == Connected(SESSION, TIMEOUT_MS)
        client.request(1, Sync("/"))
        assert events.get(timeout=WITHIN_S) == Replied(1, Refused(Refusal.NOT_ALLOWED))
    finally:
        client.close()
        server.close()


def test_an_answer_to_a_write_that_kazoo_cannot_read_costs_the_connection() -> None:
    """In `ZkClient._finish`, keep the connection: who waits until everything is read again would wait for ever."""
    events: Queue[ZooKeeperEvent] = Queue()
    server = odd_server(struct.pack(">iqi", 1, 1, 0) + b"?")
    client = ZkClient(server.address, TIMEOUT_MS, events.put)
    client.start()
    try:
        connected = Connected(SESSION, TIMEOUT_MS)
        assert events.get(timeout=WITHIN_S) == connected
        client.request(1, Multi((Delete("/n"),)))
        found = [events.get(timeout=WITHIN_S) for _ in range(3)]
        assert found == [Replied(1, Refused(Refusal.CONNECTION_LOST)), Suspended(), connected]
    finally:
        client.close()
        server.close()


def test_calls_that_wait_when_the_connection_breaks_are_refused_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ZkClient._finish`, send what waits all the same, or one call only; in `_session_changed`, stay usable."""
    monkeypatch.setattr("zkrebalancer.runtime.zk.MAX_IN_FLIGHT", 2)
    events: list[ZooKeeperEvent] = []
    sent: list[AsyncResult[object]] = []

    def send(_call: object) -> AsyncResult[object]:
        sent.append(AsyncResult())
        return sent[-1]

    client = ZkClient("nowhere:1", TIMEOUT_MS, events.append)
    monkeypatch.setattr(client, "_call", send)
    client._usable = True
    for number in range(5):
        client.request(number, Sync("/"))
    assert (len(sent), client.queued_count) == (2, 3)
    client._session_changed(KazooState.SUSPENDED)
    sent[0].set_exception(ConnectionLoss())
    gevent.sleep(0)
    client.request(5, Sync("/"))
    assert events == [Replied(number, Refused(Refusal.CONNECTION_LOST)) for number in (0, 2, 3, 4, 5)]
    assert (len(sent), client.queued_count) == (2, 0)


def test_a_client_without_a_server_is_trying_until_its_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ZkClient.is_trying`, ask whether it is connected, or forget the pause after a refused login."""
    monkeypatch.setattr("zkrebalancer.runtime.zk.LOGIN_PAUSE_S", WITHIN_S)
    client = ZkClient("127.0.0.1:1", TIMEOUT_MS, lambda _: None)
    client.start()
    gevent.sleep(0)
    tries = [client.is_trying]
    cast("Any", client._kazoo)._connection._connection_routine.kill(timeout=WITHIN_S)
    tries.append(client.is_trying)
    client._login_refused()
    tries.append(client.is_trying)
    assert tries == [True, False, True]
    assert client._restarting is not None
    client._restarting.kill()
    client.close()


def assert_goes_on(client: ZkClient, tried: mock.Mock, times: int) -> None:
    """Start a client, and see it try so many times, and more; close it."""
    client.start()
    try:
        with gevent.Timeout(WITHIN_S):
            while tried.call_count < times and client.is_trying:
                gevent.sleep(0.001)
        assert client.is_trying
    finally:
        client.close()


LOOK_UP_ERRORS = [OSError(24, "no descriptors"), UnicodeError("label too long"), gaierror(-3, "not now")]


@pytest.mark.parametrize("error", LOOK_UP_ERRORS)
@pytest.mark.parametrize("hosts", ["nowhere:1", "nowhere:1,nowhere:2"])
def test_a_client_goes_on_connecting_whatever_a_look_up_raises(
    monkeypatch: pytest.MonkeyPatch, hosts: str, error: Exception
) -> None:
    """In `keep_connecting`, leave look-ups to kazoo: without descriptors for a moment, it never connected again."""
    look_up = mock.Mock(side_effect=error)
    client = ZkClient(hosts, TIMEOUT_MS, lambda _: None)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection._look_up", look_up)
    assert_goes_on(client, look_up, 10)


def test_a_client_goes_on_connecting_without_threads_for_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `LookUps._look_up_in_thread`, let it raise: it would end the connection, and later the process."""
    begins = mock.Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection._start_thread", begins)
    client = ZkClient("nowhere:1", TIMEOUT_MS, lambda _: None)
    assert_goes_on(client, begins, 3)


@pytest.mark.parametrize("error", [MarshallingError(), TypeError("no text")])
def test_a_client_goes_on_connecting_whatever_an_attempt_raises(
    monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """In `keep_connecting`, catch fewer kinds of errors, or log each try."""
    attempt = mock.Mock(side_effect=error)
    client = ZkClient("127.0.0.1:1", TIMEOUT_MS, lambda _: None)
    monkeypatch.setattr(cast("Any", client._kazoo)._connection, "_connect", attempt)
    assert_goes_on(client, attempt, 4)
    assert len([line for line in caplog.messages if "is closed" in line]) == 1


@pytest.fixture
def silent_name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """Return the names that are asked for, and what has to be set before they are answered."""
    asked, released = list[str](), threading.Event()

    def look_up(host: str, *arguments: int) -> list[tuple[Any, ...]]:
        if AI_NUMERICHOST in arguments[4:]:
            raise gaierror(-2, "it is a name")
        asked.append(host)
        released.wait(WITHIN_S)
        return [(0, 0, 0, "", ("127.0.0.1", 1))]

    monkeypatch.setattr("zkrebalancer.runtime.zk_connection._look_up", look_up)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection.LOOK_UP_S", 0.001)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection.OTHERS_S", 0.001)
    yield asked, released
    released.set()


def test_a_name_server_that_is_silent_blocks_no_hub_and_is_asked_once(
    silent_name_server: tuple[list[str], threading.Event],
) -> None:
    """In `LookUps._ask`, look up in this thread, or forget what is under way."""
    client = ZkClient("nowhere:1,elsewhere:1", TIMEOUT_MS, lambda _: None)
    client.start()
    with gevent.Timeout(WITHIN_S):
        while len(silent_name_server[0]) < 2:
            gevent.sleep(0.005)
    for _ in range(50):
        gevent.sleep(0.005)
    assert client.is_trying
    client.close()
    assert sorted(silent_name_server[0]) == ["elsewhere", "nowhere"]


def test_a_thread_may_end_before_its_look_up_does(
    silent_name_server: tuple[list[str], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `LookUps._look_up_in_thread`, let the end of the loop raise: the look-up's thread would show it."""
    asked, released = silent_name_server
    problems, threads = list[object](), list[threading.Thread]()

    def start(function: Callable[[], None], arguments: tuple[()]) -> None:
        threads.append(threading.Thread(None, function, args=arguments, daemon=True))
        threads[-1].start()

    def work() -> None:
        client = ZkClient("nowhere:1", TIMEOUT_MS, lambda _: None)
        client.start()
        with gevent.Timeout(WITHIN_S):
            while not asked:
                gevent.sleep(0.001)
        client.close()
        gevent.get_hub().destroy(destroy_loop=True)

    monkeypatch.setattr("threading.excepthook", problems.append)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection._start_thread", start)
    start(work, ())
    threads[0].join(WITHIN_S)
    released.set()
    for thread in threads:
        thread.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    assert (asked, problems) == (["nowhere"], [])


@pytest.fixture
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> tuple[ZkClient, mock.Mock]:
    """Return a client to which the operating system gives no sockets at first, and what gives them."""
    client = ZkClient("nowhere:1", TIMEOUT_MS, lambda _: None, ZooKeeperSecurity(user="u", password="p"))  # noqa: S106  # of this test
    sockets = mock.Mock(side_effect=[OSError(24, "no descriptors"), DEFAULT])
    monkeypatch.setattr(cast("Any", client._kazoo)._connection, "start", sockets)
    return client, sockets


def test_without_descriptors_a_client_does_not_start_and_leaves_no_greenlet(
    without_sockets: tuple[ZkClient, mock.Mock],
) -> None:
    client, _sockets = without_sockets
    with pytest.raises(OSError, match="no descriptors"):
        client.start()
    assert not cast("Any", client._handler).running


def test_after_a_refused_login_a_client_connects_again_even_without_descriptors(
    without_sockets: tuple[ZkClient, mock.Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `ZkClient._restart`, try once: the client never connected again, and said nothing."""
    client, sockets = without_sockets
    monkeypatch.setattr("zkrebalancer.runtime.zk.LOGIN_PAUSE_S", 0.0)
    client._restart()
    with gevent.Timeout(WITHIN_S):
        while sockets.call_count < 2:
            gevent.sleep(0)
    client._handler.stop()


def test_a_client_whose_connection_breaks_while_it_begins_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `BlockingZk.__init__`, close it after a wrong chroot or login only: who tries again leaves one each time."""
    closed: list[ZkClient] = []
    close = ZkClient.close

    def note_and_close(client: ZkClient) -> None:
        closed.append(client)
        close(client)

    monkeypatch.setattr(ZkClient, "close", note_and_close)
    server = odd_server(b"")
    try:
        with pytest.raises(ZooKeeperUnavailableError, match="broke during a call"):
            BlockingZk(server.address, TIMEOUT_MS)
    finally:
        server.close()
    assert [client.is_trying for client in closed] == [False]
