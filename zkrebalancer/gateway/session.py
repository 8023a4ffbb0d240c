"""The gateway's ZooKeeper session: calls that wait for their replies, and a lease.

The lease is the time for which this gateway may act on what it knows: two thirds of the session timeout, counted from
when the renewing request was sent, on a clock that also runs while the machine sleeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gevent.event import AsyncResult, Event

from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Connected,
    Lost,
    Multi,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    Reply,
    Suspended,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.registration import lease_ms
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import ZkClient

RENEWALS_PER_LEASE = 4
_log = logging.getLogger(__name__)


class CallRefusedError(ZooKeeperUnavailableError):
    """ZooKeeper has answered, and refused a call, for instance because a right is missing."""

    def __init__(self, text: str, refusal: Refusal) -> None:
        """Say which call was refused, and why."""
        super().__init__(text)
        self.refusal = refusal


class Session:
    """A client whose methods block only the calling greenlet."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        when_changed: Callable[[Connected | Suspended | Lost], None],
        when_watched: Callable[[str], None],
    ) -> None:
        """Prepare a client; both callbacks must only note what happened.

        `when_changed`: the session became usable, unusable, or a new one. `when_watched`: a watch on this path fired.
        """
        self._client = ZkClient(hosts, session_timeout_ms, self._handle)
        self._when_changed = when_changed
        self._when_watched = when_watched
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._last_id = 0
        self._lease_until_us = 0
        self._timeout_ms = session_timeout_ms
        self._connected = Event()
        self._connected_again = Event()  # since the last renewal of the lease was sent
        self.session_id = 0  # 0: not connected
        self._is_closed = False

    def start(self) -> None:
        """Begin to connect."""
        self._client.start()

    def close(self) -> None:
        """End the session, which is reported as `Lost`. Calls get no reply from now on.

        A reply would say that the connection is lost, at once; a caller would ask again without a pause, for ever.
        """
        self._is_closed = True
        self._client.close()

    @property
    def request_limit(self) -> RequestLimit:
        """Return the limit of a transaction."""
        return self._client.request_limit

    @property
    def has_lease(self) -> bool:
        """Whether this gateway may act on what it knows."""
        return self.session_id != 0 and clock.steady_us() < self._lease_until_us

    @property
    def lease_s(self) -> float:
        """Return how much of the lease is left."""
        return max(0, self._lease_until_us - clock.steady_us()) / 1e6 if self.session_id else 0.0

    def stalled(self) -> str | None:
        """Return why the session cannot come back, None while the client is connected or tries to be."""
        return None if self._client.is_trying else "nothing connects to ZooKeeper any more"

    @property
    def calls_under_way(self) -> int:
        """Return how many calls are not answered yet."""
        return len(self._waiting)

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        """Send a call; replies come in the order of the calls. `when_replied` must not block."""
        self._last_id += 1
        self._waiting[self._last_id] = when_replied
        self._client.request(self._last_id, call)

    def perform(self, call: Call) -> Reply:
        """Perform a call and return its reply."""
        return self.perform_all([call])[0]

    def require(self, call: Call, *expected: Refusal) -> Reply:
        """Perform a call and return its reply.

        Raises:
            CallRefusedError: ZooKeeper refused, and that was not `expected`.
            ZooKeeperUnavailableError: the connection broke.

        """
        reply = self.perform(call)
        if isinstance(reply, Refused) and reply.refusal not in expected:
            text = f"ZooKeeper refused {call!r:.200}: {reply.refusal.value}"
            raise ZooKeeperUnavailableError(text) if reply.outcome_unknown else CallRefusedError(text, reply.refusal)
        return reply

    def perform_all(self, many: list[Call]) -> list[Reply]:
        """Perform calls, pipelined, and return their replies in the same order."""
        answers: list[AsyncResult[Reply]] = [AsyncResult() for _ in many]
        for call, answer in zip(many, answers, strict=True):
            self.request(call, answer.set)
        return [answer.get() or Refused(Refusal.CONNECTION_LOST) for answer in answers]

    def read_each(self, reads: ReadEach) -> list[Reply]:
        """Make reads, by few requests, and return their replies in the same order; a write may overtake them."""
        answers: list[AsyncResult[Reply]] = [AsyncResult() for _ in reads.names]
        first_id = self._last_id + 1
        for answer in answers:
            self._last_id += 1
            self._waiting[self._last_id] = answer.set
        self._client.request_each(first_id, reads)
        return [answer.get() or Refused(Refusal.CONNECTION_LOST) for answer in answers]

    def _handle(self, event: ZooKeeperEvent) -> None:
        if self._is_closed and not isinstance(event, Lost):
            return
        if isinstance(event, Replied):
            self._waiting.pop(event.call_id)(event.reply)
        elif isinstance(event, Watched):
            self._when_watched(event.path)
        else:
            if isinstance(event, Connected):
                self.session_id, self._timeout_ms = event.session_id, event.session_timeout_ms
                self._connected.set()
                self._connected_again.set()
            else:
                self.session_id, self._lease_until_us = 0, 0
                self._connected.clear()
            self._when_changed(event)

    def renew_lease(self) -> None:
        """Renew the lease while the session is usable, for ever; runs in a separate greenlet."""
        shown: Refusal | None = None
        while True:
            self._connected.wait()
            self._connected_again.clear()
            session_id, sent_us = self.session_id, clock.steady_us()
            lease_us = lease_ms(self._timeout_ms) * 1_000
            reply = self.perform(Multi((Check("/"),)))
            refusal = reply.refusal if isinstance(reply, Refused) and not reply.outcome_unknown else None
            if refusal is not None and refusal != shown:
                _log.error("no group is served: ZooKeeper refuses to check / (%s)", refusal.value)
            shown = refusal
            if not isinstance(reply, Refused) and session_id == self.session_id:
                self._lease_until_us = sent_us + lease_us
            self._pause(lease_us / 1e6 / RENEWALS_PER_LEASE)

    def _pause(self, seconds: float) -> None:
        """Wait until the lease should be renewed; a lease that ended with its connection is, at once after that."""
        self._connected_again.wait(seconds)
