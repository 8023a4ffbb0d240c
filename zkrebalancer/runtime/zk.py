"""The one kazoo wrapper: performs the calls of `protocol.calls` on a real ZooKeeper and returns events.

Every event (replies, watches, session changes) goes to one callback, in order, on the gevent hub of the thread that
started the client. Calls are pipelined, at most MAX_IN_FLIGHT at once; reads may be made together (`zk_reads.py`).

A call belongs to the session in which it was made. While the session is suspended or lost, calls fail at once, so none
is replayed into a new session. kazoo drops all watches with the connection; after `Connected`, read again what you
watch.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # imported early, so that the first connection does not pay for it
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self, cast

import gevent
import gevent.resolver.thread  # imported early, as above
import gevent.threadpool  # imported early, as above
from gevent.event import AsyncResult
from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import Call, Multi, Refusal, Refused, RepliedAll, Reply, RightsCall, ZooKeeperEvent
from zkrebalancer.protocol.errors import (
    ChrootMissingError,
    RebalancerError,
    RequestTooLargeError,
    ZooKeeperLoginError,
    ZooKeeperUnavailableError,
)
from zkrebalancer.protocol.numbers import number_setting
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import MAX_REQUEST_BYTES, MIN_REQUEST_BYTES, OPEN_ACL_BYTES, RequestLimit
from zkrebalancer.protocol.rights import MAX_ACL_BYTES
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity, from_variables
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk_answers import read_answer
from zkrebalancer.runtime.zk_connection import Handler, SessionLog, is_connecting, keep_connecting, patient_hosts
from zkrebalancer.runtime.zk_login import Login
from zkrebalancer.runtime.zk_reads import BulkReads, Read, Wanted, Watch, portions, reply_count
from zkrebalancer.runtime.zk_rights import TreeRights, to_acl
from zkrebalancer.runtime.zk_watches import LastingWatches
from zkrebalancer.runtime.zk_wire import CONNECTION_DROP, send, server_path, transaction

MAX_IN_FLIGHT = 200  # more wait here, and are not sent if the connection breaks meanwhile
MAX_REPLIES = 50  # in one event, so that others have their turn
MAX_REPLY_BYTES = 65_536  # in one event, if all nodes are as large as the largest ones of the last answers
MAX_RECONNECT_DELAY_S = 0.5
CONNECT_TIMEOUT_S = 10.0
LOGIN_PAUSE_S = 5.0  # after a refused login; the password in the file may be a new one by then
REQUEST_VARIABLE = "ZKREBALANCER_MAX_REQUEST_BYTES"
MAX_JUTE_MAXBUFFER = 1 << 30

_log = logs.named(__name__)


def request_limit(hosts: str, security: ZooKeeperSecurity | None = None) -> RequestLimit:
    """Return the request limit for `hosts`, from ZKREBALANCER_MAX_REQUEST_BYTES if set; raises ConfigurationError."""
    acl_bytes = OPEN_ACL_BYTES if (security or from_variables(os.environ)).is_plain else MAX_ACL_BYTES
    chroot = "/" + hosts.partition("/")[2].rstrip("/")
    bounds = MAX_REQUEST_BYTES, MIN_REQUEST_BYTES, MAX_JUTE_MAXBUFFER
    largest = number_setting(REQUEST_VARIABLE, os.environ.get(REQUEST_VARIABLE), *bounds)
    return RequestLimit(largest, 0 if chroot == "/" else len(chroot.encode()), acl_bytes)


class ZkClient:
    """A ZooKeeper client with one session at a time. Create, start and use it on one gevent hub."""

    _restarting: gevent.Greenlet[..., None] | None = None  # it connects again after a refused login

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        on_event: Callable[[ZooKeeperEvent], None],
        security: ZooKeeperSecurity | None = None,
        on_refused: Callable[[str], object] = lambda _reason: None,
        *,
        reads_together: bool = False,
        on_replies: Callable[[RepliedAll], None] | None = None,
    ) -> None:
        """Prepare a client for `hosts` ("HOST:PORT[,…][/CHROOT]"); `on_event` must only enqueue its event.

        `reads_together`: send the reads of one turn of the hub as few requests; a write may overtake them, but they
        overtake none. `on_replies` gets their replies, some at a time.
        `security`: None for that of the environment. `on_refused` gets the reason if no server accepts the login or the
        certificate, or has an acceptable one; unless it returns True, the first is logged. The client tries again.

        Raises:
            ConfigurationError: settings contradict each other, or a file cannot be used.

        """
        self._on_event = on_event
        self._on_refused = on_refused
        security = from_variables(os.environ) if security is None else security
        self._login = None if security.is_plain else Login(security)
        self._hosts = hosts
        self._failures = 0  # of TLS, since the last connection
        self._shown: set[str] = set()  # reasons that were logged
        self._told: str | None = None  # the last state that became an event
        self._is_closed = False
        self._in_flight: set[int] = set()
        self._waiting: deque[tuple[Callable[[int, Any], None], int, Wanted]] = deque()  # how, id, call
        self._session_log = SessionLog("kazoo", logging.WARNING)
        self._session_log.parent = _log
        self._session_log.when_tls_failed = self._tls_failed
        self._usable = self._was_too_large = False
        self.request_limit = request_limit(hosts, security)
        handler = self._handler = Handler(self._login)
        self._kazoo = KazooClient(
            hosts=patient_hosts(hosts),
            timeout=session_timeout_ms / 1000,
            handler=handler,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=0.05,
                max_delay=MAX_RECONNECT_DELAY_S,
                ignore_expire=False,
                sleep_func=handler.sleep_func,
            ),
            logger=self._session_log,
            sasl_options=None if self._login is None else self._login.sasl_options,
            auth_data=None if self._login is None else self._login.credentials,
        )
        keep_connecting(self._kazoo)
        self._rights = None if self._login is None else TreeRights(self._kazoo, self._login)
        self._lasting_watches = LastingWatches(self._kazoo, lambda path: self._report((path, False)))
        self._kazoo.add_listener(self._session_changed)
        self._reads, self._reads_together, self._on_replies = self._together(), reads_together, on_replies

    def _together(self) -> BulkReads:
        callbacks = self._content_changed, self._children_changed
        return BulkReads(self._kazoo, self.request_limit, callbacks, self._reply_all, self._request_alone, self._report)

    def start(self) -> None:
        """Begin to connect; `Connected` follows as an event. Raises OSError if no descriptors are left."""
        try:
            self._kazoo.start_async()
        except BaseException:
            self._handler.stop()
            raise

    def close(self) -> None:
        """Close the session, if a server can be reached, and stop."""
        self._usable = False
        self._is_closed = True
        self._kazoo.stop()
        self._kazoo.close()

    @property
    def fault(self) -> str | None:
        """Why a client that is connected cannot be used: it does not know who may do what."""
        return None if self._rights is None else self._rights.fault

    @property
    def is_trying(self) -> bool:
        """Whether it is connected, or goes on trying to be."""
        return is_connecting(self._kazoo) or (self._restarting is not None and not self._restarting.dead)

    @property
    def credentials(self) -> tuple[int, bytes] | None:
        """Session id and password while connected; tests use them to expire the session."""
        return self._kazoo.client_id

    @property
    def queued_count(self) -> int:
        """Return how many calls wait until fewer are in flight."""
        return sum(reply_count(call) for _make, _call_id, call in self._waiting) + len(self._reads)

    def request(self, call_id: int, call: Call | RightsCall) -> None:
        """Perform a call; its reply follows as the event `Replied(call_id, …)`."""
        if not self._usable:
            self._lose(call_id, call)
        elif self._reads_together and isinstance(call, Read):
            self._read_together(self._reads.add, call_id, call)
        elif isinstance(call, Multi) and not self.request_limit.fits(call.operations):
            self._refuse_size(call_id, call)
        else:
            self._reads.send()
            self._request_alone(call_id, call)

    def request_each(self, first_id: int, reads: calls.ReadEach) -> None:
        """Make reads together, with the ids `first_id`, `first_id` + 1, and so on; a write may overtake them."""
        if not self._usable:
            self._lose(first_id, reads)
        else:
            self._read_together(self._reads.add_each, first_id, reads)

    def _read_together(self, add: Callable[[int, Any], None], first_id: int, reads: Wanted) -> None:
        """Make reads after all calls that wait: what they find must include what was to be written before."""
        if self._waiting:
            self._waiting.append((add, first_id, reads))
        else:
            add(first_id, reads)

    def _request_alone(self, call_id: int, call: Call | RightsCall) -> None:
        if not self._usable:
            self._lose(call_id, call)
        elif self._waiting or len(self._in_flight) >= MAX_IN_FLIGHT:
            self._waiting.append((self._send, call_id, call))
        else:
            self._send(call_id, call)

    def _refuse_size(self, call_id: int, call: Multi) -> None:
        """Fail a transaction that is too large, because the server would close the connection; log the first one."""
        if not self._was_too_large:
            self._was_too_large = True
            _log.error(
                "a transaction on %s of %d bytes is not sent; at most %d are allowed (%s)",
                call.operations[-1].path,
                self.request_limit.size(call.operations),
                self.request_limit.max_bytes,
                REQUEST_VARIABLE,
            )
        self._reply(call_id, Refused(Refusal.TOO_LARGE))

    def _send(self, call_id: int, call: Call | RightsCall) -> None:
        self._in_flight.add(call_id)
        try:
            answer = self._call(call)
        except exceptions.ConnectionClosedError:
            self._finish(call_id, Refused(Refusal.CONNECTION_LOST))
            return
        answer.rawlink(lambda result: self._finish(call_id, read_answer(call, result)))

    def _call(self, call: Call | RightsCall) -> Any:  # noqa: ANN401  # kazoo's IAsyncResult
        if isinstance(call, Multi):
            return send(self._kazoo, transaction(self._kazoo, call.operations, self._acl_of))
        if isinstance(call, calls.Get):
            watch = self._content_changed if call.watch else None
            return send(self._kazoo, GetData(server_path(self._kazoo, call.path), watch))
        if isinstance(call, calls.ListChildren):
            watch = self._children_changed if call.watch else None
            return send(self._kazoo, GetChildren(server_path(self._kazoo, call.path), watch))
        return self._call_other(call)

    def _call_other(self, call: calls.WatchBelow | calls.Sync | RightsCall) -> Any:  # noqa: ANN401  # as above
        if isinstance(call, calls.WatchBelow):
            return self._lasting_watches.set(call.path)
        if isinstance(call, calls.Sync):
            return self._kazoo.sync_async(call.path)
        if isinstance(call, calls.GetRights):
            return self._kazoo.get_acls_async(call.path)
        return self._kazoo.set_acls_async(call.path, to_acl(call.rights), call.version)

    def _acl_of(self, path: str) -> list[ACL] | None:
        return None if self._rights is None else self._rights.acl(path)

    def _finish(self, call_id: int, reply: Reply) -> None:
        self._in_flight.discard(call_id)
        if self._usable and isinstance(reply, Refused) and reply.outcome_unknown:
            send(self._kazoo, CONNECTION_DROP)  # so that everything is read again
        self._reply(call_id, reply)
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            make, next_id, waiting = self._waiting.popleft()
            if self._usable:
                make(next_id, waiting)
            else:
                self._lose(next_id, waiting)

    def _lose(self, first_id: int, call: Wanted) -> None:
        for call_id in range(first_id, first_id + reply_count(call)):
            self._reply(call_id, Refused(Refusal.CONNECTION_LOST))

    def _reply(self, call_id: int, reply: Reply) -> None:
        self._on_event(calls.Replied(call_id, reply))

    def _reply_all(self, replies: Sequence[calls.Replied | calls.RepliedInRow]) -> None:
        if self._on_replies is None:
            for one in RepliedAll(tuple(replies)).each():
                self._on_event(one)
            return
        for some in portions(replies, self._reads.fitting(MAX_REPLIES, MAX_REPLY_BYTES)):
            self._on_replies(RepliedAll(tuple(some)))

    def _session_changed(self, state: str) -> None:
        self._usable = False
        if state != KazooState.CONNECTED:
            self._tell(state, calls.Lost() if state == KazooState.LOST else calls.Suspended())
            self._reads.fail()
            if self._kazoo.client_state == KeeperState.AUTH_FAILED:
                self._login_refused()
        elif self._rights is None:
            self._become_usable()
        else:  # kazoo reports this before it logs in
            self._rights.read(self._rights_read)

    def _rights_read(self) -> None:
        if self._kazoo.connected:
            self._become_usable()

    def _become_usable(self) -> None:
        self._usable = True
        self._failures = 0
        self._shown.clear()
        session_id, _password = self._kazoo.client_id
        timeout_ms = self._session_log.granted_session_timeout_ms
        self._tell(KazooState.CONNECTED, calls.Connected(session_id, timeout_ms))

    def _tell(self, state: str, event: ZooKeeperEvent) -> None:
        """Report a change, unless it is the end of a session whose start was not reported."""
        if state == KazooState.CONNECTED or self._told is not None:
            self._told = None if state == KazooState.LOST else state
            self._on_event(event)

    def _login_refused(self) -> None:
        """Connect again after a while, because kazoo does not."""
        self._refused(f"refuses the login of {self._login and self._login.security.user}")
        self._restarting = gevent.spawn_later(LOGIN_PAUSE_S, self._restart)

    def _restart(self) -> None:
        if self._is_closed:
            return  # after `stop`, whose request to close would end the new session
        try:
            self._kazoo.start_async()
        except OSError as error:
            self._refused(f"cannot be reached: {error}")
            self._restarting = gevent.spawn_later(LOGIN_PAUSE_S, self._restart)

    def _tls_failed(self, reason: str) -> None:
        self._failures += 1
        if self._failures > self._hosts.count(","):
            self._refused(f"cannot be reached with TLS: {reason}")

    def _refused(self, reason: str) -> None:
        text = f"ZooKeeper at {self._hosts} {reason}"
        if self._on_refused(text) is not True and text not in self._shown:
            self._shown.add(text)
            _log.warning("%s", text)

    def _content_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE and not self._reads.holds((event.path, False)):
            self._report((event.path, False))

    def _children_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE and not self._reads.holds((event.path, True)):
            self._report((event.path, True))

    def _report(self, watch: Watch) -> None:
        path, is_of_children = watch
        self._on_event(calls.Watched(path, children=is_of_children))


class BlockingZk:
    """A ZooKeeper client for commands and tests: each method waits for its replies. A context manager."""

    def __init__(self, hosts: str, session_timeout_ms: int = 10_000, security: ZooKeeperSecurity | None = None) -> None:
        """Connect to `hosts` ("HOST:PORT[,…][/CHROOT]"); `security`: None for that of the environment.

        Raises:
            ConfigurationError: the security settings contradict each other, or a file cannot be used.
            ZooKeeperLoginError: the servers refuse the login or the certificate, or have no acceptable one.
            ZooKeeperUnavailableError: no server answered within CONNECT_TIMEOUT_S.
            ChrootMissingError: the chroot does not exist.

        """
        hub = gevent.get_hub()
        hub.NOT_ERROR = (*type(hub).NOT_ERROR, KeyboardInterrupt)  # raised where we wait; the hub must not print it
        self._hosts = hosts
        self._connected: AsyncResult[calls.Connected] = AsyncResult()
        self._answers: dict[int, AsyncResult[Reply]] = {}
        self._client = ZkClient(hosts, session_timeout_ms, self._handle, security, self._refused)
        self._next_id = 0
        self._client.start()
        try:
            self._connected.get(timeout=CONNECT_TIMEOUT_S)
            if self.perform(calls.ListChildren("/"), frozenset(Refusal)) == Refused(Refusal.NO_NODE):
                raise ChrootMissingError(f"the chroot of {hosts} does not exist in this ZooKeeper")
        except RebalancerError:
            self.close()  # it would go on beside that of a program that tries again
            raise
        except gevent.Timeout:
            self.close()
            if self._client.fault is not None:
                raise ZooKeeperLoginError(f"ZooKeeper at {hosts}: {self._client.fault}") from None
            text = f"no ZooKeeper answered at {hosts} within {CONNECT_TIMEOUT_S:g} s"
            raise ZooKeeperUnavailableError(text) from None

    def __enter__(self) -> Self:
        """Return the connected client."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """End the session."""
        self._client.close()

    @property
    def request_limit(self) -> RequestLimit:
        """The largest transaction to send."""
        return self._client.request_limit

    def perform(self, call: Call | RightsCall, expected: Collection[Refusal] = ()) -> Reply:
        """Perform one call and return its reply, which is `Refused` only for a refusal that the caller expects.

        Raises:
            ZooKeeperUnavailableError: the connection broke; the outcome is unknown.
            RequestTooLargeError: the transaction is too large and was not sent.
            ZooKeeperRefusedError: ZooKeeper refused the call for a reason that is not among `expected`.

        """
        return self.perform_all([call], expected)[0]

    def perform_all(self, many: Sequence[Call | RightsCall], expected: Collection[Refusal] = ()) -> list[Reply]:
        """Perform calls, pipelined, and return their replies in the same order; raises as `perform` does."""
        results: list[AsyncResult[Reply]] = []
        for call in many:
            self._next_id += 1
            answer = self._answers[self._next_id] = AsyncResult()
            results.append(answer)
            self._client.request(self._next_id, call)
        replies = [cast("Reply", result.get()) for result in results]  # never None: get() waits for the reply
        for call, reply in zip(many, replies, strict=True):
            if isinstance(reply, Refused) and reply.outcome_unknown:
                raise ZooKeeperUnavailableError(f"the connection to ZooKeeper at {self._hosts} broke during a call")
            if isinstance(reply, Refused) and reply.refusal is Refusal.TOO_LARGE:
                limit = self.request_limit.max_bytes
                raise RequestTooLargeError(f"a transaction of more than {limit} bytes is not sent ({REQUEST_VARIABLE})")
            require_expected(call, reply, expected)
        return replies

    def _refused(self, reason: str) -> bool:
        """Tell the caller who waits for the connection, who then tells the user."""
        if not self._connected.ready():
            self._connected.set_exception(ZooKeeperLoginError(reason))
        return not self._connected.successful()

    def _handle(self, event: ZooKeeperEvent) -> None:
        if isinstance(event, calls.Connected) and not self._connected.ready():
            self._connected.set(event)
        elif isinstance(event, calls.Replied):
            self._answers.pop(event.call_id).set(event.reply)
