"""Resets the offsets of a group without consumers.

A consumer that registers meanwhile must not start at an offset that is about to be replaced. The steps are:

1. Check that the group has no consumers.
2. Pause starts: a setting of the group, whose version every command checks.
3. Check again that the group has no consumers.
4. Write the offsets; each transaction renews the pause, which fails if it is no longer in force. Offsets in Kafka are
   written last.
5. Resume starts.

The coordinator ends a pause that is not renewed for a while (`rebalance/pause.py`), so a reset that is killed stops
nothing for long, and one that was too slow writes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from zkrebalancer.observe import inspection
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.protocol import cluster_nodes, paths, settings
from zkrebalancer.protocol.calls import (
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
from zkrebalancer.runtime.zk import BlockingZk

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
    pause = _Pause(group, _read_settings(zk, group))
    try:
        pause.write(zk)
        _refuse_consumers(zk, group)
        changes = _changes(zk, report, new_offsets, kafka)
        writes = _writes(group, changes)
        pause.write(zk, writes)  # at least once, because offsets in Kafka are written only after the pause was renewed
        while writes:
            pause.write(zk, writes)
        in_kafka = {partition: change.after for partition, change in changes.items() if change.in_kafka is not None}
        if kafka is not None and in_kafka:
            kafka.write(in_kafka)
    finally:
        _resume(zk, group)
    return changes


@dataclass(slots=True)
class _Pause:
    """Starts are paused for as long as this writes."""

    group: str
    node: Content  # the settings before; only their version has changed since
    version: int = field(init=False)
    name: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        self.version = self.node.stat.version

    def write(self, zk: BlockingZk, waiting: list[Operation] | None = None) -> None:
        """Renew the pause, and perform with it as many of the operations as fit, taking them from the list."""
        waiting = [] if waiting is None else waiting
        content = settings.paused(self.node.content, f"{self.name}/{self.version}")
        renewal = SetContent(paths.group(self.group), content, self.version)
        fitting = zk.request_limit.fitting(waiting[:MAX_WRITES_PER_TRANSACTION], (renewal,))
        if not isinstance(zk.perform(Multi((renewal, *waiting[:fitting]))), Done):
            raise ResetRefusedError(f"group {self.group} changed while its offsets were reset; reset again")
        del waiting[:fitting]
        self.version += 1


def _refuse_consumers(zk: BlockingZk, group: str) -> None:
    for path in (paths.channel(group), paths.ids(group), paths.owners(group), paths.evicted(group)):
        listed = zk.perform(ListChildren(path))
        if isinstance(listed, Children) and listed.names:
            raise ResetRefusedError(f"group {group} has consumers ({', '.join(listed.names[:3])}); stop them first")


def _read_settings(zk: BlockingZk, group: str) -> Content:
    node = zk.perform(Get(paths.group(group)))
    if not isinstance(node, Content):
        raise ResetRefusedError(f"group {group} was deleted during the reset")
    return node


def _resume(zk: BlockingZk, group: str) -> None:
    """Resume starts; if the settings change at that moment, the coordinator does it later."""
    node = _read_settings(zk, group)
    zk.perform(Multi((SetContent(paths.group(group), settings.resumed(node.content), node.stat.version),)))


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


def _writes(group: str, changes: Mapping[TopicPartition, Change]) -> list[Operation]:
    return [
        SetContent(paths.offsets(group, *partition), cluster_nodes.encode_counter(change.after))
        for partition, change in changes.items()
        if change.in_zookeeper is not None
    ]
