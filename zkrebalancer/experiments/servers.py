"""Faults of an experiment's servers: which broker coordinates Kafka's groups, and which ZooKeeper server leads."""

from __future__ import annotations

from confluent_kafka.cimpl import NewTopic

from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster

OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 4
# Replicas by broker id, the first one leads: not broker 1, which in KRaft mode is the only controller.
PLACEMENT = [2, 3, 1]


def place_offsets(lab: Lab) -> None:
    """Let the same one of three brokers coordinate every group of Kafka's; has no effect on a single broker."""
    if len(lab.cluster.brokers) == len(PLACEMENT):
        settings = {"cleanup.policy": "compact"}  # as the broker would create it
        placement = [PLACEMENT] * OFFSETS_PARTITIONS
        lab.create_topics(NewTopic(OFFSETS_TOPIC, len(placement), replica_assignment=placement, config=settings))


def fail_broker(lab: Lab) -> None:
    """Kill the broker that coordinates Kafka's groups."""
    brokers = lab.cluster.brokers
    broker = brokers[PLACEMENT[0] - 1] if len(brokers) == len(PLACEMENT) else lab.cluster.broker
    lab.fault("kill-broker", broker.name)
    broker.kill()


def fail_zookeeper(lab: Lab, count: int) -> None:
    """Kill `count` ZooKeeper servers, the leader first."""
    running = [server for server in lab.cluster.zookeeper_servers if server.is_running]
    for server in sorted(running, key=lambda server: zookeeper.leads(server.port), reverse=True)[:count]:
        lab.fault("kill-zookeeper", server.name)
        server.kill()


def restart_zookeeper(cluster: LocalCluster) -> None:
    """Start the ZooKeeper servers that were killed, all at once: one alone would wait for a quorum."""
    away = [server for server in cluster.zookeeper_servers if not server.is_running]
    for server in away:
        server.spawn()
    for server in away:
        server.wait_ready()
