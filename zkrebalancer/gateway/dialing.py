"""Opens connections to brokers. A broker that hangs causes only a short delay: the next one is tried meanwhile."""

from __future__ import annotations

import contextlib
import logging
import socket as standard_socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import gevent
from gevent.queue import Empty, Queue
from gevent.socket import create_connection, socket

from zkrebalancer.gateway.security import Upstream
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.runtime import clock

CONNECT_TIMEOUT_S = 5.0  # for name resolution, the connection and TLS together
HEAD_START_S = 0.5  # how long to wait for one broker before trying the next one as well
KEEPALIVE_S = 60  # of silence, before the kernel checks whether the other side still exists
Address = tuple[str, int]
T = TypeVar("T")
_log = logging.getLogger(__name__)


class LinkError(OSError):
    """A broker did not answer; whether it handled the request is unknown."""


class Dialer:
    """Connects to brokers, with TLS if that is configured."""

    def __init__(self, security: Upstream) -> None:
        """Connect with these security settings."""
        self.security = security
        self._complaints = Complaints()

    def dial(self, address: Address) -> socket:
        """Connect to a broker; raises LinkError."""
        try:
            with gevent.Timeout(CONNECT_TIMEOUT_S, TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s")):
                found = create_connection(address)
                try:
                    prepare(found)
                    context = self.security.context
                    return found if context is None else context.wrap_socket(found, server_hostname=address[0])
                except BaseException:
                    found.close()
                    raise
        except (OSError, ValueError, RuntimeError) as error:  # also: no name, or no thread is left to look it up
            name = name_of(address)
            if (said := self._complaints.text(name, str(error), clock.steady_us() / 1e6)) is not None:
                _log.warning("the broker at %s cannot be reached: %s", name, said)
            raise LinkError(f"{name} cannot be reached: {error}") from None

    def dial_any(self, addresses: Iterable[Address]) -> socket:
        """Connect to the broker that answers first; raises LinkError."""
        return first_of([partial(self.dial, address) for address in addresses], socket.close)


def first_of(tries: Iterable[Callable[[], T]], discard: Callable[[T], object]) -> T:
    """Return the first result. The next try starts when one has failed, or after HEAD_START_S; none is interrupted.

    `discard` gets later results. Raises LinkError, or another OSError of a try, if all fail.
    """
    ended: Queue[gevent.Greenlet[..., T | OSError]] = Queue()
    waiting = deque(tries)
    running: set[gevent.Greenlet[..., T | OSError]] = set()
    problem: OSError = LinkError("no broker is known")
    while waiting or running:
        if waiting:
            one = gevent.spawn(_attempt, waiting.popleft())
            one.link(ended.put)
            running.add(one)
        with contextlib.suppress(Empty):
            one = ended.get(timeout=HEAD_START_S if waiting else None)
            running.discard(one)
            result = one.get()
            if not isinstance(result, OSError):
                gevent.spawn(_discard, running, discard)
                return result
            problem = result
    raise problem


def _attempt(one: Callable[[], T]) -> T | OSError:
    try:
        return one()
    except OSError as error:
        return error


def _discard(running: Iterable[gevent.Greenlet[..., T | OSError]], discard: Callable[[T], object]) -> None:
    for one in running:
        result = one.get()
        if not isinstance(result, OSError):
            discard(result)


def prepare(one: socket) -> None:
    """Configure a socket to send small frames at once, and to notice when the other side has vanished."""
    one.setsockopt(standard_socket.IPPROTO_TCP, standard_socket.TCP_NODELAY, 1)
    one.setsockopt(standard_socket.SOL_SOCKET, standard_socket.SO_KEEPALIVE, 1)
    one.setsockopt(standard_socket.IPPROTO_TCP, standard_socket.TCP_KEEPIDLE, KEEPALIVE_S)


def name_of(address: Address) -> str:
    """Return "HOST:PORT", with brackets around an IPv6 address."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
