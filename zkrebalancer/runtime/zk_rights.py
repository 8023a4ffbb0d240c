"""Reads who is who in a secured tree, on one session, and returns the access control list of each new node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gevent
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import ACL, Id, Permissions

from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.rights import Principals, Rights
from zkrebalancer.runtime.zk_login import Login

_log = logging.getLogger(__name__)
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
        self._round = 0  # an answer to an earlier one is dropped

    def read(self, when_read: Callable[[], None]) -> None:
        """Read the node; `when_read` runs once its content is known, and never if the connection breaks before."""
        self._round += 1
        found = self._kazoo.exists_async(paths.SECURITY, watch=self._changed)
        found.rawlink(partial(gevent.spawn, self._found, self._round, when_read))

    def acl(self, path: str) -> list[ACL] | None:
        """Return the access control list of a new node, None for an open one."""
        if self._who is None:
            return None
        wanted = rights.rights_of(path, self._who, f"digest:{self._login.own_identity}")
        return None if wanted is None else to_acl(wanted)

    def _changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self.read(lambda: None)

    def _found(self, number: int, when_read: Callable[[], None], result: Any) -> None:  # noqa: ANN401  # kazoo's IAsyncResult
        if number != self._round or result.exception is not None:
            return
        if result.get() is None:
            self._who = None
            when_read()
        else:
            content = self._kazoo.get_async(paths.SECURITY)
            content.rawlink(partial(gevent.spawn, self._read, number, when_read))

    def _read(self, number: int, when_read: Callable[[], None], result: Any) -> None:  # noqa: ANN401  # as above
        if number != self._round:
            return
        if isinstance(result.exception, NoNodeError):
            self.read(when_read)
        elif isinstance(result.exception, NoAuthError):
            _log.error("%s may not be read (right READ is missing); nothing is written", paths.SECURITY)
        elif result.exception is None:
            self._decode(result.get()[0], when_read)

    def _decode(self, content: bytes, when_read: Callable[[], None]) -> None:
        try:
            self._who = rights.decode(content)
        except NodeContentError as error:
            _log.error("%s; nothing is written until it is repaired", error)
            return
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
