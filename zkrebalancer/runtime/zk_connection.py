"""What kazoo's connections do differently here: they are cheaper on a gevent hub, never block it, and never give up."""

from __future__ import annotations

import atexit
import errno
import logging
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import gevent
import gevent.select
from gevent import monkey
from gevent.event import AsyncResult
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException
from kazoo.handlers.gevent import SequentialGeventHandler
from kazoo.protocol.states import KeeperState

from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk_login import Login
from zkrebalancer.runtime.zk_stream import Bell, Stream

CONNECT_TRIES = 3  # per session timeout
# A silent server is noticed after two thirds of the session: the rest has to suffice for another silent one and
# for one that answers. A kernel accepts connections, however busy its server is.
TCP_CONNECT_TRIES, MIN_TCP_CONNECT_S = 6, 1.0
RECONNECT_PAUSE_S = 0.05
LOOK_UP_S = 5.0  # until there is an address, less than kazoo waits for the end of its connection
OTHERS_S = 0.5  # from then on, for those of the other servers: one name must not cost the session
Server = tuple[str, int]  # host, port
# Also in a program that gevent has patched: its look-up would make a hub in each thread, which nobody would destroy.
_start_thread = monkey.get_original("_thread", "start_new_thread")
_look_up = monkey.get_original("socket", "getaddrinfo")
Found = list[tuple[Any, ...]]  # addresses, as `socket.getaddrinfo` returns them
_log = logs.named("zkrebalancer.runtime.zk")


class SessionLog(logging.Logger):
    """Reads the granted session timeout and TLS failures from kazoo's log: its public API does not offer them."""

    granted_session_timeout_ms = 0
    when_tls_failed: Callable[[str], None]

    def log(self, level: int, msg: object, *args: object, **_options: object) -> None:
        """Take the granted timeout; log warnings at debug, because we report session changes ourselves."""
        if isinstance(msg, str) and msg.startswith("Session created") and isinstance(args[2], int):
            self.granted_session_timeout_ms = args[2]
        elif level >= logging.WARNING:
            _log.debug(msg, *args)

    def handle(self, record: logging.LogRecord) -> None:
        """Pass on what comes from warning() and the like, also at debug."""
        message = record.getMessage()
        _log.debug("%s", message)
        reason = message.removeprefix("Connection dropped: socket connection error: ")
        if reason != message and "SSL" in reason:
            self.when_tls_failed(reason)


