"""Claims of buckets in ZooKeeper, and the groups that are stored there.

The gateway that has created `owners/<bucket>` serves the bucket. It raised the bucket's epoch in the same transaction,
and all writes check the epoch's version, so that those of a former owner fail.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from zkrebalancer.gateway.layout import ALIVE, BUCKETS, OWNERS
from zkrebalancer.gateway.nodes import node_name, node_path
from zkrebalancer.gateway.session import Session
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredContent, StoredGroupError, TooLargeGroupError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError

SLICE = 100  # groups to read at once
MAX_EPOCH_DIGITS = 18
# Another gateway has claimed the bucket, or somebody has deleted or created its nodes: it has to be claimed again.
CLAIM_AGAIN = frozenset({Refusal.BAD_VERSION, Refusal.NO_NODE, Refusal.NODE_EXISTS})
_log = logging.getLogger(__name__)


def create_missing(session: Session, path: str, content: bytes = b"") -> None:
    """Create a node unless it exists; raises as `Buckets.claim` does.

    It is read first: without the right at its parent, ZooKeeper would refuse to create even one that exists.
    """
    if session.perform(Get(path)) == Refused(Refusal.NO_NODE):
        session.require(Multi((Create(path, content),)), Refusal.NODE_EXISTS)


def create_folders(session: Session) -> None:
    """Create the nodes above those of gateways, unless they exist; raises as `Buckets.claim` does."""
    for path in (paths.CONSUMERS, paths.GATEWAYS, ALIVE, BUCKETS, OWNERS):
        create_missing(session, path)


@dataclass(slots=True)
class Claim:
    """A bucket that this gateway serves: the version of its epoch, the groups that have a node, and since when."""

    bucket: int
    version: int
    names: set[str]
    served_since_us: int = 0  # 0: not yet

    @property
    def check(self) -> Check:
        """What fails in a transaction once another gateway has claimed the bucket."""
        return Check(f"{BUCKETS}/{self.bucket}", self.version)


class Buckets:
    """Claims, reads and writes; `claim` and `read` block only the greenlet that calls them."""

    def __init__(self, session: Session) -> None:
        """Use this session."""
        self._session = session

    def claim(self, bucket: int, number: int) -> Claim | None:
        """Claim a bucket for the gateway `number`; return None if another one still serves it.

        Raises:
            ZooKeeperUnavailableError: the connection broke, or ZooKeeper refused; whether it is claimed is unknown.

        """
        path, owner_path = f"{BUCKETS}/{bucket}", f"{OWNERS}/{bucket}"
        found = self._session.require(Get(path), Refusal.NO_NODE)
        if not isinstance(found, Content):
            self._session.require(Multi((Create(path, b"0"),)), Refusal.NODE_EXISTS, Refusal.NO_NODE)
            found = self._session.require(Get(path), Refusal.NO_NODE)
        owner = self._session.require(Get(owner_path), Refusal.NO_NODE)
        if not isinstance(found, Content):  # somebody has deleted the folder
            create_folders(self._session)
            return None
        operations: list[Operation] = []
        if isinstance(owner, Content):
            if not owner.stat.ephemeral_owner:
                _log.warning("%s belongs to no session; it is removed", owner_path)
            elif not self._is_own(owner, number):
                return None
            operations.append(Delete(owner_path, owner.stat.version))
        epoch = _epoch(found.content) + 1
        content = json.dumps({"version": 1, "gateway": number, "epoch": epoch}).encode()
        operations += [Create(owner_path, content, ephemeral=True), SetContent(path, b"%d" % epoch, found.stat.version)]
        claimed = self._session.require(Multi(tuple(operations)), *CLAIM_AGAIN)
        if isinstance(claimed, Refused):
            if claimed.refusal is Refusal.NO_NODE:
                create_folders(self._session)  # as above
            return None
        return Claim(bucket, found.stat.version + 1, set())

    def _is_own(self, owner: Content, number: int) -> bool:
        """Whether this session, or a former process at this address, made the claim."""
        if owner.stat.ephemeral_owner == self._session.session_id:
            return True
        try:
            return bool(json.loads(owner.content)["gateway"] == number)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    def read_all(self, claim: Claim) -> dict[str, StoredContent]:
        """Return the groups of a bucket, without unreadable ones, which are logged. Raises as `claim` does."""
        listed = self._session.require(ListChildren(f"{BUCKETS}/{claim.bucket}"))
        return self.read(claim, listed.names if isinstance(listed, Children) else ())

    def read(self, claim: Claim, names: Sequence[str]) -> dict[str, StoredContent]:
        """Return the groups of these nodes of a bucket, as `read_all`."""
        path = f"{BUCKETS}/{claim.bucket}"
        groups: dict[str, StoredContent] = {}
        foreign = [name for name in names if not _belongs_to(name, claim.bucket)]
        if foreign:
            _log.error("%d nodes below %s are no groups of this bucket, such as %.200r", len(foreign), path, foreign[0])
            names = [name for name in names if _belongs_to(name, claim.bucket)]
        for at in range(0, len(names), SLICE):
            some = names[at : at + SLICE]
            for name, reply in zip(some, self._session.perform_all([Get(f"{path}/{n}") for n in some]), strict=True):
                group = unquote(name)
                if isinstance(reply, Refused):
                    if reply.outcome_unknown:
                        raise ZooKeeperUnavailableError(f"{path}/{name} cannot be read: {reply.refusal.value}")
                    if reply.refusal is Refusal.NO_NODE:
                        claim.names.discard(group)
                    else:  # serve the other groups of the bucket
                        _log.error("ZooKeeper refuses to show %s/%s: %s", path, name, reply.refusal.value)
                        claim.names.add(group)
                    continue
                claim.names.add(group)
                try:
                    groups[group] = stored.from_bytes(reply.content if isinstance(reply, Content) else b"")
                except StoredGroupError as error:
                    _log.error("%s/%s: %s; its members have to join again", path, name, error)
        return groups

    def give_up(self, buckets: Iterable[int]) -> None:
        """Give up these buckets as far as this session holds them, whatever its claims' outcomes. Raises as `claim`."""
        paths = [f"{OWNERS}/{bucket}" for bucket in buckets]
        for path, owner in zip(paths, self._session.perform_all([Get(path) for path in paths]), strict=True):
            if isinstance(owner, Content) and owner.stat.ephemeral_owner == self._session.session_id:
                self._session.require(Multi((Delete(path, owner.stat.version),)), Refusal.NO_NODE, Refusal.BAD_VERSION)

    def store(
        self, claim: Claim, group: str, content: StoredContent | None, when_stored: Callable[[ErrorCode, str], None]
    ) -> None:
        """Write a group, or delete it. Writes keep their order.

        `when_stored` gets the error, and what ZooKeeper refuses as long as nobody helps; empty if it is something else.
        """
        path = node_path(group)
        is_new = group not in claim.names
        if content is None and is_new:
            when_stored(ErrorCode.NONE, "")
            return
        operation: Operation
        if content is None:
            operation = Delete(path)
            claim.names.discard(group)
        else:
            try:
                encoded = stored.to_bytes(content)
            except TooLargeGroupError:
                when_stored(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
                return
            operation = Create(path, encoded) if is_new else SetContent(path, encoded)
            claim.names.add(group)

        def replied(reply: Reply) -> None:
            error, refusal = _error_of(reply), _refusal_of(reply)
            if error is ErrorCode.NOT_COORDINATOR and isinstance(reply, Refused) and reply.index == 1:
                # The fence held. The write before it was refused, for instance, or somebody deleted the node.
                claim.names.discard(group)
                if reply.refusal is Refusal.NODE_EXISTS:
                    claim.names.add(group)
                error = ErrorCode.NONE if content is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif error and is_new:
                claim.names.discard(group)
            elif refusal is not None and content is None:
                claim.names.add(group)
                error = ErrorCode.UNKNOWN_SERVER_ERROR  # who deletes it would try again, and find no group
            when_stored(error, f"ZooKeeper refuses {path}: {refusal.value}" if refusal is not None else "")

        self._session.request(Multi((claim.check, operation)), replied)


def _belongs_to(name: str, bucket: int) -> bool:
    """Whether this is the name of a group's node, and the group belongs to this bucket."""
    try:
        group = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return False
    return node_name(group) == name and bucket_of(group) == bucket


def _epoch(content: bytes) -> int:
    """Return the epoch in a bucket's node. It is for people; fences check the node's version."""
    return int(content) if len(content) <= MAX_EPOCH_DIGITS and content.isdigit() else 0


def _error_of(reply: Reply) -> ErrorCode:
    if not isinstance(reply, Refused):
        return ErrorCode.NONE
    if reply.refusal in CLAIM_AGAIN:
        return ErrorCode.NOT_COORDINATOR
    if reply.refusal is Refusal.TOO_LARGE:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.COORDINATOR_NOT_AVAILABLE  # also if a right is missing: Java's clients end on any other error


def _refusal_of(reply: Reply) -> Refusal | None:
    """Return why ZooKeeper refuses a write as long as nobody helps, for instance because a right is missing."""
    if not isinstance(reply, Refused) or reply.outcome_unknown:
        return None
    return None if reply.refusal in CLAIM_AGAIN or reply.refusal is Refusal.TOO_LARGE else reply.refusal
