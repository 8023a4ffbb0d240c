from collections.abc import Callable, Sequence
from typing import NamedTuple

from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL

class Create(NamedTuple):
    path: str
    data: bytes
    acl: Sequence[ACL]
    flags: int

class Delete(NamedTuple):
    path: str
    version: int

class SetData(NamedTuple):
    path: str
    data: bytes
    version: int

class CheckVersion(NamedTuple):
    path: str
    version: int

class GetData(NamedTuple):
    path: str
    watcher: Callable[[WatchedEvent], object] | None

class GetChildren(NamedTuple):
    path: str
    watcher: Callable[[WatchedEvent], object] | None

class Transaction(NamedTuple):
    operations: Sequence[Create | Delete | SetData | CheckVersion]
