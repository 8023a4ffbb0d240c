"""Watches of ZooKeeper 3.6 that last as long as a connection, on a node and all nodes below it. kazoo has none.

One event names the node that was created, changed or deleted. A one-shot watch on a list costs a read to learn the
name, and another one to be set again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gevent
from kazoo.client import KazooClient

from zkrebalancer.runtime.zk_wire import INT, server_path, string

RECURSIVE = 1  # mode; 0 watches the node itself and the list of its children

_EVENT = struct.Struct("!iii")  # its kind, the session's state, the length of the path that follows


@dataclass(frozen=True, slots=True)
class AddWatch:
    """A request in kazoo's form; `path` is the server's."""

    path: str
    type = 106

    def serialize(self) -> bytes:
        """Return the request's body."""
        return string(self.path) + INT.pack(RECURSIVE)

    @classmethod
    def deserialize(cls, _answer: bytes, _offset: int) -> bool:
        """Return that it is done: the answer has only an error code, which is also in its header."""
        return True


class LastingWatches:
    """Sets them, and reports their events; a server forgets them with the connection."""

    def __init__(self, client: KazooClient, report: Callable[[str], None]) -> None:
        """Set none yet; `report` gets the path of each event, without the chroot."""
        self._client = cast("Any", client)
        self._report = report
        self._watched: set[str] = set()  # as the server knows them, each with a slash at its end
        connection = self._client._connection  # noqa: SLF001  # kazoo has no public way, here and below
        self._read_one_shot = connection._read_watch_event  # noqa: SLF001
        connection._read_watch_event = self._read  # noqa: SLF001

    def set(self, path: str) -> Any:  # noqa: ANN401  # kazoo's IAsyncResult
        """Watch a node and those below it."""
        whole = server_path(self._client, path)
        self._watched.add(whole.rstrip("/") + "/")
        answer = self._client.handler.async_result()
        self._client._call(AddWatch(whole), answer)  # noqa: SLF001
        return answer

    def _read(self, message: bytes, offset: int) -> None:
        """Report an event; kazoo's own method finds the one-shot watches that it concerns."""
        self._read_one_shot(message, offset)
        path = path_of(message, offset)
        if any(f"{path}/".startswith(watched) for watched in self._watched):
            gevent.get_hub().loop.run_callback(self._report, self._client.unchroot(path))  # after earlier replies


def path_of(event: bytes, offset: int) -> str:
    """Return the path in a watch event, as the server knows it."""
    _kind, _state, length = _EVENT.unpack_from(event, offset)
    begin = offset + _EVENT.size
    return event[begin : begin + length].decode()
