"""Unmodified Kafka clients that read in a thread and collect the records."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import gevent
from confluent_kafka import Consumer, Producer

from tests.support.deadlines import WITHIN_S

SESSION_MS = 45_000  # Kafka's default: a busy machine keeps a test from its heartbeats for seconds
HEARTBEAT_MS = 300
POLL_S = 0.1
CLASSIC = ("confluent", "kafka-python")
KIP_848 = "confluent, KIP-848"


class _Client(Protocol):
    def poll(self) -> list[str]: ...
    def assigned(self) -> set[int]: ...
    def close(self) -> None: ...


class _Confluent:
    settings: ClassVar[dict[str, Any]] = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}

    def __init__(self, bootstrap: str, group: str, topic: str, revoked: Callable[..., None]) -> None:
        more = {"auto.offset.reset": "earliest", "bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
        self._consumer = Consumer({**self.settings, **more})
        self._consumer.subscribe([topic], on_revoke=revoked, on_lost=revoked)

    def poll(self) -> list[str]:
        messages = self._consumer.consume(500, POLL_S)
        return [(message.value() or b"").decode() for message in messages if message.error() is None]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class _Confluent848(_Confluent):
    settings: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


class _KafkaPython:
    def __init__(self, bootstrap: str, group: str, topic: str, revoked: Callable[..., None]) -> None:
        kafka: Any = importlib.import_module("kafka")

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
            def on_partitions_revoked(self, revoked_partitions: Any) -> None:
                if revoked_partitions:
                    revoked()

            def on_partitions_assigned(self, assigned: Any) -> None:
                pass

        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe([topic], listener=Listener())
        self._unreachable: type[Exception] = kafka.errors.KafkaConnectionError

    def poll(self) -> list[str]:
        try:
            found = self._consumer.poll(timeout_ms=int(POLL_S * 1_000), max_records=500)
        except self._unreachable:  # all known brokers are down; it will retry
            return []
        return [record.value.decode() for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


RUNNING: list[Reader] = []


class Reader:
    """One consumer of a group; `revocations` counts revocations of its partitions."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str) -> None:
        self.values: list[str] = []
        self.assigned: set[int] = set()
        self.revocations = 0
        self.kind = kind
        self._ending = threading.Event()
        make = {"confluent": _Confluent, "kafka-python": _KafkaPython, KIP_848: _Confluent848}[kind]
        self._thread = threading.Thread(target=self._run, args=(make, bootstrap, group, topic), daemon=True)
        self._thread.start()
        RUNNING.append(self)

    def __str__(self) -> str:
        """Describe it for the report of a failed test."""
        alive = "" if self._thread.is_alive() else ", has ended"
        own = f"owns {sorted(self.assigned)}, has read {len(self.values)} records, {self.revocations} revocations"
        return f"{self.kind}: {own}{alive}"

    def _run(self, make: Callable[..., _Client], *arguments: str) -> None:
        client = make(*arguments, self._revoked)
        while not self._ending.is_set():
            self.values += client.poll()
            self.assigned = client.assigned()
        client.close()

    def _revoked(self, *_arguments: object) -> None:
        self.revocations += 1

    def end(self) -> None:
        """Begin to leave the group."""
        self._ending.set()

    def close(self) -> None:
        """Leave the group."""
        self.end()
        gevent.get_hub().threadpool.apply(self._thread.join, (WITHIN_S,))
        assert not self._thread.is_alive(), "the consumer does not end"


def produce(bootstrap: str, topic: str, values: list[str], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % 6)
    assert gevent.get_hub().threadpool.apply(producer.flush, (WITHIN_S,)) == 0  # the test's ZooKeeper session lives on


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_at, what
        gevent.sleep(0.05)
