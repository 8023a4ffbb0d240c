"""How far a group is, of many partitions at once: where they end, and what the group has committed in either store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from zkrebalancer.assignment.columns import Offsets
from zkrebalancer.assignment.loads import UNKNOWN, to_offsets
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

MAX_PARTITIONS_AT_ONCE = 5_000  # asked of Kafka
MAX_READS_AT_ONCE = 1_000  # pipelined to ZooKeeper


@dataclass(frozen=True, slots=True)
class StoredLoads:
    """Offsets of each partition of each topic, UNKNOWN where there is none; `taken_us` is when the ends were read."""

    taken_us: int
    ends: Mapping[str, Offsets]
    committed: Mapping[str, Offsets]


def read_loads(zk: BlockingZk, bootstrap: str, group: str, topics: Mapping[str, int]) -> StoredLoads:
    """Read the ends of partitions, and the higher of the two offsets that the group may have stored of each.

    `topics`: topic -> number of partitions.

    Raises:
        KafkaOffsetsError: no broker answers.
        ZooKeeperUnavailableError: the connection broke.

    """
    taken_us = clock.steady_us()
    ends: dict[TopicPartition, int] = {}
    for asked in _pieces(topics, MAX_PARTITIONS_AT_ONCE):
        ends |= kafka_offsets.known_log_ends(bootstrap, asked)
    committed = StoredInKafka(bootstrap, group).read()
    for partition, offset in _read_zookeeper(zk, group, topics):
        committed[partition] = max(offset, committed.get(partition, UNKNOWN))
    return StoredLoads(taken_us, to_offsets(topics, ends), to_offsets(topics, committed))


def _read_zookeeper(zk: BlockingZk, group: str, topics: Mapping[str, int]) -> Iterator[tuple[TopicPartition, int]]:
    listed = zip(topics, zk.perform_all([ListChildren(paths.offsets(group, topic)) for topic in topics]), strict=True)
    stored = {topic: _count(reply.names) for topic, reply in listed if isinstance(reply, Children)}
    for asked in _pieces(stored, MAX_READS_AT_ONCE):
        replies = zk.perform_all([Get(paths.offsets(group, *partition)) for partition in asked])
        for partition, node in zip(asked, replies, strict=True):
            if isinstance(node, Content) and node.content.isdigit():
                yield partition, int(node.content)


def _count(names: Iterable[str]) -> int:
    """Return the number of partitions up to the highest that has a node."""
    return max((int(name) + 1 for name in names if name.isascii() and name.isdigit()), default=0)


def _pieces(topics: Mapping[str, int], size: int) -> Iterator[list[TopicPartition]]:
    piece: list[TopicPartition] = []
    for topic, count in topics.items():
        for number in range(count):
            piece.append((topic, number))
            if len(piece) == size:
                yield piece
                piece = []
    if piece:
        yield piece
