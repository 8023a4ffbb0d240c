"""ZooKeeper calls and their answers as plain data, so that pure code decides which calls are made and in what order.

A shell performs them on a real server (`runtime/zk.py`); a simulation may perform them on a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    """Hold only if the node exists with `version` (-1: any)."""

    path: str
    version: int = -1


Operation = Create | SetContent | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """All operations or none."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Read content and stat; `watch` asks for one `Watched` when the node changes or goes."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ListChildren:
    """Read the names of the children; `watch` asks for one `Watched` when they change."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring the server that answers up to the leader's state: later reads on this session see all that came before."""

    path: str


Call = Multi | Get | ListChildren | Sync


class Refusal(Enum):
    """Why a call failed."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    TOO_LARGE = "too large"
    NOT_ALLOWED = "not allowed"
    CONNECTION_LOST = "connection lost"  # a write may have happened or not
    SESSION_EXPIRED = "session expired"  # a write may have happened or not, ephemeral nodes are gone


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper keeps about a node; `ephemeral_owner` is a session id or 0."""

    version: int
    created_zxid: int
    modified_zxid: int
    ephemeral_owner: int


@dataclass(frozen=True, slots=True)
class Content:
    """Answer to `Get`."""

    content: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Children:
    """Answer to `ListChildren`, sorted."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to `Multi` and `Sync`: per operation the created path, the new version, or None."""

    results: tuple[str | int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The call failed; for a `Multi`, `index` is the operation that failed (None: not known)."""

    refusal: Refusal
    index: int | None = None

    @property
    def outcome_unknown(self) -> bool:
        """Whether a write may have happened all the same."""
        return self.refusal in {Refusal.CONNECTION_LOST, Refusal.SESSION_EXPIRED}


Reply = Content | Children | Done | Refused


@dataclass(frozen=True, slots=True)
class Connected:
    """The session is usable; everything that was watched must be read again."""

    session_id: int
    session_timeout_ms: int  # what the server granted


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection broke; the session may live on."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session is over, its ephemeral nodes are gone."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A watched node changed; the watch is used up."""

    path: str
    children: bool  # whether the list of children changed, else the content or the node itself


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer to the call that was made under `call_id`."""

    call_id: int
    reply: Reply


ZooKeeperEvent = Connected | Suspended | Lost | Watched | Replied
