"""Reads who is who in a secured tree, on one session, and returns the access control list of each new node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gevent
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import ACL, Id, Permissions

from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.rights import Principals, Rights
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk_login import Login

CONNECTION_ERRORS = (AuthFailedError, ConnectionClosedError, ConnectionLoss, SessionExpiredError)
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 30.0  # before a refused read is tried again; doubled each time

_log = logs.named(__name__)
_PERMISSIONS = {
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}


class TreeRights:
    """Keeps `/consumers/security` as read last; reads it again when it changes.

    Answers are handled in greenlets of their own, because a call may have to wait, which the hub cannot.
    """

    def __init__(self, kazoo: KazooClient, login: Login) -> None:
        """Know nothing yet."""
        self._kazoo = kazoo
        self._login = login
        self._who: Principals | None = None
        self.fault: str | None = None  # why it is not known
        self._round = 0  # an answer to an earlier one is dropped
        self._tries = 0  # in a row, that were refused
        self._when_read: Callable[[], None] | None = None  # on this connection

    def read(self, when_read: Callable[[], None]) -> None:
        """Read the node on a new connection.

        `when_read` runs once its content is known, however often it changes or is refused before, and never if the
        connection breaks.
        """
        self._when_read, self._tries = when_read, 0
        self._read_again()

    def _read_again(self) -> None:
        self._round += 1
        found = self._kazoo.exists_async(paths.SECURITY, watch=self._changed)
        found.rawlink(partial(gevent.spawn, self._found, self._round))

    def acl(self, path: str) -> list[ACL] | None:
        """Return the access control list of a new node, None for an open one."""
        if self._who is None:
            return None
        wanted = rights.rights_of(path, self._who, f"digest:{self._login.own_identity}")
        return None if wanted is None else to_acl(wanted)

    def _changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._read_again()

    def _found(self, number: int, result: Any) -> None:  # noqa: ANN401  # kazoo's IAsyncResult
        if number != self._round:
            return
        if result.exception is not None:
            self._refused(number, result.exception)
        elif result.get() is None:
            self._known(None)
        else:
            content = self._kazoo.get_async(paths.SECURITY)
            content.rawlink(partial(gevent.spawn, self._read, number))

    def _read(self, number: int, result: Any) -> None:  # noqa: ANN401  # as above
        if number != self._round:
            return
        if isinstance(result.exception, NoNodeError):
            self._read_again()
        elif result.exception is not None:
            self._refused(number, result.exception)
        else:
            self._decode(result.get()[0])

    def _refused(self, number: int, error: Exception) -> None:
        """Read again after a while: no event says that a right was granted."""
        if isinstance(error, CONNECTION_ERRORS):
            return  # the next connection reads it
        is_hidden = isinstance(error, NoAuthError)
        why = "may not be read (right READ is missing)" if is_hidden else f"is refused: {error!r}"
        self.fault = f"{paths.SECURITY} {why}"
        if self._tries == 0:
            _log.error("%s; nothing is written; read again at growing intervals", self.fault)
        pause_s = min(MAX_PAUSE_S, MIN_PAUSE_S * 2.0 ** min(self._tries, 10))
        self._tries += 1
        gevent.spawn_later(pause_s, self._retry, number)

    def _retry(self, number: int) -> None:
        if number == self._round and self._kazoo.connected:
            self._read_again()

    def _decode(self, content: bytes) -> None:
        try:
            who = rights.decode(content)
        except NodeContentError as error:
            remedy = "unless this program is too old for it, delete it as a coordinator, and run `security init`"
            self.fault = f"{error}; {remedy}"
            _log.error("%s; nothing is written until it is repaired: %s", error, remedy)
        else:
            self._known(who)

    def _known(self, who: Principals | None) -> None:
        self._who, self._tries, self.fault = who, 0, None
        when_read, self._when_read = self._when_read, None
        if when_read is not None:
            when_read()


def to_acl(wanted: Mapping[str, str]) -> list[ACL]:
    """Return rights as kazoo's access control list."""
    found = []
    for principal, letters in wanted.items():
        scheme, _, name = principal.partition(":")
        found.append(ACL(sum(_PERMISSIONS[letter] for letter in letters), Id(scheme, name)))
    return found


def from_acl(acl: list[ACL]) -> Rights:
    """Return kazoo's access control list as rights."""
    found: Rights = {}
    for permissions, (scheme, name) in acl:
        principal = f"{scheme}:{name}"
        letters = "".join(letter for letter, bit in _PERMISSIONS.items() if permissions & bit)
        found[principal] = rights.ordered(found.get(principal, "") + letters)
    return found
