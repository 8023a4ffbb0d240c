from collections.abc import Callable
from typing import Any, NamedTuple

class KazooState:
    CONNECTED: str
    LOST: str
    SUSPENDED: str

class KeeperState:
    AUTH_FAILED: str
    CONNECTING: str

class EventType:
    CREATED: str
    DELETED: str
    CHANGED: str
    CHILD: str
    NONE: str

class Callback(NamedTuple):
    type: str
    func: Callable[..., object]
    args: tuple[Any, ...]

class WatchedEvent(NamedTuple):
    type: str
    state: str
    path: str

class ZnodeStat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int
    dataLength: int
    numChildren: int
    pzxid: int
