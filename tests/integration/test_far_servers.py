"""A cluster whose servers are as far away as those of other hosts."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports, is_free
from zkrebalancer.localcluster.server import Program
from zkrebalancer.protocol.calls import ABSENT, Content, Create, Get, Multi, Refusal
from zkrebalancer.runtime.zk import BlockingZk

ROUND_TRIP_MS = 20.0
LONG = 500_000


def test_a_relay_takes_the_round_trip(shared_cluster: LocalCluster, folder: Path) -> None:
    """Fails if the relay passes one direction on at once, or cuts a long answer."""
    (listen,) = free_ports(1)
    server = shared_cluster.zookeeper_servers[0]
    command = [sys.executable, "-m", "zkrebalancer.localcluster.delay", f"{listen}={server.port}"]
    relay = Program("relay", [*command, "--round-trip-ms", str(ROUND_TRIP_MS)], folder / "relay.log", lambda: None)
    relay.spawn()
    try:
        relay.wait_until(lambda: not is_free(listen))
        content = random.Random(1).randbytes(LONG)
        with BlockingZk(f"{HOST}:{listen}") as zk:
            zk.perform(Multi((Create("/far", content),)), {Refusal.NODE_EXISTS})
            found = zk.perform(Get("/far"))
            assert isinstance(found, Content)
            assert found.content == content
            assert statistics.median(_taken_ms(lambda: zk.perform(Get("/"))) for _ in range(5)) >= ROUND_TRIP_MS
    finally:
        relay.kill()


@pytest.mark.long
@pytest.mark.parametrize("broker", ["kafka-3.9", "kafka-4"])
def test_every_call_takes_the_round_trip(broker: BrokerKind) -> None:
    """Fails if clients learn the broker's own address."""
    with LocalCluster(broker=broker, round_trip_ms=ROUND_TRIP_MS, mirror_interval_s=0) as cluster:
        own = {server.port for server in (*cluster.zookeeper_servers, *cluster.brokers)}
        metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=WITHIN_S)
        assert not own & {known.port for known in metadata.brokers.values()}
        with BlockingZk(cluster.zookeeper) as zk:
            times = [_taken_ms(lambda: zk.perform(Get("/"), ABSENT)) for _ in range(5)]
        assert statistics.median(times) >= ROUND_TRIP_MS
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("far", 1, 1)])["far"].result(WITHIN_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("far", b"value")
        assert producer.flush(WITHIN_S) == 0
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "far", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["far"])
        message = consumer.poll(WITHIN_S)
        consumer.close()
        assert message is not None
        assert message.value() == b"value"


def _taken_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1_000
