"""Backups of the tree, restores of it, and restores of offsets that were deleted with their topic, as faults.

A backup is taken while everything goes on. For a restore, coordinators and consumers are stopped for a while, as an
operator does it, and sometimes all groups are lost before; some process comes back too early. Files are in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self, cast

from consumer_agent.membership.offset_books import MARK_PREFIX
from tests.simulation.cluster import Cluster
from tests.simulation.commands import MAX_TRIES, PAUSE_S, begin, kill, later, stop, stop_consumers
from tests.simulation.operator_invariants import check_written
from tests.simulation.operators import OperatorHost
from tests.simulation.plan import GROUPS
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.strangers import Do, Target
from tests.support.shard_world import Client
from tests.support.zk_model import Change
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations import backup, restore_offsets
from zkrebalancer.operations.backup import RestoreLostError, RestoreRefusedError
from zkrebalancer.operations.backup_file import Node
from zkrebalancer.operations.counting_on import GENERATION_STEP
from zkrebalancer.operations.restore_offsets import NothingToRestoreError
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.operations.topic_offsets import UnknownTopicError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Operation
from zkrebalancer.runtime.zk import BlockingZk

AWAY_US = (5_000_000, 12_000_000)  # how long coordinators and consumers are stopped: longer than their sessions
BEGIN_US = (300_000, 1_500_000)  # until the restore begins: a backup, if there is none, and clean stops come before
FRESH = 0.7  # share of the restores of a backup that was just taken
AGAIN_AFTER_US = 11_000_000  # the session of a killed restore is over
MAX_REPEATS = 2  # of a restore that has not completed
REPEATED = 0.9  # share of these that are repeated; the others are accepted at the end as they are
FORGOTTEN = 0.3  # share of the restores for which one group is not stopped
NOTICED = 0.5  # share of these whose operator stops that group once the restore was refused
STALE = 0.2  # share of the cases in which the tree has offsets of former topics: such a backup is refused later
KEPT = 0.8  # share of the restores during which nobody creates a topic anew: otherwise, most are refused
MAX_LOOKS, LOOK_US = 60, 200_000  # for marks of former topics that the leader has not removed
LOST = 0.3  # share of the restores before which all groups are lost
AGAIN_US = (0, 800_000)  # until a topic comes back
COPIED_US = (500_000, 3_000_000)  # until its offsets are put back: a coordinator has to delete and to copy them before
_OFFSET = re.compile(rf"{paths.GROUPS}/[^/]+/offsets/[^/]+/[0-9]+")
_GENERATION = re.compile(rf"{paths.GROUPS}/[^/]+/generation")
_MARK = re.compile(rf"{paths.GROUPS}/[^/]+/(?:offsets|incarnations)/([^/]+)")


class Witness:
    """Follows all transactions while a block runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._ensemble = cluster.ensemble
        nodes = self._ensemble.zk.nodes
        self.seen = {path: {node.content} for path, node in nodes.items()}  # path -> contents since the beginning
        self.steady = {path for path, node in nodes.items() if not node.ephemeral_owner}  # have existed all the time
        self.writers: dict[str, set[object]] = {}  # path -> hosts that have changed it

    def __enter__(self) -> Self:
        self._ensemble.watchers.append(self._committed)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ensemble.watchers.remove(self._committed)

    def _committed(self, session_id: int, _operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        for change in changes:
            self.writers.setdefault(change.path, set()).add(self._ensemble.hosts.get(session_id))
            if change.after is not None:
                self.seen.setdefault(change.path, set()).add(change.after.content)
            if change.before is None or change.after is None or change.after.ephemeral_owner:
                self.steady.discard(change.path)


# Backups --------------------------------------------------------------------------------------------------------------


def _nothing(_count: int, _total: int | None) -> None:
    pass


def _back_up(cluster: Cluster, _draw: Random, _target: Target) -> None:
    """Keep the tree in a file while everything goes on."""
    file = Path(str(cluster.schedule.now_us))

    def command(zk: BlockingZk) -> None:
        garbled = {kind: count for kind, count in cluster.faults.items() if kind.startswith("garble")}
        with Witness(cluster) as witness:
            backup.back_up(zk, file, 0, _nothing)
            _check_backup(cluster.disk.files[file], witness)
        if garbled != {kind: count for kind, count in cluster.faults.items() if kind.startswith("garble")}:
            del cluster.disk.files[file]  # nobody repairs what a restore would bring back

    if not _is_garbled(cluster):
        begin(cluster, command)


def _is_garbled(cluster: Cluster) -> bool:
    return any(path in cluster.ensemble.zk.nodes for path in cluster.garbled)


def _at_once(cluster: Cluster) -> BlockingZk:
    """Return a client whose calls take no time."""
    return cast("BlockingZk", Client(cluster.ensemble.zk))


def _check_backup(kept: list[Node], witness: Witness) -> None:
    """Check that each node was so at some moment during the backup, and that none is missing."""
    for node in kept:
        if node.content not in witness.seen.get(node.path, ()):
            raise BrokenPromiseError("backup", f"{node.path} has {node.content[:80]!r}, which it was not meanwhile")
    known = {node.path for node in kept}
    for path in sorted(witness.steady - known):
        is_foreign = _OFFSET.match(path.rpartition("/")[0])  # below an offset, there are nodes of other programs only
        if path.startswith(f"{paths.CONSUMERS}/") and not backup._is_left_out(path) and not is_foreign:
            raise BrokenPromiseError("backup", f"{path} is missing")


# Restores of the tree -------------------------------------------------------------------------------------------------


def _restore(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Stop coordinators and consumers for a while, and put the last backup back; mostly, until that is complete."""
    restore = _Restore(cluster, draw, draw.random() < KEPT, draw.random() < NOTICED)
    if restore.keeps_topics:
        cluster.kept_topics.update(cluster.incarnations)
    later(cluster, 0, restore.wait_for_marks, 0 if draw.random() < STALE else MAX_LOOKS)


@dataclass
class _Restore:
    """An operator restores a tree, again and again until it is complete."""

    cluster: Cluster
    draw: Random
    keeps_topics: bool
    notices: bool  # that a group has consumers
    is_over: bool = False  # complete, or refused for ever
    repeats: int = 0

    def wait_for_marks(self, looks: int) -> None:
        """Begin once the tree has no offsets of former topics: such a backup is refused later."""
        cluster, draw = self.cluster, self.draw
        if paths.RESTORE in cluster.ensemble.zk.nodes:
            return
        if looks and not cluster.is_known_by_id():
            if looks > 1:
                later(cluster, LOOK_US, self.wait_for_marks, looks - 1)
            return
        file = _last(cluster)
        is_old = file is None or not _is_of_these_topics(cluster, cluster.disk.files[file])
        if (is_old or draw.random() < FRESH) and not _is_garbled(cluster):
            backup.back_up(_at_once(cluster), Path(str(cluster.schedule.now_us)), 0, _nothing)
        forgotten = draw.choice([*GROUPS]) if draw.random() < FORGOTTEN else ""
        self._stop(forgotten, is_lost=not forgotten and draw.random() < LOST)

    def _stop(self, forgotten: str = "", *, is_lost: bool = False) -> None:
        """Stop what writes into the tree, and begin a little later."""
        cluster, draw = self.cluster, self.draw
        if self.keeps_topics:
            cluster.kept_topics.update(cluster.incarnations)
        away_us = draw.randrange(*AWAY_US)
        cluster.unled_until_us = max(cluster.unled_until_us, cluster.schedule.now_us + away_us)
        for group in [name for name in GROUPS if name != forgotten]:
            stop_consumers(cluster, draw, group, away_us)
        for process in cluster.living_coordinators():
            process.kill()
            process.connection.drop()
            cluster.add_coordinator()
        later(cluster, draw.randrange(*BEGIN_US), self.begin, is_lost=is_lost)

    def begin(self, *, is_lost: bool = False) -> None:
        """Start the command, and see later what has become of it."""

        def command(zk: BlockingZk) -> None:
            try:
                self._run(zk, host, is_lost=is_lost)
            finally:
                cluster.kept_topics.clear()

        cluster = self.cluster
        host = begin(cluster, command)
        host.is_restoring = True
        if self.repeats < MAX_REPEATS and self.draw.random() < REPEATED:
            later(cluster, AGAIN_AFTER_US, self._repeat, host)

    def _repeat(self, former: OperatorHost) -> None:
        """Repeat an interrupted restore. Where it has written, no member has to be stopped: all wait for its end."""
        if self.is_over:
            return
        self.repeats += 1
        if former.alive:
            former.kill()
        if paths.RESTORE in self.cluster.ensemble.zk.nodes:
            self.begin()
        else:
            self._stop()

    def _run(self, zk: BlockingZk, host: OperatorHost, *, is_lost: bool) -> None:
        cluster = self.cluster
        for attempt in range(MAX_TRIES):
            file = _last(cluster)
            if file is None or not _is_usable(cluster, cluster.disk.files[file]):
                self.is_over = True
                return
            kept = cluster.disk.files[file]
            if is_lost and attempt == 0:
                _lose_groups(cluster)
            with _restoring(cluster), suppress(RestoreRefusedError, RestoreLostError), Witness(cluster) as witness:
                backup.restore(zk, file, overwrite=True, adopt_topics=False, now_ms=0, progress=_nothing)
                _check_restored(cluster, host, kept, witness)
                self.is_over = True
                return
            if paths.RESTORE not in cluster.ensemble.zk.nodes and not _is_of_these_topics(cluster, kept):
                self.is_over = True
                return
            for group in GROUPS if self.notices else ():
                stop(cluster, group)
            host.sleep(PAUSE_S)


def _last(cluster: Cluster) -> Path | None:
    return max(cluster.disk.files, default=None, key=lambda file: int(file.name))


@contextmanager
def _restoring(cluster: Cluster) -> Iterator[None]:
    cluster.is_restoring = True
    try:
        yield
    finally:
        cluster.is_restoring = False


def _is_usable(cluster: Cluster, kept: list[Node]) -> bool:
    """Whether each topic can be recognized by its id: a restored mark has no other name of it."""
    in_kafka = [
        (tp[0], text.removeprefix(MARK_PREFIX)) for (_group, tp), (_offset, text) in cluster.brokers.offsets.items()
    ]
    marks = _marks(cluster, kept)
    return all(mark and _has_id(cluster, topic, mark) for topic, mark in marks) and all(
        _has_id(cluster, topic, mark) for topic, mark in in_kafka
    )


def _marks(cluster: Cluster, kept: list[Node]) -> list[tuple[str, str]]:
    """Return the topics that a backup has offsets of, and the marks that a restore writes."""
    return [
        (match[1], backup.portable(node.path, node.content, adopt_topics=False).decode(errors="replace"))
        for node in kept
        if (match := _MARK.fullmatch(node.path)) and match[1] in cluster.incarnations
    ]


def _is_of_these_topics(cluster: Cluster, kept: list[Node]) -> bool:
    """Whether a restore accepts its marks: topics that were created anew have other ids."""
    return all(cluster.topic_ids[topic] in mark.split() for topic, mark in _marks(cluster, kept))


def _has_id(cluster: Cluster, topic: str, mark: str) -> bool:
    """Whether a mark of the present topic has its id; that of another topic is refused."""
    is_present = cluster.life(mark) == f"{topic}-{cluster.incarnations[topic]}"
    topic_id = cluster.topic_ids[topic]
    return bool(topic_id) and (not is_present or topic_id in mark.split())


def _lose_groups(cluster: Cluster) -> None:
    """Delete all groups; the consumers that came too early have ended."""
    cluster.schedule.tell("FAULT", "all groups are lost")
    for group in GROUPS:
        kill(cluster, group)
    below = [path for path in cluster.ensemble.zk.nodes if path.startswith(f"{paths.GROUPS}/")]
    cluster.write(*map(Delete, sorted(below, reverse=True)))


def _check_restored(cluster: Cluster, host: OperatorHost, kept: list[Node], witness: Witness) -> None:
    """Check that offsets are those of the file, and generations above it, unless others have changed them since."""
    for node in kept:
        found = cluster.ensemble.zk.nodes.get(node.path)
        content = b"" if found is None else found.content
        if witness.writers.get(node.path, set()) - {host}:
            continue
        is_wrong = False
        if _OFFSET.fullmatch(node.path):
            is_wrong = found is None or content != node.content
        elif _GENERATION.fullmatch(node.path) and node.content.isdigit() and len(node.content) < 20:
            is_wrong = not content.isdigit() or int(content) < int(node.content) + GENERATION_STEP
        if is_wrong:
            raise BrokenPromiseError("restore", f"{host.name} is done, and {node.path} is {content!r}")


def unfinished(cluster: Cluster) -> Iterator[str]:
    """Accept what an interrupted restore has left; yield why that is not possible yet."""
    try:
        backup.accept_partial(_at_once(cluster))
    except RestoreRefusedError as error:
        yield str(error)


# Restores of offsets --------------------------------------------------------------------------------------------------


def _restore_offsets(cluster: Cluster, draw: Random, target: Target) -> None:
    """Let a topic come back with its records under another id, as from a mirror, and put its deleted offsets back."""
    if not cluster.has_topic(target.topic) or target.topic in cluster.kept_topics:
        return
    stop_consumers(cluster, draw, target.group)
    ends = {tp: cluster.brokers.end(tp) for tp in cluster.brokers.logs if tp[0] == target.topic}
    cluster.delete_topic(target.topic)
    again_us = draw.randrange(*AGAIN_US)
    cluster.schedule.after(again_us, _come_back, cluster, target.topic, ends)
    later(cluster, again_us + draw.randrange(*COPIED_US), _begin_offsets, cluster, target.group, target.topic)


def _come_back(cluster: Cluster, topic: str, ends: dict[tuple[str, int], int]) -> None:
    if not cluster.has_topic(topic):
        cluster.set_topic(topic, len(ends))
        for partition, end in ends.items():
            log = cluster.brokers.logs[partition]
            log.created_us -= end * log.interval_us


def _begin_offsets(cluster: Cluster, group: str, topic: str) -> None:
    def put_back(zk: BlockingZk) -> bool:
        seen = restore_offsets.restore_offsets(zk, group, [topic], [], dry_run=True)
        if any(one.after > cluster.brokers.end(tp) for tp, one in seen.items() if tp in cluster.brokers.logs):
            return False  # of another life of the topic, which had more records
        copies = {one.copy for one in seen.values()}
        changes = restore_offsets.restore_offsets(zk, group, [topic], copies, dry_run=False)
        check_written(host, group, {tp: one.after for tp, one in changes.items()})
        return True

    def command(zk: BlockingZk) -> None:
        for _ in range(MAX_TRIES):
            errors = OffsetsRefusedError, NothingToRestoreError, UnknownTopicError, UnknownGroupError
            with _kept(cluster, topic), suppress(*errors):
                if put_back(zk):
                    return
            stop(cluster, group)
            host.sleep(PAUSE_S)

    host = begin(cluster, command)
    host.may_skip = True


@contextmanager
def _kept(cluster: Cluster, topic: str) -> Iterator[None]:
    """Let nobody create the topic anew, with fewer records, while offsets are put back that fit these."""
    cluster.kept_topics.add(topic)
    try:
        yield
    finally:
        cluster.kept_topics.discard(topic)


BACKUPS: dict[str, Do] = {"back_up": _back_up, "restore": _restore, "restore_offsets": _restore_offsets}
