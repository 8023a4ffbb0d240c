"""Reads the racks of each partition's replicas from Kafka's nodes in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.model import Racks, to_racks
from zkrebalancer.operations.nodes import names_below, read_each
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.runtime.zk import BlockingZk


def read_racks(zk: BlockingZk, topics: Mapping[str, int]) -> Racks:
    """Return the known racks of these topics (name -> number of partitions).

    Brokers that are not registered now, and invalid nodes (which the topic listener logs), contribute no rack.

    Raises:
        ZooKeeperUnavailableError, ZooKeeperRefusedError: they cannot be read.

    """
    rack_of = _racks_of_brokers(zk)
    if not rack_of:
        return Racks()
    nodes = {topic: paths.topic(topic) for topic in topics}
    found = read_each(zk, nodes, lambda node: cluster_nodes.decode_replicas(node.content))
    return to_racks(
        {
            topic: [[rack_of[b] for b in replicas.get(n, ()) if b in rack_of] for n in range(topics[topic])]
            for topic, replicas in found.items()
        }
    )


def _racks_of_brokers(zk: BlockingZk) -> dict[int, str]:
    names = [name for name in names_below(zk, paths.BROKER_IDS) if decimal(name) is not None]
    nodes = {name: f"{paths.BROKER_IDS}/{name}" for name in names}
    racks = read_each(zk, nodes, lambda node: cluster_nodes.decode_rack(node.content))
    return {int(name): rack for name, rack in racks.items() if rack is not None}
