"""Whether the disk of a run's servers is as slow as its scenario says, found before the run begins."""

from __future__ import annotations

import time

from zkrebalancer.localcluster import slow_disk
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.runtime.zk import BlockingZk

WRITES = 5
_NODE = "/slow-disk"


def shortest_write_ms(zookeeper: str) -> float:
    """Return the shortest time of some writes to ZooKeeper, each of which waits for a sync; leaves nothing behind."""
    taken_ms = list[float]()
    with BlockingZk(zookeeper) as client:
        for _ in range(WRITES):
            began = time.perf_counter()
            client.perform(Multi((Create(_NODE), Delete(_NODE))))
            taken_ms.append((time.perf_counter() - began) * 1_000)
    return round(min(taken_ms), 2)


def quick_servers(cluster: LocalCluster) -> list[str]:
    """Return the names of the servers of a running cluster whose syncs nothing makes slow."""
    servers = (*cluster.zookeeper_servers, *cluster.brokers)
    return [server.name for server in servers if not slow_disk.acts_in(server.pid)]
