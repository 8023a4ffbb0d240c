"""The gateway's own connections to brokers, on which requests keep their order: one for each, and numbered ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gevent
from gevent.event import AsyncResult
from gevent.lock import Semaphore

from zkrebalancer.gateway import sasl
from zkrebalancer.gateway.dialing import CONNECT_TIMEOUT_S, Address, Dialer, LinkError, first_of, name_of
from zkrebalancer.gateway.frames import FrameReader, framed
from zkrebalancer.gateway.turns import let_others_run
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.schema import apis, message
from zkrebalancer.runtime import clock

REQUEST_TIMEOUT_S = 15.0
CLIENT_ID = "zkrebalancer-gateway"
SESSION_PART = 0.8  # of the time that a broker allows before a new login is due
MAX_ANSWER_BYTES = 64 << 20
MAX_CORRELATION_ID = 0x7FFFFFFF
FORGET_S = 600.0  # how long a broker has to be missing from metadata: one that restarts is soon back
KEYS = {name: key for key, name in apis().items()}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """An answer, not yet decoded."""

    name: str
    version: int
    content: bytes

    def fields(self) -> dict[str, Any]:
        """Decode the answer; others run in between. Raises LinkError if it is malformed."""
        try:
            return codec.decode(f"{self.name}Response", self.version, self.content, pause=let_others_run)
        except FrameError as error:
            raise LinkError(str(error)) from None


class Link:
    """One connection; any number of greenlets may `ask`."""

    def __init__(self, address: Address, dialer: Dialer) -> None:
        """Connect, learn the broker's versions, and log in if configured; raises LinkError."""
        self.address = address
        self._last_id = 0  # correlation id
        self._unanswered: deque[tuple[Header, AsyncResult[bytes]]] = deque()
        self.versions: dict[int, tuple[int, int]] = {KEYS["ApiVersions"]: (0, 0)}
        self._sending = Semaphore()  # a request is sent completely before the next one starts
        self.is_closed = False
        self._ends_us: int | None = None  # when the broker wants another login
        self._socket = dialer.dial(address)
        self._receiver = gevent.spawn(self._receive)
        answer = self.ask("ApiVersions", {}, timeout_s=CONNECT_TIMEOUT_S).fields()
        self.versions = {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}
        if dialer.security.credentials is not None:
            try:
                self._log_in(dialer.security.credentials)
            except LinkError:
                self._fail("the login failed")
                raise

    @property
    def is_usable(self) -> bool:
        """Whether requests may be sent: the link is open, and no new login is due."""
        return not self.is_closed and (self._ends_us is None or clock.steady_us() < self._ends_us)

    def _log_in(self, credentials: sasl.Credentials) -> None:
        began_us = clock.steady_us()
        mechanism = {"mechanism": credentials.mechanism}
        answer = self.ask("SaslHandshake", mechanism, timeout_s=CONNECT_TIMEOUT_S).fields()
        if answer["error_code"]:
            raise LinkError(f"{name_of(self.address)} does not offer {credentials.mechanism}")
        messages = sasl.exchange(credentials)
        try:
            content = next(messages)
            while True:
                answer = self.ask("SaslAuthenticate", {"auth_bytes": content}, timeout_s=CONNECT_TIMEOUT_S).fields()
                if answer["error_code"]:
                    raise LinkError(f"{name_of(self.address)} refuses the login: {answer['error_message']}")
                content = messages.send(answer["auth_bytes"])
        except StopIteration:
            pass
        except sasl.LoginError as error:
            raise LinkError(f"{name_of(self.address)}: {error}") from None
        if answer["session_lifetime_ms"]:
            self._ends_us = began_us + int(answer["session_lifetime_ms"] * 1_000 * SESSION_PART)

    def close(self) -> None:
        """Close the connection; unanswered requests fail."""
        self._receiver.kill()
        self._fail("the gateway stops")

    def version(self, name: str, highest: int | None = None) -> int:
        """Return the highest version that both sides know, not above `highest`; raises LinkError if there is none."""
        known = message(f"{name}Request").versions
        first, last = self.versions.get(KEYS[name], (1, 0))
        version = min(last, known.last, known.last if highest is None else highest)
        if version < max(first, known.first):
            raise LinkError(f"{name_of(self.address)} does not offer a known version of {name}")
        return version

    def ask(
        self, name: str, fields: dict[str, Any], highest: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> LinkAnswer:
        """Send a request and return the answer; raises LinkError, or FrameError if it cannot be written."""
        version = self.version(name, highest)
        self._last_id = self._last_id % MAX_CORRELATION_ID + 1  # a thousand commits a second need this many in 25 days
        header = Header(KEYS[name], version, self._last_id, CLIENT_ID)
        waiting: AsyncResult[bytes] = AsyncResult()
        content = codec.encode_header(header) + codec.encode(f"{name}Request", version, fields)
        if self.is_closed:
            raise LinkError(f"the connection to {name_of(self.address)} is closed")
        try:
            with gevent.Timeout(timeout_s):  # a broker that hangs may not even read
                with self._sending:
                    self._unanswered.append((header, waiting))
                    self._socket.sendall(framed(content))
                answer = waiting.get() or b""
            return LinkAnswer(name, version, answer[codec.answer_body(header.api_key, version, answer) :])
        except gevent.Timeout:
            self._fail(f"no answer to {name} within {timeout_s:g} s")
        except LinkError:
            raise
        except (OSError, FrameError) as error:
            self._fail(str(error))
        raise LinkError(f"{name_of(self.address)} did not answer {name}")

    def _receive(self) -> None:
        reader = FrameReader(self._socket)
        reason = "closed by the broker"
        try:
            while (size := reader.next_size()) is not None:
                if size > MAX_ANSWER_BYTES:
                    raise FrameError(f"an answer of {size} bytes")
                content = reader.take(size)
                if not self._unanswered or int.from_bytes(content[:4], "big") != self._unanswered[0][0].correlation_id:
                    raise FrameError("an answer to no request")
                self._unanswered.popleft()[1].set(content)
        except (OSError, EOFError, FrameError) as error:
            reason = str(error) or reason
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._socket.close()
        error = LinkError(f"the connection to {name_of(self.address)} broke: {reason}")
        while self._unanswered:
            self._unanswered.popleft()[1].set_exception(error)


class Links:
    """The links to all brokers, opened when needed; `bootstrap` has the first addresses to try."""

    def __init__(self, bootstrap: list[Address], dialer: Dialer) -> None:
        """Open nothing yet."""
        self._bootstrap = bootstrap
        self._dialer = dialer
        self._doubtful: set[Address] = set()  # brokers that did not answer the last question for any broker
        self._links: dict[tuple[Address, int | None], AsyncResult[Link]] = {}
        self.brokers: dict[int, Address] = {}  # as last learned; one that is gone keeps its address for FORGET_S
        self._missing_since_us: dict[int, int] = {}  # broker -> when an answer first lacked it

    def close(self) -> None:
        """Close all links."""
        for opened in self._links.values():
            if opened.successful():
                _of(opened).close()
        self._links.clear()

    def learn(self, brokers: Mapping[int, Address]) -> None:
        """Note the brokers that an answer has, and forget those that were missing for FORGET_S.

        Somebody else may get the address of a broker that was removed, even a broker of another cluster.
        """
        now_us = clock.steady_us()
        self.brokers.update(brokers)
        gone = self.brokers.keys() - brokers.keys()
        self._missing_since_us = {one: self._missing_since_us.get(one, now_us) for one in gone}
        for one, since_us in self._missing_since_us.items():
            if now_us - since_us >= FORGET_S * 1e6:
                del self.brokers[one]

    def to(self, address: Address, number: int | None = None) -> Link:
        """Return the link to an address, or the one with this number; raises LinkError.

        A broker handles the requests of a connection one after the other, and answers some of them after seconds.
        """
        opened = self._links.get((address, number))
        if opened is not None and opened.ready() and not (opened.successful() and _of(opened).is_usable):
            if opened.successful():
                gevent.spawn_later(REQUEST_TIMEOUT_S, _of(opened).close)  # others may still wait for answers
            opened = None
        if opened is None:
            opened = self._links[address, number] = AsyncResult()
            try:
                opened.set(Link(address, self._dialer))
            except LinkError as error:
                opened.set_exception(error)
            except BaseException:  # else all who want this link would wait for ever
                opened.set_exception(LinkError(f"the connection to {name_of(address)} was given up"))
                raise
        return _of(opened)

    def versions(self) -> dict[int, tuple[int, int]]:
        """Return API key -> the lowest and the highest version that all brokers know to which there are links.

        While brokers are upgraded one by one, one of them does not know all that another offers.
        """
        opened = (self._links.get((address, None)) for address in set(self.brokers.values()))
        known = [_of(one).versions for one in opened if one is not None and one.successful()]
        keys = set.intersection(*map(set, known)) if known else set[int]()
        return {key: (max(one[key][0] for one in known), min(one[key][1] for one in known)) for key in keys}

    def addresses_to_try(self) -> list[Address]:
        """Return all addresses to try for a request that any broker can answer, known brokers first.

        Those that have not answered are last.
        """
        known = dict.fromkeys([*self.brokers.values(), *self._bootstrap])
        return sorted(known, key=self._doubtful.__contains__)

    def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> LinkAnswer:
        """Ask brokers until one answers; raises LinkError if none does."""

        def ask(address: Address) -> LinkAnswer:
            self._doubtful.add(address)
            answer = self.to(address).ask(name, fields, highest)
            self._doubtful.discard(address)
            return answer

        return first_of([partial(ask, address) for address in self.addresses_to_try()], lambda _late: None)


def _of(opened: AsyncResult[Link]) -> Link:
    return cast("Link", opened.get())  # never None, which is what an AsyncResult without a value has
