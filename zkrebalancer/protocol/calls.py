"""ZooKeeper calls and replies as plain data, so that pure code decides which calls to make and in what order.

`runtime/zk.py` performs them on a real server, the simulation on a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; `sequence` appends ZooKeeper's ten-digit counter to the path."""

    path: str
    content: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetContent:
    """Replace a node's content if its version is `version` (-1: any)."""

    path: str
    content: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children if its version is `version` (-1: any)."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the node exists with `version` (-1: any)."""

    path: str
    version: int = -1


Operation = Create | SetContent | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """A transaction: applies all operations or none."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Read content and stat; `watch` requests one `Watched` event when the node changes or is deleted."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ListChildren:
    """List the children; `watch` requests one `Watched` event when they change."""

    path: str
    watch: bool = False


class ReadEach(NamedTuple):
    """Reads of nodes with these names below one node: as a `Get` or `ListChildren` for each, in order."""

    kind: type[Get | ListChildren]
    above: str
    names: Sequence[str]
    watch: bool = False

    def read(self, place: int) -> Get | ListChildren:
        """Return one of the reads."""
        return self.kind(f"{self.above}/{self.names[place]}", self.watch)


@dataclass(frozen=True, slots=True)
class WatchBelow:
    """Request a `Watched` event for every change of the node and of those below it, while the connection lasts.

    The event names the node that was created, changed or deleted. Servers before 3.6 refuse the call (UNIMPLEMENTED).
    A later one-shot watch on the same node may replace this one (ZOOKEEPER-4466).
    """

    path: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Make later reads of this session see every write that was committed before the sync."""

    path: str


@dataclass(frozen=True, slots=True)
class GetRights:
    """Read a node's access control list."""

    path: str


@dataclass(frozen=True, slots=True)
class SetRights:
    """Replace a node's access control list if its version is `version`; `rights` as in `protocol.rights`."""

    path: str
    rights: Mapping[str, str]
    version: int = -1


Call = Multi | Get | ListChildren | WatchBelow | Sync
RightsCall = GetRights | SetRights  # only of operators' commands


class Refusal(Enum):
    """Why a call failed."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    TOO_LARGE = "too large"  # the request was not sent
    NO_AUTH = "no permission"
    QUOTA_EXCEEDED = "quota exceeded"
    MARSHALLING = "marshalling error"
    UNIMPLEMENTED = "unimplemented"
    NOT_ALLOWED = "not allowed"
    CONNECTION_LOST = "connection lost"  # writes may have been applied
    SESSION_EXPIRED = "session expired"  # writes may have been applied; ephemeral nodes are gone

    __hash__ = object.__hash__  # as equal as the members are; that of Enum is a call of Python


ABSENT = frozenset({Refusal.NO_NODE})  # what most reads expect
CHANGED = frozenset({Refusal.NO_NODE, Refusal.NODE_EXISTS, Refusal.BAD_VERSION})  # another client was faster


class Stat(NamedTuple):
    """A node's metadata; `ephemeral_owner` is a session id, 0 for a persistent node.

    A tuple, as everything that is made for each of half a million nodes after an election: it takes a quarter as long.
    """

    version: int
    created_zxid: int
    modified_zxid: int
    ephemeral_owner: int
    created_ms: int = 0  # by ZooKeeper's clock, since the epoch
    children_created: int = 0  # ever: the number of the next sequential one


class Content(NamedTuple):
    """Reply to `Get`."""

    content: bytes
    stat: Stat


class Children(NamedTuple):
    """Reply to `ListChildren`: names, sorted."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Reply to all other calls; for a `Multi`, per operation: the created path, the new version, or None."""

    results: tuple[str | int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The call failed; `index` is the operation of a `Multi` that failed (None: unknown)."""

    refusal: Refusal
    index: int | None = None

    @property
    def outcome_unknown(self) -> bool:
        """Whether a write may have been applied despite the failure."""
        return self.refusal in {Refusal.CONNECTION_LOST, Refusal.SESSION_EXPIRED}


@dataclass(frozen=True, slots=True)
class NodeRights:
    """Reply to `GetRights`; `version` is that of the list, not of the content."""

    rights: Mapping[str, str]
    version: int


Reply = Content | Children | Done | NodeRights | Refused


@dataclass(frozen=True, slots=True)
class Connected:
    """The session is usable; all watches are gone, so watched nodes must be read again."""

    session_id: int
    session_timeout_ms: int  # granted by the server


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection broke; the session may still be alive."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session ended; its ephemeral nodes are gone."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A watched node changed; a watch fires once, unless it was set by `WatchBelow`."""

    path: str
    children: bool  # True: the list of children changed; False: the content changed or the node was created or deleted


class Replied(NamedTuple):
    """The reply to the call `call_id`."""

    call_id: int
    reply: Reply

    @property
    def ids(self) -> tuple[int]:
        """The ids of the calls, as of a row of one."""
        return (self.call_id,)

    def part(self, _begin: int, _end: int) -> Replied:
        """Return some of the replies: the only one."""
        return self

    def each(self) -> Iterator[Replied]:
        """Yield each reply alone."""
        yield self


class RepliedInRow(NamedTuple):
    """The replies to the calls `first_id`, `first_id` + 1, and so on."""

    first_id: int
    replies: Sequence[Reply]

    @property
    def ids(self) -> range:
        """The ids of the calls."""
        return range(self.first_id, self.first_id + len(self.replies))

    def part(self, begin: int, end: int) -> RepliedInRow:
        """Return some of the replies."""
        return RepliedInRow(self.first_id + begin, self.replies[begin:end])

    def each(self) -> Iterator[Replied]:
        """Yield each reply alone."""
        return map(Replied, self.ids, self.replies)


@dataclass(frozen=True, slots=True)
class RepliedAll:
    """Replies that arrived together, in order."""

    replies: tuple[Replied | RepliedInRow, ...]

    def each(self) -> Iterator[Replied]:
        """Yield each reply alone."""
        return chain.from_iterable(one.each() for one in self.replies)


ZooKeeperEvent = Connected | Suspended | Lost | Watched | Replied
