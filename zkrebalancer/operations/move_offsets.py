"""Moves a group's offsets from one store to another: ZooKeeper, Kafka, or the tree of Kafka's old consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.configure import name_author
from zkrebalancer.operations.group_lifecycle import MAX_NAMES_SHOWN, create_group
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.lives import begin_lives
from zkrebalancer.operations.nodes import create_missing, names_below
from zkrebalancer.operations.starts_pause import (
    MAX_WRITES_PER_TRANSACTION,
    refuse_consumers,
    starts_paused,
    warn_of_a_half,
)
from zkrebalancer.operations.topic_offsets import (
    UnknownTopicError,
    refuse_former_topics,
    require_topics,
    write_offsets,
)
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Create, Get, Multi, Operation, SetContent
from zkrebalancer.protocol.cluster_nodes import MAX_COUNTER, Topic, encode_counter
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.runtime.zk import BlockingZk


class OldOffsetsError(RebalancerError):
    """The old consumers' offsets cannot be read, or not be written now."""


class UnreadableOffsetsError(RebalancerError):
    """Some stored offsets cannot be read, so that the others are not all."""


class OffsetsOutsideLogError(RebalancerError):
    """Kafka has no such positions: consumers would begin elsewhere."""


@dataclass(frozen=True, slots=True)
class Imported:
    """One partition's stored offset (None: none), and the new value."""

    before: int | None
    after: int


def in_zookeeper(zk: BlockingZk, group: str) -> dict[TopicPartition, int]:
    """Return the offsets that the group has in ZooKeeper.

    Raises:
        UnknownGroupError: there is no such group.
        UnreadableOffsetsError: a node there is no offset.
        OffsetsRefusedError: offsets belong to a former topic: in another store, they would count for the present one.
        ZooKeeperRefusedError: a node may not be read.

    """
    report = _read(zk, group)
    refuse_former_topics(group, report.former_topics)
    if report.unreadable_offsets:
        topic, number = min(report.unreadable_offsets)
        raise UnreadableOffsetsError(
            f"{len(report.unreadable_offsets)} stored offsets of group {group} cannot be read, for example that of"
            f" {topic}/{number}; `groups offsets import` and `groups reset-offsets` replace them"
        )
    return report.offsets


def _read(zk: BlockingZk, group: str) -> inspection.GroupReport:
    report = inspection.read_group(zk, group, judge=False)
    inspection.read_offsets(zk, report)
    return report


def of_old_consumers(zk: BlockingZk, group: str) -> dict[TopicPartition, int]:
    """Return the offsets of Kafka 0.8's consumers: `/consumers/<group>/offsets/<topic>/<partition>`, next to read.

    Raises:
        OldOffsetsError: a node there is not an offset.
        ZooKeeperRefusedError: a node may not be read.

    """
    root = f"{paths.old_group(group)}/offsets"
    nodes = [(topic, name) for topic in names_below(zk, root) for name in names_below(zk, f"{root}/{topic}")]
    read = zk.perform_all([Get(f"{root}/{topic}/{name}") for topic, name in nodes], ABSENT)
    found: dict[TopicPartition, int] = {}
    for (topic, name), reply in zip(nodes, read, strict=True):
        if isinstance(reply, Content) and reply.content.strip():  # an import that was killed has left empty ones
            partition, offset = decimal(name), decimal(reply.content.strip(), MAX_COUNTER)
            if partition is None or offset is None or not paths.is_legal_topic(topic):
                raise OldOffsetsError(f"{root}/{topic}/{name}: {reply.content!r:.40} is not an offset of a partition")
            found[topic, partition] = offset
    return found


def refuse_old_consumers(zk: BlockingZk, group: str) -> None:
    """Raise OldOffsetsError if the group has consumers of Kafka 0.8's kind, ZooKeeperRefusedError if hidden."""
    if old := names_below(zk, f"{paths.old_group(group)}/ids"):
        raise OldOffsetsError(f"group {group} has old consumers ({', '.join(old[:MAX_NAMES_SHOWN])}); stop them first")


def refuse_outside_log(kafka: Mapping[str, str] | None, offsets: Mapping[TopicPartition, int]) -> None:
    """Raise OffsetsOutsideLogError if a partition does not have its offset, KafkaOffsetsError if Kafka cannot say.

    Without `kafka`, nothing is known, and nothing refused.
    """
    if kafka is None or not offsets:
        return
    ends = kafka_offsets.log_ends(kafka, offsets)
    outside = [tp for tp in sorted(offsets) if not ends[tp][0] <= offsets[tp] <= ends[tp][1]]
    if outside:
        (topic, number), (first, end) = outside[0], ends[outside[0]]
        raise OffsetsOutsideLogError(
            f"{len(outside)} offsets are outside of Kafka's log, for example {offsets[topic, number]} for"
            f" {topic}/{number}, which has {first} to {end}: consumers would begin elsewhere."
            " Choose others, or correct them in a file and import that"
        )


