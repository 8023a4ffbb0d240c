"""Faults of ZooKeeper and Kafka, and changes of topics: context managers like those of `process_faults.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.campaign.company import (
    MAX_PARTITIONS,
    MAX_PASSING_TOPICS,
    PASSING_TOPIC_PARTITIONS,
    TOPICS,
    Company,
    NothingToBreakError,
)
from tests.campaign.schedule import Fault
from zkrebalancer.localcluster import faults, zookeeper
from zkrebalancer.localcluster.server import Server


def zookeeper_leader(servers: list[Server]) -> Server:
    """Return the ensemble's leader; raises NothingToBreakError while there is none."""
    for server in servers:
        try:
            if zookeeper.leads(server.port, timeout_s=zookeeper.PROBE_TIMEOUT_S):
                return server
        except OSError:
            continue
    raise NothingToBreakError("no ZooKeeper server leads")


@contextmanager
def kill_zookeeper(company: Company, fault: Fault) -> Iterator[str]:
    """Kill the ensemble's leader, or a follower."""
    servers = company.lab.cluster.zookeeper_servers
    server = zookeeper_leader(servers)
    if fault.kind == "kill-zookeeper-follower":
        followers = [other for other in servers if other is not server]
        server = followers[int(fault.pick * len(followers))]
    company.lab.fault(fault.kind, server.name)
    server.kill()
    yield server.name
    server.start()


@contextmanager
def suspend_zookeeper(company: Company, fault: Fault) -> Iterator[str]:
    """Suspend one ZooKeeper server."""
    servers = company.lab.cluster.zookeeper_servers
    server = servers[int(fault.pick * len(servers))]
    company.lab.fault(fault.kind, server.name)
    faults.freeze(server.pid)
    yield server.name
    faults.thaw(server.pid)
    server.wait_ready()


@contextmanager
def lose_quorum(company: Company, fault: Fault) -> Iterator[str]:
    """Kill two of the three ZooKeeper servers."""
    servers = company.lab.cluster.zookeeper_servers
    left = servers[int(fault.pick * len(servers))]
    killed = [server for server in servers if server is not left]
    company.lab.fault(fault.kind, ", ".join(server.name for server in killed))
    company.is_without_quorum = True
    with company.no_start():
        for server in killed:
            server.kill()
        yield f"all but {left.name}"
        for server in killed:
            server.spawn()
        for server in servers:
            server.wait_ready()
    company.is_without_quorum = False


@contextmanager
def fill_disk(company: Company, fault: Fault) -> Iterator[str]:
    """Fill the disk under one ZooKeeper server; afterwards, free it and restart the server."""
    disk = company.disk
    if disk is None:
        raise NothingToBreakError("no small disk was mounted")
    company.lab.fault(fault.kind, disk.server.name)
    known = disk.server.log.stat().st_size
    disk.fill()
    yield disk.server.name
    with disk.server.log.open("rb") as log:
        log.seek(known)
        if b"No space left on device" not in log.read():
            company.not_reached[fault.kind] += 1
    disk.clear()
    disk.server.kill()
    disk.server.start()


@contextmanager
def restart_broker(company: Company, fault: Fault) -> Iterator[str]:
    """Kill the broker; it restarts once its old ZooKeeper session has expired."""
    broker = company.lab.cluster.broker
    company.lab.fault(fault.kind, broker.name)
    with company.no_start():
        broker.kill()
        yield broker.name
        broker.start()


@contextmanager
def grow_topic(company: Company, fault: Fault) -> Iterator[str]:
    """Add a partition to a topic."""
    topics = [topic for topic, partitions in sorted(company.topics.items()) if partitions < MAX_PARTITIONS]
    if not topics:
        raise NothingToBreakError("every topic has its maximum of partitions")
    topic = topics[int(fault.pick * len(topics))]
    company.note_step(fault.kind, topic)
    company.change_topic(topic, company.topics[topic] + 1)
    yield topic


@contextmanager
def create_topic(company: Company, fault: Fault) -> Iterator[str]:
    """Create a topic that matches the groups' patterns; names of deleted topics are reused."""
    names = [f"campaign-passing-{number}" for number in range(MAX_PASSING_TOPICS)]
    free = [name for name in names if name not in company.topics]
    if not free:
        raise NothingToBreakError("the campaign has its maximum of topics")
    topic = free[int(fault.pick * len(free))]
    company.note_step(fault.kind, topic)
    company.change_topic(topic, PASSING_TOPIC_PARTITIONS)
    yield topic


@contextmanager
def delete_topic(company: Company, fault: Fault) -> Iterator[str]:
    """Delete one of the topics that the campaign created."""
    passing = sorted(company.topics.keys() - TOPICS.keys())
    if not passing:
        raise NothingToBreakError("there is no topic to delete")
    topic = passing[int(fault.pick * len(passing))]
    company.note_step(fault.kind, topic)
    company.delete_topic(topic)
    yield topic
