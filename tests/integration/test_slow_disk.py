"""A cluster whose servers' syncs to disk take a while."""

from __future__ import annotations

import pytest

from zkrebalancer.experiments import disk
from zkrebalancer.localcluster import slow_disk
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster

SYNC_MS = 50.0  # longer than a sync, and than a stall of a busy machine in each of the writes
needs_compiler = pytest.mark.skipif(slow_disk.compiler() is None, reason="no C compiler: apt-get install gcc")


def test_a_plain_server_writes_sooner(shared_cluster: LocalCluster) -> None:
    assert disk.shortest_write_ms(shared_cluster.zookeeper) < SYNC_MS
    assert len(disk.quick_servers(shared_cluster)) >= len(shared_cluster.zookeeper_servers)


@needs_compiler
def test_each_write_takes_the_sync() -> None:
    """In `slow_sync.c`, leave out `fdatasync`, by which ZooKeeper syncs."""
    with LocalCluster(broker="none", sync_ms=SYNC_MS) as cluster:
        assert disk.shortest_write_ms(cluster.zookeeper) >= SYNC_MS
        assert disk.quick_servers(cluster) == []
        (server,) = cluster.zookeeper_servers
        server.kill()
        server.start()
        assert disk.shortest_write_ms(cluster.zookeeper) >= SYNC_MS, "a server that was killed has it again"


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("broker", ["kafka-3.9", "kafka-4"])
def test_brokers_have_the_slow_disk(broker: BrokerKind) -> None:
    with LocalCluster(broker=broker, sync_ms=SYNC_MS, mirror_interval_s=0) as cluster:
        assert len(cluster.brokers) == 1
        assert disk.quick_servers(cluster) == []