def import_offsets(
    zk: BlockingZk, group: str, offsets: Mapping[TopicPartition, int], dry_run: bool
) -> dict[TopicPartition, Imported]:
    """Store these offsets in ZooKeeper, and create a missing group; others stay. Returns the changes, sorted.

    An interrupted import can be repeated. `dry_run` writes nothing.

    Raises:
        UnknownTopicError: there is no such topic, or it has no such partition.
        OffsetsRefusedError: the group has consumers, changed meanwhile, or has offsets of a former topic; or a topic
            was created anew meanwhile.
        ZooKeeperRefusedError: a node may not be read or written; offsets before it may be written already.

    """
    known = require_topics(zk, (topic for topic, _number in offsets))
    _require_partitions(offsets, known)
    try:
        before = _read(zk, group).offsets
    except UnknownGroupError:
        if dry_run:
            return _changes({}, offsets)
        create_group(zk, group, None)
        before = {}
    refuse_consumers(zk, group)
    refuse_former_topics(group, inspection.former_topics(zk, group, known))
    if dry_run:
        return _changes(before, offsets)
    with starts_paused(zk, group, "imported offsets") as pause:
        changes = _changes(_read(zk, group).offsets, offsets)
        write_offsets(zk, group, known, offsets, pause)
        begin_lives(zk, group, pause, offsets)
    return changes


def import_into_kafka(
    zk: BlockingZk, kafka: StoredInKafka, group: str, offsets: Mapping[TopicPartition, int], dry_run: bool
) -> dict[TopicPartition, Imported]:
    """Store these offsets in Kafka; others stay. Returns the changes, sorted.

    Kafka sees no members of a group whose consumers commit there without a subscription; ZooKeeper has their names.
    If the group has a node there, sinks with offsets of their own follow.

    Raises:
        OffsetsRefusedError: the group has consumers here, or changed meanwhile; or this process was suspended, and may
            have written some offsets before.
        ZooKeeperRefusedError: a node of the group may not be read or written; offsets may be in Kafka already.
        KafkaOffsetsError: Kafka does not answer, rejects an offset, for example because the group has members, or does
            not confirm them; some may be stored already.

    """
    refuse_consumers(zk, group)
    if dry_run or not offsets:
        return _changes(kafka.read(), offsets)
    if not isinstance(zk.perform(Get(paths.group(group)), ABSENT), Content):
        changes = _changes(kafka.read(), offsets)
        kafka.write(offsets)
        return changes
    with starts_paused(zk, group, "imported offsets into Kafka") as pause:
        changes = _changes(kafka.read(), offsets)
        pause.write(zk)
        kafka.write(offsets, pause.require_recent)
        pause.write(zk)  # fails if the pause ended meanwhile: Kafka itself checks nothing
        begin_lives(zk, group, pause, offsets)
    return changes


def import_into_old_consumers(
    zk: BlockingZk, group: str, offsets: Mapping[TopicPartition, int], dry_run: bool
) -> dict[TopicPartition, Imported]:
    """Store these offsets for Kafka 0.8's consumers; others stay. Returns the changes, sorted.

    An interrupted import can be repeated. `dry_run` writes nothing.

    Raises:
        OldOffsetsError: the group has old consumers, or a node there is not an offset.
        OffsetsRefusedError: the group has consumers here.
        ZooKeeperRefusedError: a node may not be read or written; offsets before it may be written already.

    """
    changes = _changes(of_old_consumers(zk, group), offsets)
    refuse_consumers(zk, group)
    refuse_old_consumers(zk, group)
    if dry_run:
        return changes
    root = paths.old_group(group)
    topics = sorted({topic for topic, _number in offsets})
    create_missing(zk, paths.CONSUMERS, root, f"{root}/offsets", *(f"{root}/offsets/{topic}" for topic in topics))
    contents = {f"{root}/offsets/{tp[0]}/{tp[1]}": encode_counter(change.after) for tp, change in changes.items()}
    present = zk.perform_all([Get(path) for path in contents], ABSENT)
    # An old consumer fails at a node without an offset, so that none is made before it is written.
    waiting: list[Operation] = [
        SetContent(path, content) if isinstance(node, Content) else Create(path, content)
        for (path, content), node in zip(contents.items(), present, strict=True)
    ]
    try:
        while waiting:
            fitting = zk.request_limit.fitting(waiting[:MAX_WRITES_PER_TRANSACTION], ())
            zk.perform(Multi(tuple(waiting[:fitting])))
            del waiting[:fitting]
    except BaseException:
        if len(waiting) < len(contents):
            warn_of_a_half(group)
        raise
    name_author(zk, group, "imported offsets for Kafka's old consumers")
    return changes


def _require_partitions(offsets: Mapping[TopicPartition, int], known: Mapping[str, Topic]) -> None:
    for topic, number in sorted(offsets):
        if number not in known[topic].partitions:
            raise UnknownTopicError(f"topic {topic} has no partition {number}; leave it out")


def _changes(
    before: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Imported]:
    return {partition: Imported(before.get(partition), offset) for partition, offset in sorted(offsets.items())}
