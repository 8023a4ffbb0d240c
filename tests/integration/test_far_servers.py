"""A cluster whose servers are as far away as those of other hosts."""

from __future__ import annotations

import statistics
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster
from zkrebalancer.protocol.calls import ABSENT, Get
from zkrebalancer.runtime.zk import BlockingZk

ROUND_TRIP_MS = 20.0


@pytest.mark.parametrize("broker", ["kafka-3.9", "kafka-4"])
def test_every_call_takes_the_round_trip(broker: BrokerKind) -> None:
    """Fails if clients learn the broker's own address, or the relay passes one direction on at once."""
    with LocalCluster(broker=broker, round_trip_ms=ROUND_TRIP_MS, mirror=False) as cluster:
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
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "far", "auto.offset.reset": "earliest"})
        consumer.subscribe(["far"])
        message = consumer.poll(WITHIN_S)
        consumer.close()
        assert message is not None
        assert message.value() == b"value"


def _taken_ms(call: object) -> float:
    began = time.perf_counter()
    assert callable(call)
    call()
    return (time.perf_counter() - began) * 1_000