class Handler(SequentialGeventHandler):
    """kazoo's gevent handler with cheaper sockets and a cheaper `select`, which runs several times per reply."""

    _has_connected = False

    def __init__(self, login: Login | None) -> None:
        """Connect with TLS if the login asks for it."""
        super().__init__()
        self._login = login

    def start(self) -> None:
        """Start without kazoo's `atexit` stop, which waits for greenlets of a thread that may have ended by then."""
        super().start()
        atexit.unregister(self.stop)

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **options: object) -> Stream:
        """Connect; pause before a reconnect, because many clients may have lost their connection at the same time."""
        if self._has_connected:
            gevent.sleep(RECONNECT_PAUSE_S)
        self._has_connected = True
        try:
            if self._login is not None:
                self._login.refresh()
                if self._login.security.uses_tls:
                    tcp_s, handshake_s = tcp_connect_s(timeout), timeout / CONNECT_TRIES
                    return Stream(self._login.connect(address, hostname, tcp_s, handshake_s))
        except ConfigurationError as error:  # a file that was readable at the start
            raise OSError(errno.EACCES, str(error)) from None
        connection = super().create_connection(address, hostname, tcp_connect_s(timeout), **options)  # type: ignore[misc]  # missing in kazoo's types
        return Stream(connection)

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        """Return what wakes the connection for a request."""
        bell = Bell()
        return bell, bell

    def select(
        self, rlist: list[Any], wlist: list[Any], _xlist: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Look without waiting; wait on the hub only if nothing is ready.

        `rlist` has the connection's stream and perhaps its bell, or `wlist` the stream. gevent's own `select` cannot be
        used: it begins with select(2), which accepts no descriptor above 1,023, and a process with a hundred consumers
        has more.
        """
        stream, bell = (wlist or rlist)[0], rlist[1] if len(rlist) > 1 else None
        if stream.is_clogged or (rlist and not (bell and bell.count)):
            self._flush(stream, timeout)
        if wlist:
            return [], wlist, []
        give_up_at_s = None if timeout is None else time.monotonic() + timeout
        while not (ready := _readable(stream, bell)):  # again, if what arrived is only a part of what TLS can decrypt
            left_s = None if give_up_at_s is None else give_up_at_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            stream.wait(bell, left_s)
        return ready, [], []

    def _flush(self, stream: Stream, timeout_s: float | None) -> None:
        """Send what kazoo has written; wait where the kernel takes no more."""
        while not stream.flush():
            poll = gevent.select.poll()
            poll.register(stream.fileno(), select.POLLOUT)
            if not poll.poll(None if timeout_s is None else 1_000 * timeout_s):
                raise cast("Any", self).timeout_exception("socket time-out during write")  # missing in kazoo's types


def patient_hosts(hosts: str) -> str:
    """Repeat the servers of `hosts` ("HOST:PORT[,…][/CHROOT]") so that kazoo tries at least three within one session.

    A starting ZooKeeper 3.8 may accept a connection and never reply: a request between its bind and the opening of its
    database ends in a NullPointerException, and the socket stays open. kazoo waits (session timeout / number of hosts)
    for the reply, so a single host would cost the whole session.
    """
    servers, slash, chroot = hosts.partition("/")
    named = servers.split(",")
    return ",".join(named * -(-CONNECT_TRIES // len(named))) + slash + chroot


def is_connecting(client: KazooClient) -> bool:
    """Return whether the greenlet runs that keeps kazoo connected."""
    routine = cast("Any", client)._connection._connection_routine  # noqa: SLF001  # kazoo has no public way
    return routine is not None and not routine.dead


def tcp_connect_s(session_s: float) -> float:
    """Return how long to wait until a server's kernel accepts a connection."""
    return max(session_s / TCP_CONNECT_TRIES, min(MIN_TCP_CONNECT_S, session_s / CONNECT_TRIES))


class LookUps:
    """Finds the addresses of kazoo's servers.

    kazoo's own look-ups block the hub for as long as no name server answers, and any error but an unknown name ends its
    connection for good: without free descriptors, for a moment, there is one.
    """

    def __init__(self, client: KazooClient) -> None:
        """Look up nothing yet."""
        self._client: Any = client
        self._under_way: dict[Server, AsyncResult[Found | Exception]] = {}

    def addresses(self) -> list[tuple[str, str, int]]:
        """Return (host, address, port) of each server whose name is known now, in random order."""
        servers = [(host.strip(), port) for host, port in self._client.hosts]
        asked = {server: self._ask(server) for server in dict.fromkeys(servers)}
        for one in gevent.iwait(asked.values(), timeout=LOOK_UP_S):
            if not isinstance(one.get(), Exception):
                break
        gevent.wait(asked.values(), timeout=OTHERS_S)
        known = {server: _answer(server[0], one) for server, one in asked.items()}
        found = [(server[0], *each[4][:2]) for server in servers for each in known[server]]
        random.shuffle(found)  # as kazoo, so that not all clients use the first one
        return found

    def _ask(self, server: Server) -> AsyncResult[Found | Exception]:
        """Look a server up, in a thread: this one has to show that it moves, and to end when it is asked to."""
        if server in self._under_way:
            return self._under_way[server]
        asked: AsyncResult[Found | Exception] = AsyncResult()
        with suppress(OSError, ValueError):  # it is a name
            asked.set(_look_up(*server, 0, 0, socket.IPPROTO_TCP, socket.AI_NUMERICHOST))
            return asked
        self._look_up_in_thread(server, asked)
        return asked

    def _look_up_in_thread(self, server: Server, asked: AsyncResult[Found | Exception]) -> None:
        """Begin a thread of its own: look-ups of other names, which may hang, could have all of gevent's."""
        found: list[Found | Exception] = []
        waker = gevent.get_hub().loop.async_()

        def look_up() -> None:
            found.append(try_look_up(server))
            with suppress(ValueError):  # the loop has been destroyed
                waker.send()

        def answered() -> None:
            waker.stop()
            waker.close()
            self._under_way.pop(server, None)
            asked.set(found[0])

        waker.start(answered)
        self._under_way[server] = asked
        try:
            _start_thread(look_up, ())
        except RuntimeError as error:  # the operating system starts no more threads
            found.append(error)
            answered()


def _answer(host: str, asked: AsyncResult[Found | Exception]) -> Found:
    found = cast("Found | Exception", asked.get(block=False)) if asked.ready() else TimeoutError("no answer in time")
    if isinstance(found, Exception):
        _log.debug("no address of %s: %s", host, found)
        return []
    return found


def try_look_up(server: Server) -> Found | Exception:
    """Return the addresses of a server, or the error, which gevent's threads would print."""
    try:
        return cast("Found", _look_up(*server, 0, 0, socket.IPPROTO_TCP))
    except (OSError, ValueError) as error:  # ValueError: a name that no host can have
        return error


def keep_connecting(client: KazooClient) -> None:
    """Let kazoo connect again after any error, such as an answer that it cannot read; it would end its connection.

    Servers send such answers: when a session has moved to another connection, the former one may get replies to later
    calls, but none to the first. Errors of its socket end a connection as before, at less cost (`SocketErrors`).
    """
    connection = cast("Any", client)._connection  # noqa: SLF001  # kazoo has no public way, here and below
    connection._socket_error_handling = SocketErrors  # noqa: SLF001
    connection._expand_client_hosts = LookUps(client).addresses  # noqa: SLF001
    attempt, complaints = connection._connect_attempt, Complaints()  # noqa: SLF001

    def attempt_and_go_on(*server: object) -> object:
        try:
            return attempt(*server)
        except (KazooException, RuntimeError, ValueError, LookupError, TypeError, struct.error) as error:
            if (text := complaints.text("", repr(error), time.monotonic())) is not None:  # each try may end so
                _log.warning("the connection to ZooKeeper is closed: an answer could not be read (%s)", text)
            if client.client_state != KeeperState.CONNECTING:
                cast("Any", client)._session_callback(KeeperState.CONNECTING)  # noqa: SLF001
            return None  # kazoo tries the next server

    connection._connect_attempt = attempt_and_go_on  # noqa: SLF001


class SocketErrors:
    """Takes the place of kazoo's context manager around each read and write, a generator, which costs more to make."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Let kazoo connect again after an error of its socket."""
        if isinstance(error, OSError):
            raise ConnectionDropped(f"socket connection error: {error.strerror or error}") from error


def _readable(stream: Stream, bell: Bell | None) -> list[Stream | Bell]:
    """Return what is ready. A request is sent before the kernel is asked for more replies."""
    if bell is not None and bell.count:
        return [stream, bell] if stream.pending() else [bell]
    return [stream] if stream.has_arrived() else []
