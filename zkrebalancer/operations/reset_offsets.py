"""Sets the offsets of a group that has no consumers.

A consumer that registers meanwhile must not start from an offset that is about to be replaced. So starts are paused
first (a setting of the group, whose version every command checks), then it is looked again that nobody is registered,
then the offsets are written, each transaction checking that the pause still stands, and then starts go on. A reset that
was interrupted leaves the pause behind; the next reset, finished or refused, takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from zkrebalancer.observe import inspection
from zkrebalancer.protocol import cluster_nodes, fields, paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Content,
    Create,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    SetContent,
)
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

STARTS_PAUSED = "starts_paused"
MAX_WRITES_PER_TRANSACTION = 500


class ResetRefusedError(RebalancerError):
    """The group has consumers, or was changed by somebody else meanwhile; nothing more was written."""


def reset_offsets(
    zk: BlockingZk,
    group: str,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    dry_run: bool,
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Give every stored offset of the group a new value; return partition -> (before, after), sorted.

    `new_offsets` is asked for the partitions that have a stored offset. With `dry_run` nothing is written.

    Raises:
        UnknownGroupError: there is no such group.
        ResetRefusedError: the group has consumers, or changed meanwhile.

    """
    report = inspection.read_group(zk, group)
    _refuse_consumers(zk, group)
    if dry_run:
        return _changes(zk, report, new_offsets)
    version = _set_paused(zk, group, paused=True)
    try:
        _refuse_consumers(zk, group)
        changes = _changes(zk, report, new_offsets)
        for operations in _writes(group, changes, version):
            if not isinstance(zk.perform(Multi(operations)), Done):
                raise ResetRefusedError(f"group {group}: it was changed while its offsets were reset; reset again")
    finally:
        _set_paused(zk, group, paused=False)
    return changes


def _refuse_consumers(zk: BlockingZk, group: str) -> None:
    for path in (paths.channel(group), paths.ids(group), paths.owners(group), paths.evicted(group)):
        listed = zk.perform(ListChildren(path))
        if isinstance(listed, Children) and listed.names:
            raise ResetRefusedError(f"group {group} has consumers ({', '.join(listed.names[:3])}); stop them first")


def _set_paused(zk: BlockingZk, group: str, *, paused: bool) -> int:
    """Write the pause into the settings, keeping what else stands there; return their new version."""
    node = zk.perform(Get(paths.group(group)))
    if not isinstance(node, Content):
        raise ResetRefusedError(f"group {group} was deleted meanwhile")
    document = fields.read_document("group settings", node.content) if node.content else {"version": 1}
    content = fields.write_document({**document, STARTS_PAUSED: paused})
    written = zk.perform(Multi((SetContent(paths.group(group), content, node.stat.version),)))
    if not isinstance(written, Done):
        raise ResetRefusedError(f"group {group}: its settings were changed by somebody else at this moment; try again")
    return node.stat.version + 1


def _changes(
    zk: BlockingZk,
    report: inspection.GroupReport,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
) -> dict[TopicPartition, tuple[int | None, int]]:
    inspection.read_offsets(zk, report)
    wanted = new_offsets(sorted(report.offsets))
    return {partition: (report.offsets.get(partition), wanted[partition]) for partition in sorted(wanted)}


def _writes(
    group: str, changes: Mapping[TopicPartition, tuple[int | None, int]], settings_version: int
) -> Iterator[tuple[Operation, ...]]:
    operations: list[Operation] = []
    for (topic, partition), (before, after) in changes.items():
        path, content = paths.offsets(group, topic, partition), cluster_nodes.encode_counter(after)
        operations.append(Create(path, content) if before is None else SetContent(path, content))
    for begin in range(0, len(operations), MAX_WRITES_PER_TRANSACTION):
        chunk = operations[begin : begin + MAX_WRITES_PER_TRANSACTION]
        yield (Check(paths.group(group), settings_version), *chunk)
