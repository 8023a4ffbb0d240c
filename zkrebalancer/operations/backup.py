"""Saves the tree below `/consumers` to a file, and puts it back, also into another ensemble.

A backup has every persistent node except `/consumers/security`, `/consumers/shards`, the groups of Kafka 0.8's own
consumers, and what belongs to consumers that will be gone: their channels, and the records of what they were given. On
a running tree, nodes are read one after the other: each offset was current at some moment during the backup. So was the
checkpoint of a consistent region, as a whole (`region_backup`).

A restore changes what would mean something else in another tree. Marks of topics lose the creation ids of nodes
(`czxid-…`), which only their own ensemble knows: topic ids stay, and a mark without any is filled in by the leader.
Generations grow, so that those that were reached after the backup are not used again (`counting_on`). From its first
write until it is complete, a persistent node stands in place of the leader's, also after the restore was killed: no
coordinator, of no release, can lead a tree that is not complete.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import gevent

from zkrebalancer.operations import backup_file, region_backup
from zkrebalancer.operations.backup_file import Node
from zkrebalancer.operations.counting_on import COUNTER, CountingOn
from zkrebalancer.operations.nodes import count_shards, create_missing, exists, names_below
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    CHANGED,
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
    SetContent,
    Sync,
)
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.runtime.zk import BlockingZk

MAX_READS = 200  # nodes that are read at once, with the lists of their children
MAX_WRITES = 200
RECONNECT_S = 5.0  # longest time to wait for a connection that broke
RECONNECT_INTERVAL_S = 0.1
_GROUP = rf"{paths.GROUPS}/[^/]+"
_OF_CONSUMERS = re.compile(rf"{_GROUP}/(ids|owners|channel|given|region/(members|requests|contributions))/.+")
_REGION = re.compile(rf"{_GROUP}/region")
_OF_REGION = re.compile(rf"{_GROUP}/region/(order|merged/[^/]+|initial/[^/]+/[0-9]+)")
_OFFSET = re.compile(rf"{_GROUP}/offsets/[^/]+/[0-9]+")
_OFFSETS = re.compile(rf"{_GROUP}/offsets(/.*)?")
# The leader's node ends with its session. Rights belong to an ensemble and its logins: an old backup would also restore
# the rights of logins that were removed.
# Shards belong to a fleet: a restored tree has one until an operator changes that.
_LEFT_OUT = re.compile(rf"({re.escape(paths.COORDINATOR)}|{re.escape(paths.SECURITY)}|{re.escape(paths.SHARDS)})(/.*)?")
_MARK = re.compile(rf"{_GROUP}/(?:offsets|incarnations)/([^/]+)")
_REMEDY = "if so, `zkrebalancer restore --accept-partial` lets one lead"
_log = logging.getLogger(__name__)
Progress = Callable[[int, int | None], None]  # gets the number of nodes so far, and of all if it is known


class NothingToKeepError(RebalancerError):
    """There is no tree, probably because the chroot is wrong."""


class PartialTreeError(RebalancerError):
    """A restore was interrupted, so a backup would keep a part only."""


class RestoreRefusedError(RebalancerError):
    """The tree is in use, or has what the restore would overwrite."""


class RestoreLostError(RebalancerError):
    """Another process changed the tree during the restore."""


# ---- backup


def back_up(zk: BlockingZk, file: Path, now_ms: int, progress: Progress) -> int:
    """Write all nodes to a new file; return their number. `progress` does not learn how many there will be.

    Raises:
        FileExistsError, OSError: the file exists, or cannot be written.
        NothingToKeepError: there is no tree.
        PartialTreeError: a restore is not complete, or another one has begun meanwhile.
        ZooKeeperRefusedError: a node may not be read: a backup without it would be useless.

    """
    zk.perform(Sync(paths.CONSUMERS), ABSENT)  # the server may lag: offsets would be of before the backup
    if not exists(zk, paths.CONSUMERS):
        raise NothingToKeepError(f"there is no {paths.CONSUMERS} here; --zookeeper needs the chroot that Kafka uses")
    mark = _mark_of_restore(zk)
    if exists(zk, paths.RESTORE):
        raise PartialTreeError("a restore is not complete here: a backup of this tree would keep a part only")
    return backup_file.write(file, _counted(_nodes_of_one_tree(zk, mark), progress), now_ms)


def _mark_of_restore(zk: BlockingZk) -> bytes:
    """Return the content of a node that only restores write, before all others."""
    node = zk.perform(Get(paths.SERVED), ABSENT)
    return node.content if isinstance(node, Content) else b""


def _nodes_of_one_tree(zk: BlockingZk, mark: bytes) -> Iterator[Node]:
    """Yield the nodes as `_nodes` does; `mark`: of the last restore before.

    Raises:
        PartialTreeError: another restore has begun since, so some nodes are of the tree before it.

    """
    yield from _nodes(zk)
    if exists(zk, paths.RESTORE) or _mark_of_restore(zk) != mark:
        text = "a restore has begun meanwhile: the backup would have nodes of two trees; repeat it after the restore"
        raise PartialTreeError(text)


def _counted(nodes: Iterator[Node], progress: Progress) -> Iterator[Node]:
    for count, node in enumerate(nodes, start=1):
        yield node
        progress(count, None)


def _nodes(zk: BlockingZk) -> Iterator[Node]:
    """Yield the nodes, parents first; at most the children of MAX_READS nodes of each level are kept in memory."""
    waiting = [paths.CONSUMERS]
    while waiting:
        now, waiting = waiting[-MAX_READS:], waiting[:-MAX_READS]
        contents = zk.perform_all([Get(path) for path in now], ABSENT)
        found = {path: reply for path, reply in zip(now, contents, strict=True) if isinstance(reply, Content)}
        kept = {path: reply.content for path, reply in found.items() if not reply.stat.ephemeral_owner}
        yield from (Node(path, content) for path, content in kept.items())
        regions = [path for path in kept if _REGION.fullmatch(path)]
        for path in regions:  # before its initial offsets: each partition of a merge has one
            yield from region_backup.checkpoint_nodes(zk, path)
        above = [path for path in kept if not _OFFSET.fullmatch(path)]
        lists = zk.perform_all([ListChildren(path) for path in above], ABSENT)
        for path, listed in zip(above, lists, strict=True):
            if isinstance(listed, Children):
                apart = region_backup.READ_APART if path in regions else ()
                below = (f"{path}/{name}" for name in listed.names if name not in apart)
                waiting += [one for one in below if not _is_left_out(one)]


def _is_left_out(path: str) -> bool:
    if not paths.OWN.issuperset(path.split("/")[2:3]):
        return True  # of Kafka 0.8's consumers: they may run during a restore, and would read from former offsets
    return _OF_CONSUMERS.fullmatch(path) is not None or _LEFT_OUT.fullmatch(path) is not None


# ---- restore


@dataclass(slots=True)
class Restored:
    """What a restore has done: nodes it created, replaced, and left as they were."""

    created: int = 0
    replaced: int = 0
    unchanged: int = 0


@dataclass(slots=True)
class _Barrier:
    """What keeps coordinators from leading until the restore is complete, also after it was killed.

    The leader's node is persistent and has a child, so no coordinator can create or remove it. An ephemeral node, whose
    name is used once, shows that this restore still runs: all its transactions check that node.
    """

    zk: BlockingZk
    fence: Check = field(init=False)
    was_interrupted: bool = False  # whether there is a part of a former restore
    has_written: bool = False

    def __enter__(self) -> Self:
        create_missing(self.zk, paths.CONSUMERS, paths.GROUPS)
        if count_shards(self.zk) > 1:
            raise RestoreRefusedError("the groups here have several shards; use `zkrebalancer shards set 1` first")
        holder = f"{paths.RESTORE}/{secrets.token_hex(8)}"
        known = self.zk.perform(Get(paths.RESTORE), ABSENT)
        self.was_interrupted = isinstance(known, Content)
        begin: list[Operation]
        if isinstance(known, Content):
            _refuse_running(self.zk)
            begin = [SetContent(paths.RESTORE, known.content, known.stat.version)]
        else:
            address = CoordinatorAddress(NOBODY, f"{socket.gethostname()} (restore)", 0, None, "0")
            begin = [Create(paths.COORDINATOR, cluster_nodes.encode_coordinator(address)), Create(paths.RESTORE)]
        begin += [Create(holder, ephemeral=True), *self._without_former_leaders()]
        self.fence = Check(holder, 0)
        try:
            is_refused = isinstance(self.zk.perform(Multi(tuple(begin)), CHANGED), Refused)
        except BaseException:  # Ctrl-C, or the connection broke: perhaps it was performed
            self._give_up()
            raise
        if is_refused:
            raise RestoreRefusedError("a coordinator leads here, or a restore runs; stop all coordinators first")
        return self

    def _without_former_leaders(self) -> list[Operation]:
        """Make transactions fail that a former leader has sent or may still send: they check the epoch's version."""
        epoch = self.zk.perform(Get(paths.COORDINATOR_EPOCH), ABSENT)
        if not isinstance(epoch, Content):
            return []
        return [SetContent(paths.COORDINATOR_EPOCH, epoch.content, epoch.stat.version)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let coordinators lead, unless a part is missing."""
        if kind is not None:
            self._give_up()
            return
        try:
            is_refused = isinstance(self.zk.perform(self._removal(), CHANGED | {Refusal.NOT_EMPTY}), Refused)
        except BaseException:  # as above
            self._let_lead("the whole tree")
            raise
        if is_refused:
            raise RestoreLostError(_lost("what kept coordinators from leading was changed"))

    def _removal(self) -> Multi:
        return Multi((self.fence, Delete(self.fence.path), Delete(paths.RESTORE), Delete(paths.COORDINATOR)))

    def _give_up(self) -> None:
        """Let coordinators lead if the tree is as it was; an error of that is only told: that of the restore counts."""
        if self.was_interrupted or self.has_written:
            _log.warning("the tree is restored in part, so no coordinator can lead: restore again with --overwrite")
            with suppress(RebalancerError):
                self.zk.perform(Multi((Delete(self.fence.path),)), CHANGED)
        else:
            self._let_lead("nothing")

    def _let_lead(self, restored: str) -> None:
        give_up_s = time.monotonic() + RECONNECT_S
        while why := self._why_kept():
            if time.monotonic() >= give_up_s:
                _log.warning("%s was restored, but no coordinator may be able to lead: %s; %s", restored, why, _REMEDY)
                return
            gevent.sleep(RECONNECT_INTERVAL_S)

    def _why_kept(self) -> str:
        """Try to remove what keeps coordinators from leading; return why it is still there, "" if it is gone."""
        try:
            reply = self.zk.perform(self._removal(), CHANGED | {Refusal.NOT_EMPTY})
            is_kept = isinstance(reply, Refused) and exists(self.zk, paths.RESTORE)
        except RebalancerError as error:
            return str(error)
        return f"{paths.RESTORE} belongs to no session, or to another restore" if is_kept else ""

    def write(self, operations: list[Operation]) -> None:
        """Perform operations in transactions that fail once this restore has lost its node."""
        while operations:
            count = min(MAX_WRITES, self.zk.request_limit.fitting(operations, [self.fence]))
            self.has_written = True
            reply = self.zk.perform(Multi((self.fence, *operations[:count])), CHANGED)
            if isinstance(reply, Refused):
                raise RestoreLostError(
                    _lost(
                        "its session ended, or its node was deleted"
                        if not reply.index
                        else f"{operations[reply.index - 1].path} changed meanwhile"
                    )
                )
            operations = operations[count:]


def _lost(what: str) -> str:
    return f"{what}; restore again with --overwrite"


def _refuse_running(zk: BlockingZk) -> None:
    if names_below(zk, paths.RESTORE):
        raise RestoreRefusedError("a restore runs here; if it was killed just now, wait until its session has ended")


def accept_partial(zk: BlockingZk) -> bool:
    """Let coordinators lead the tree as an interrupted restore has left it; return whether there was one.

    Raises:
        RestoreRefusedError: it still runs.
        ZooKeeperRefusedError: a right is missing.

    """
    known = zk.perform(Get(paths.RESTORE), ABSENT)
    if not isinstance(known, Content):
        return False
    removal = Multi((Delete(paths.RESTORE, known.stat.version), Delete(paths.COORDINATOR)))
    if isinstance(zk.perform(removal, CHANGED | {Refusal.NOT_EMPTY}), Refused):
        _refuse_running(zk)
        raise RestoreRefusedError("another program has changed what keeps coordinators from leading; look again")
    return True


def restore(
    zk: BlockingZk, file: Path, *, overwrite: bool, adopt_topics: bool, now_ms: int, progress: Progress
) -> Restored:
    """Put the nodes of a file back.

    `overwrite`: also into a tree that has groups; nodes that the file does not have stay. `adopt_topics`: offsets
    belong to the topics that exist now, although these have other ids. `now_ms`: see `CountingOn`.

    Raises:
        BackupFileError, OSError: the file is not a whole backup; nothing was written.
        RestoreRefusedError: a coordinator leads, consumers are registered, there are groups, or a topic is another
            one; nothing was written.
        RestoreLostError: another process changed the tree meanwhile; a part may be written.

    """
    total = backup_file.check(file, _is_left_out)
    counters = CountingOn(backup_file.read(file), backup_file.taken_at_ms(file), now_ms)
    with _Barrier(zk) as barrier:
        _refuse_live_tree(zk, overwrite=overwrite)
        if not adopt_topics:
            _refuse_other_topics(zk, file)
        done = Restored()
        chunk = [counters.served]  # first: no group has its generation before
        for count, node in enumerate(_in_order(file), start=2):
            chunk.append(Node(node.path, portable(node.path, counters.content(node), adopt_topics=adopt_topics)))
            if len(chunk) >= MAX_READS:
                _write(zk, barrier, chunk, done)
                chunk = []
                progress(count, total)
        _write(zk, barrier, chunk, done)
    return done


def _in_order(file: Path) -> Iterator[Node]:
    """Yield what is written besides `served`, offsets last: no part has offsets without the marks of their topics."""
    for is_offset in (False, True):
        for node in backup_file.read(file):
            is_now = (_OFFSETS.fullmatch(node.path) is not None) is is_offset
            if is_now and node.path != paths.SERVED and not _is_left_out(node.path):
                yield node


def _refuse_live_tree(zk: BlockingZk, *, overwrite: bool) -> None:
    """Refuse a tree into which somebody may write: whoever comes later sees the barrier, and waits.

    Each consumer's and each gateway's transaction checks its node in `owners`. A gateway's node without a session
    is of a copied tree, and nobody's.
    """
    for above in (paths.LIVE_GATEWAYS, paths.BUCKET_OWNERS):
        for path in (f"{above}/{name}" for name in names_below(zk, above)):
            node = zk.perform(Get(path), ABSENT)
            if isinstance(node, Content) and node.stat.ephemeral_owner:
                raise RestoreRefusedError(f"gateways run here: {path} exists; stop them first")
    groups = names_below(zk, paths.GROUPS)
    if groups and not overwrite:
        raise RestoreRefusedError(f"there are {len(groups)} groups here, such as {groups[0]}; see --overwrite")
    for group in groups:
        places = (paths.ids(group), paths.owners(group), paths.region(group, "members"))
        consumers = next(filter(None, (names_below(zk, place) for place in places)), ())
        if consumers:
            raise RestoreRefusedError(f"group {group} has consumers, such as {consumers[0]}; stop them first")


def _refuse_other_topics(zk: BlockingZk, file: Path) -> None:
    """Refuse a file with offsets of topics that have other ids here: the leader would delete these offsets."""
    known: dict[str, str] = {}
    others: set[str] = set()
    for node in backup_file.read(file):
        match = _MARK.fullmatch(node.path)
        mark = portable(node.path, node.content, adopt_topics=False).decode(errors="replace") if match else ""
        if match and mark:
            topic = match[1]
            if topic not in known:
                known[topic] = _incarnation(zk, topic)
            if known[topic] and not cluster_nodes.is_same_topic(mark, known[topic]):
                others.add(topic)
    if others:
        names = ", ".join(sorted(others)[:3])
        raise RestoreRefusedError(
            f"{len(others)} topics have other ids here ({names}): their offsets would be deleted; see --adopt-topics"
        )


def _incarnation(zk: BlockingZk, topic: str) -> str:
    """Return the topic id of an existing topic, as far as one is known."""
    node = zk.perform(Get(paths.topic(topic)), ABSENT)
    if isinstance(node, Content):
        with suppress(NodeContentError):
            found = cluster_nodes.decode_topic(node.content, node.stat.created_zxid)
            return cluster_nodes.without_creation(found.incarnation)
    return ""


def portable(path: str, content: bytes, *, adopt_topics: bool) -> bytes:
    """Return the content of a node, which is no counter, for another tree."""
    with suppress(NodeContentError):
        if _MARK.fullmatch(path):
            mark = cluster_nodes.decode_mark(content)
            return b"" if adopt_topics else cluster_nodes.without_creation(mark).encode()
        if match := _OF_REGION.fullmatch(path):
            return region_backup.portable(match[1], content, adopt_topics=adopt_topics)
    return content


def _write(zk: BlockingZk, barrier: _Barrier, chunk: list[Node], done: Restored) -> None:
    """Write nodes, parents first; counters of the tree itself never go back."""
    present = zk.perform_all([Get(node.path) for node in chunk], ABSENT)
    operations: list[Operation] = []
    for node, reply in zip(chunk, present, strict=True):
        if not isinstance(reply, Content):
            operations.append(Create(node.path, node.content))
            done.created += 1
            continue
        content = _higher(node, reply.content)
        if content == reply.content:
            done.unchanged += 1
        else:
            operations.append(SetContent(node.path, content, reply.stat.version))
            done.replaced += 1
    barrier.write(operations)


def _higher(node: Node, present: bytes) -> bytes:
    """Return the higher one of two counters; for any other node, its content in the file."""
    if node.path != paths.COORDINATOR_EPOCH and not COUNTER.fullmatch(node.path):
        return node.content
    with suppress(NodeContentError):
        before, after = (cluster_nodes.decode_counter("counter", one) for one in (present, node.content))
        return present if before > after else node.content
    return node.content
