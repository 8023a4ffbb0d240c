"""Restores offsets that the coordinator deleted with their topic, from its copies.

Copies are only read, so an interrupted restore can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from zkrebalancer.observe import inspection
from zkrebalancer.operations.lives import begin_lives
from zkrebalancer.operations.nodes import names_below
from zkrebalancer.operations.starts_pause import refuse_consumers, starts_paused
from zkrebalancer.operations.topic_offsets import refuse_former_topics, require_topics, write_offsets
from zkrebalancer.protocol import offset_copy, paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.offset_copy import OffsetCopy
from zkrebalancer.runtime.zk import BlockingZk


class NothingToRestoreError(RebalancerError):
    """There is no such copy, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class Restored:
    """One partition: the copy that is used, when its offset was deleted, and the stored offset (None: none)."""

    copy: str
    deleted_at_ms: int
    before: int | None
    after: int


def restore_offsets(
    zk: BlockingZk, group: str, topics: Collection[str], copies: Collection[str], dry_run: bool
) -> dict[TopicPartition, Restored]:
    """Replace stored offsets of the group by those in its copies; return the changes, sorted.

    `topics`: only these, empty for all. `copies`: only these, empty for each topic's last deletion. Partitions
    that no longer exist are left out. `dry_run` writes nothing.

    Raises:
        UnknownGroupError: there is no such group.
        NothingToRestoreError: there is no such copy, or it cannot be read.
        UnknownTopicError: the topic of one does not exist.
        OffsetsRefusedError: the group has consumers, changed meanwhile, or has offsets of a former topic; or a topic
            was created anew meanwhile.
        ZooKeeperRefusedError: a node may not be read or written; offsets before it may be written already.

    """
    report = inspection.read_group(zk, group, judge=False)
    refuse_consumers(zk, group)
    chosen = _chosen(_read_copies(zk, group, copies), group, topics, copies)
    known = require_topics(zk, (copy.topic for copy in chosen.values()))
    refuse_former_topics(group, inspection.former_topics(zk, group, known))
    if dry_run:
        return _changes(zk, report, chosen, known)
    with starts_paused(zk, group, "restored offsets of deleted topics") as pause:
        changes = _changes(zk, report, chosen, known)
        write_offsets(zk, group, known, {tp: change.after for tp, change in changes.items()}, pause)
        begin_lives(zk, group, pause, changes)
    return changes


def _read_copies(zk: BlockingZk, group: str, copies: Collection[str]) -> dict[str, OffsetCopy]:
    """Return these copies, or all, oldest first; an unreadable one is an error: it may be the last one of its topic."""
    above = paths.deleted_offsets(group)
    listed, folder = names_below(zk, above), zk.perform(Get(above), ABSENT)
    made = folder.stat.children_created if isinstance(folder, Content) else 0
    names = [name for name in offset_copy.oldest_first(listed, made) if not copies or name in copies]
    nodes = zk.perform_all([Get(paths.deleted_offsets(group, name)) for name in names], ABSENT)
    found: dict[str, OffsetCopy] = {}
    for name, node in zip(names, nodes, strict=True):
        if isinstance(node, Content):
            try:
                found[name] = offset_copy.decode(node.content)
            except NodeContentError as error:
                raise NothingToRestoreError(f"copy {name}: {error}; name the copies to use with --copy") from None
    return found


def _chosen(
    found: dict[str, OffsetCopy], group: str, topics: Collection[str], copies: Collection[str]
) -> dict[str, OffsetCopy]:
    """Return the copies to use, in order; by default, those of each topic's last deleted incarnation."""
    ordered = {name: copy for name, copy in found.items() if not topics or copy.topic in topics}
    if copies:
        chosen = {name: copy for name, copy in ordered.items() if name in copies}
    else:
        last = {copy.topic: copy.incarnation for copy in ordered.values()}
        chosen = {name: copy for name, copy in ordered.items() if copy.incarnation == last[copy.topic]}
    missing = sorted({*topics} - {copy.topic for copy in chosen.values()} or {*copies} - chosen.keys())
    if missing or not chosen:
        what = f" of {', '.join(missing)}" if missing else ""
        raise NothingToRestoreError(f"group {group} has no copy{what}; all are below {paths.deleted_offsets(group)}")
    return chosen


def _changes(
    zk: BlockingZk, report: inspection.GroupReport, chosen: dict[str, OffsetCopy], known: dict[str, Topic]
) -> dict[TopicPartition, Restored]:
    inspection.read_offsets(zk, report)
    changes: dict[TopicPartition, Restored] = {}
    for name, copy in chosen.items():
        for number, offset in copy.offsets.items():
            partition = copy.topic, number
            if number in known[copy.topic].partitions:
                changes[partition] = Restored(name, copy.deleted_at_ms, report.offsets.get(partition), offset)
    return dict(sorted(changes.items()))
