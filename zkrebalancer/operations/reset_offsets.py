"""Resets the offsets of a group without consumers.

A consumer that registers meanwhile must not start at an offset that is about to be replaced. The steps are:

1. Check that the group has no consumers.
2. Pause starts: a setting of the group, whose version every command checks.
3. Check again that the group has no consumers.
4. Write the offsets; each transaction renews the pause, which fails if it is no longer in force. Offsets in Kafka are
   written after those in ZooKeeper.
5. Begin new lives of the offsets, so that sinks with offsets of their own follow.
6. Resume starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from zkrebalancer.observe import inspection
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.lives import begin_lives
from zkrebalancer.operations.starts_pause import Pause, refuse_consumers, starts_paused
from zkrebalancer.operations.topic_offsets import refuse_former_topics
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Operation, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk


@dataclass(frozen=True, slots=True)
class Change:
    """One partition's stored offsets (None: not stored), and the new value of each."""

    in_zookeeper: int | None
    in_kafka: int | None
    after: int


def reset_offsets(
    zk: BlockingZk,
    group: str,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    dry_run: bool,
    kafka: StoredInKafka | None = None,
) -> dict[TopicPartition, Change]:
    """Replace every stored offset of the group, in ZooKeeper and in Kafka; return the changes, sorted.

    This includes nodes in ZooKeeper whose content is no offset. `new_offsets` maps the partitions with a stored offset
    to their new values. `dry_run` writes nothing.

    Raises:
        UnknownGroupError: there is no such group.
        OffsetsRefusedError: the group has consumers, changed during the reset, or has offsets of a former topic; or
            this process was suspended meanwhile, and may have written some offsets before.
        ZooKeeperRefusedError: a node may not be read or written; offsets before it may be written already.
        KafkaOffsetsError: Kafka does not answer, rejects the offsets or does not confirm them; those in ZooKeeper, and
            some in Kafka, may be written already.

    """
    report = inspection.read_group(zk, group, judge=False)
    refuse_consumers(zk, group)
    if dry_run:
        return _changes(zk, report, new_offsets, kafka)
    with starts_paused(zk, group, "reset offsets") as pause:
        changes = _changes(zk, report, new_offsets, kafka, pause)
        writes = _writes(group, changes, report.unreadable_offsets)
        pause.write(zk, writes)  # at least once, because offsets in Kafka are written only after the pause was renewed
        while writes:
            pause.write(zk, writes)
        in_kafka = {partition: change.after for partition, change in changes.items() if change.in_kafka is not None}
        if kafka is not None and in_kafka:
            kafka.write(in_kafka, pause.require_recent)
            pause.write(zk)  # fails if another reset began meanwhile, or the pause ended: Kafka itself checks nothing
        begin_lives(zk, group, pause, changes)
    return changes


def _changes(
    zk: BlockingZk,
    report: inspection.GroupReport,
    new_offsets: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    kafka: StoredInKafka | None,
    pause: Pause | None = None,
) -> dict[TopicPartition, Change]:
    """Return the changes; renew the pause between readings, each of which may take long."""
    inspection.read_offsets(zk, report)
    refuse_former_topics(report.name, report.former_topics)
    if pause is not None:
        pause.renew(zk)
    in_zookeeper, in_kafka = report.offsets, {} if kafka is None else kafka.read()
    if pause is not None:
        pause.renew(zk)
    wanted = new_offsets(sorted(in_zookeeper.keys() | in_kafka.keys() | report.unreadable_offsets))
    if pause is not None:
        pause.renew(zk)
    return {tp: Change(in_zookeeper.get(tp), in_kafka.get(tp), wanted[tp]) for tp in sorted(wanted)}


def _writes(
    group: str, changes: Mapping[TopicPartition, Change], unreadable: Collection[TopicPartition]
) -> list[Operation]:
    return [
        SetContent(paths.offsets(group, *partition), cluster_nodes.encode_counter(change.after))
        for partition, change in changes.items()
        if change.in_zookeeper is not None or partition in unreadable
    ]
