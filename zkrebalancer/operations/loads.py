"""Reads the inputs of strategies that weigh partitions: log ends, committed offsets, expected rates, racks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.assignment.columns import Offsets
from zkrebalancer.assignment.loads import UNKNOWN, to_offsets
from zkrebalancer.assignment.model import Racks
from zkrebalancer.observe.inspection import offset_nodes
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.racks import read_racks
from zkrebalancer.protocol import cluster_nodes, paths, weights
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.errors import NodeContentError, ZooKeeperRefusedError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

MAX_PARTITIONS_PER_REQUEST = 5_000


@dataclass(frozen=True, slots=True)
class StoredLoads:
    """Loads of a group's partitions.

    `ends` and `committed`: topic -> offset of each partition, or UNKNOWN. `taken_us`: when the ends were read.
    `expected`: current rates by the group's weights; `refused`: why the weights cannot be used, None if they can.
    """

    taken_us: int
    ends: Mapping[str, Offsets]
    committed: Mapping[str, Offsets]
    expected: Mapping[str, list[float]]
    refused: str | None
    racks: Racks


def read_loads(zk: BlockingZk, kafka: Mapping[str, str], group: str, topics: Mapping[str, int]) -> StoredLoads:
    """Read log ends, committed offsets (the higher of ZooKeeper's and Kafka's), expected rates and racks.

    `kafka`: settings of librdkafka; `topics`: topic -> number of partitions.

    Raises:
        KafkaOffsetsError: no broker answers.
        ZooKeeperUnavailableError: the connection to ZooKeeper broke.
        ZooKeeperRefusedError: offsets or racks may not be read.

    """
    taken_us = clock.steady_us()
    partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
    ends: dict[TopicPartition, int] = {}
    for begin in range(0, len(partitions), MAX_PARTITIONS_PER_REQUEST):
        ends |= kafka_offsets.known_log_ends(kafka, partitions[begin : begin + MAX_PARTITIONS_PER_REQUEST])
    committed = StoredInKafka(kafka, group).read()
    for partition, content in offset_nodes(zk, group, topics):
        with contextlib.suppress(NodeContentError):  # an offset that cannot be read counts as none
            stored = cluster_nodes.decode_counter("offset", content)
            committed[partition] = max(stored, committed.get(partition, UNKNOWN))
    expected, refused = _read_weights(zk, group, topics)
    return StoredLoads(
        taken_us,
        to_offsets(topics, ends),
        to_offsets(topics, committed),
        expected,
        refused,
        read_racks(zk, topics),
    )


def _read_weights(
    zk: BlockingZk, group: str, topics: Mapping[str, int]
) -> tuple[Mapping[str, list[float]], str | None]:
    """Return the current expected rates of existing partitions, and the fault of the node, None if it is valid."""
    try:
        node = zk.perform(Get(paths.weights(group)), ABSENT)
        if not isinstance(node, Content) or not node.content:
            return {}, None
        rates = weights.decode(node.content).at(clock.epoch_ms() / 1_000)
    except (NodeContentError, ZooKeeperRefusedError) as error:
        return {}, str(error)
    return {topic: of_topic[: topics[topic]] for topic, of_topic in rates.items() if topic in topics}, None
