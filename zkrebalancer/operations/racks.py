"""Which racks hold a replica of each partition, by what brokers say of themselves and of topics in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.model import Racks, to_racks
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.runtime.zk import BlockingZk


def read_racks(zk: BlockingZk, topics: Mapping[str, int]) -> Racks:
    """Return the racks of these topics (name -> number of partitions), as far as they are known.

    A broker that is not registered at this moment has no rack, and neither has a node that cannot be read: the topic
    listener says so. Raises ZooKeeperUnavailableError.
    """
    rack_of = _racks_of_brokers(zk)
    if not rack_of:
        return Racks()
    found: dict[str, list[list[str]]] = {}
    for (topic, count), node in zip(topics.items(), zk.perform_all([Get(paths.topic(t)) for t in topics]), strict=True):
        if isinstance(node, Content):
            try:
                replicas = cluster_nodes.decode_replicas(node.content)
            except NodeContentError:
                continue
            found[topic] = [[rack_of[b] for b in replicas.get(n, ()) if b in rack_of] for n in range(count)]
    return to_racks(found)


def _racks_of_brokers(zk: BlockingZk) -> dict[int, str]:
    listed = zk.perform(ListChildren(paths.BROKER_IDS))
    names = [name for name in listed.names if name.isdigit()] if isinstance(listed, Children) else []
    racks: dict[int, str] = {}
    for name, node in zip(names, zk.perform_all([Get(f"{paths.BROKER_IDS}/{name}") for name in names]), strict=True):
        if isinstance(node, Content):
            try:
                rack = cluster_nodes.decode_rack(node.content)
            except NodeContentError:
                continue
            if rack is not None:
                racks[int(name)] = rack
    return racks
