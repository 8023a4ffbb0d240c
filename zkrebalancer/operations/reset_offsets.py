"""Resets the offsets of a group without consumers.

A consumer that registers meanwhile must not start at an offset that is about to be replaced. The steps are:

1. Check that the group has no consumers.
2. Pause starts: a setting of the group, whose version every command checks.
3. Check again that the group has no consumers.
4. Write the offsets; each transaction checks that the pause is still in force. Offsets in Kafka are written last.
5. Resume starts.

An interrupted reset leaves the pause behind; the next reset, successful or not, removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zkrebalancer.observe import inspection
from zkrebalancer.operations.configure import write_into
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Content,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    SetContent,
)
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.runtime.zk import BlockingZk

STARTS_PAUSED = "starts_paused"
MAX_WRITES_PER_TRANSACTION = 500


@dataclass(frozen=True, slots=True)
class Change:
    """One partition's stored offsets (None: not stored), and the value that replaces each of them."""

    in_zookeeper: int | None
    in_kafka: int | None
    after: int


class ResetRefusedError(RebalancerError):
    """The group has consumers, or changed during the reset; nothing more was written."""


def reset_offsets(
    zk: BlockingZk,
    group: str,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    dry_run: bool,
    kafka: StoredInKafka | None = None,
) -> dict[TopicPartition, Change]:
    """Replace every stored offset of the group, in ZooKeeper and in Kafka; return the changes, sorted.

    `new_offsets` maps the partitions with a stored offset to their new values. `dry_run` writes nothing.

    Raises:
        UnknownGroupError: there is no such group.
        ResetRefusedError: the group has consumers, or changed during the reset.
        KafkaOffsetsError: Kafka does not answer or rejects the offsets; those in ZooKeeper may be written already.

    """
    report = inspection.read_group(zk, group)
    _refuse_consumers(zk, group)
    if dry_run:
        return _changes(zk, report, new_offsets, kafka)
    version = _set_paused(zk, group, paused=True)
    try:
        _refuse_consumers(zk, group)
        changes = _changes(zk, report, new_offsets, kafka)
        for operations in _writes(group, changes, version, zk.request_limit):
            if not isinstance(zk.perform(Multi(operations)), Done):
                raise ResetRefusedError(f"group {group} changed while its offsets were reset; reset again")
        in_kafka = {partition: change.after for partition, change in changes.items() if change.in_kafka is not None}
        if kafka is not None and in_kafka:
            kafka.write(in_kafka)
    finally:
        _set_paused(zk, group, paused=False)
    return changes


def _refuse_consumers(zk: BlockingZk, group: str) -> None:
    for path in (paths.channel(group), paths.ids(group), paths.owners(group), paths.evicted(group)):
        listed = zk.perform(ListChildren(path))
        if isinstance(listed, Children) and listed.names:
            raise ResetRefusedError(f"group {group} has consumers ({', '.join(listed.names[:3])}); stop them first")


def _set_paused(zk: BlockingZk, group: str, *, paused: bool) -> int:
    """Write the pause into the settings and keep all others; return the new version of the node."""
    node = zk.perform(Get(paths.group(group)))
    if not isinstance(node, Content):
        raise ResetRefusedError(f"group {group} was deleted during the reset")
    if not write_into(zk, group, node, {STARTS_PAUSED: paused}):
        raise ResetRefusedError(f"group {group}: its settings have just changed; try again")
    return node.stat.version + 1


def _changes(
    zk: BlockingZk,
    report: inspection.GroupReport,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    kafka: StoredInKafka | None,
) -> dict[TopicPartition, Change]:
    inspection.read_offsets(zk, report)
    in_zookeeper, in_kafka = report.offsets, {} if kafka is None else kafka.read()
    wanted = new_offsets(sorted(in_zookeeper.keys() | in_kafka.keys()))
    return {tp: Change(in_zookeeper.get(tp), in_kafka.get(tp), wanted[tp]) for tp in sorted(wanted)}


def _writes(
    group: str, changes: Mapping[TopicPartition, Change], settings_version: int, limit: RequestLimit
) -> Iterator[tuple[Operation, ...]]:
    operations = [
        SetContent(paths.offsets(group, *partition), cluster_nodes.encode_counter(change.after))
        for partition, change in changes.items()
        if change.in_zookeeper is not None
    ]
    fence = Check(paths.group(group), settings_version)
    while True:  # at least once, because offsets in Kafka are written only after the fence was checked
        fitting = limit.fitting(operations[:MAX_WRITES_PER_TRANSACTION], (fence,))
        yield (fence, *operations[:fitting])
        operations = operations[fitting:]
        if not operations:
            return
