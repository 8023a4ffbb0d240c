"""The gateway in front of three brokers that come, hang, die and come back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.gateway_process import GatewayProcess
from tests.integration.kafka_clients import KIP_848, Reader, produce
from tests.support.brokers import REPLICATED, start_broker
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.gateway.addresses import VIRTUAL_NODE
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import free_ports

pytestmark = pytest.mark.long  # three brokers; `test_gateway.py` has one that restarts
PARTITIONS = 6
ANSWER_S = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start a ZooKeeper and the first broker."""
    with LocalCluster(chroot="/brokers-three", kafka_properties=REPLICATED, kafka_heap_mb=256) as started:
        yield started


def nodes(bootstrap: str) -> dict[int, int]:
    """Return broker id -> port, as clients of this address see it; without gateways."""
    try:
        found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=ANSWER_S)
    except KafkaException:
        return {}  # this client was led to a broker that hangs
    return {number: broker.port for number, broker in found.brokers.items() if number < VIRTUAL_NODE}


def values(begin: int, count: int) -> list[str]:
    return [f"{number}" for number in range(begin, begin + count)]


def test_brokers_come_hang_die_and_come_back(cluster: LocalCluster, tmp_path: Path) -> None:
    ports = free_ports(2)
    gateway = GatewayProcess(cluster, tmp_path)
    gateway.start()
    wait_until(lambda: nodes(gateway.bootstrap) == {1: gateway.port + 1}, "the first broker gets no port")
    others = [start_broker(cluster, number, port) for number, port in zip((2, 3), ports, strict=True)]
    all_three = {number: gateway.port + number for number in (1, 2, 3)}
    wait_until(lambda: nodes(gateway.bootstrap) == all_three, "the new brokers get no ports")
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(WITHIN_S)
    readers = [Reader(kind, gateway.bootstrap, f"g-{kind}", "t") for kind in ("confluent", "confluent", KIP_848)]

    def read() -> bool:
        by_group = [sorted(readers[0].values + readers[1].values, key=int), sorted(readers[2].values, key=int)]
        return all(one == values(0, expected) for one in by_group)

    expected = 300
    produce(gateway.bootstrap, "t", values(0, 300))  # to leaders on all three
    wait_until(read, "not all records came")
    others[0].kill()
    expected = 600
    produce(gateway.bootstrap, "t", values(300, 300))
    wait_until(read, "not all records came after a broker's death")
    # The first one of those that the gateway knows hangs: whoever comes now is led to the other one.
    first = psutil.Process(cluster.broker.pid)
    first.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: 3 in nodes(gateway.bootstrap), "a broker that hangs holds newcomers up")
        assert gateway.get("/readiness")["ready"]
        assert gateway.get("/liveness")["alive"]
        assert gateway.get("/leader")["buckets"] > 0
    finally:
        first.send_signal(signal.SIGCONT)
    others[0].spawn()
    wait_until(lambda: nodes(gateway.bootstrap) == all_three, "a broker that is back has another port")
    expected = 900
    produce(gateway.bootstrap, "t", values(600, 300))
    wait_until(read, "not all records came in the end")
    for reader in readers:
        reader.close()
    assert gateway.stop() == 0
    assert gateway.troubles() == []
