"""Unmodified Kafka clients that read and collect the records: in a thread, or in a process, which may be killed."""

from __future__ import annotations

import asyncio
import importlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import gevent
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from tests.support import kafka_tools
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.jars import KAFKA_4
from zkrebalancer.localcluster.server import child_environment

SESSION_MS = 45_000  # Kafka's default: a busy machine keeps a test from its heartbeats for seconds
HEARTBEAT_MS = 300
POLL_S = 0.1
CLASSIC = ("confluent", "kafka-python")
AIOKAFKA = "aiokafka"
KIP_848 = "confluent, KIP-848"
JAVA, JAVA_848 = "java", "java, KIP-848"


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


def _listener(base: Any, revoked: Callable[..., None]) -> Any:
    class Listener(base):  # type: ignore[misc]  # seen without its types
        def on_partitions_revoked(self, revoked_partitions: Any) -> None:
            if revoked_partitions:
                revoked()

        def on_partitions_assigned(self, assigned: Any) -> None: ...

    return Listener()


class _KafkaPython:
    def __init__(self, bootstrap: str, group: str, topic: str, revoked: Callable[..., None]) -> None:
        kafka: Any = importlib.import_module("kafka")
        listener = _listener(kafka.ConsumerRebalanceListener, revoked)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe([topic], listener=listener)
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


class _Aiokafka:
    def __init__(self, bootstrap: str, group: str, topic: str, revoked: Callable[..., None]) -> None:
        aiokafka: Any = importlib.import_module("aiokafka")
        listener = _listener(aiokafka.ConsumerRebalanceListener, revoked)
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._started(aiokafka, bootstrap, group, topic, listener))

    @staticmethod
    async def _started(aiokafka: Any, bootstrap: str, group: str, topic: str, listener: Any) -> Any:
        assignor = importlib.import_module("aiokafka.coordinator.assignors.range")
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            # Its default is an assignor that no other client offers.
            partition_assignment_strategy=(assignor.RangePartitionAssignor,),
        )
        consumer.subscribe([topic], listener=listener)
        await consumer.start()
        return consumer

    def poll(self) -> list[str]:
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(POLL_S * 1_000), max_records=500))
        return [record.value.decode() for records in found.values() for record in records]

    def assigned(self) -> set[int]:
        return {one.partition for one in self._consumer.assignment()}

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


MAKERS: dict[str, Callable[[str, str, str, Callable[..., None]], _Client]] = {
    "confluent": _Confluent,
    "kafka-python": _KafkaPython,
    AIOKAFKA: _Aiokafka,
    KIP_848: _Confluent848,
}
RUNNING: list[Reader] = []


class Reader:
    """One consumer of a group; `revocations` counts revocations of its partitions."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str) -> None:
        self.values: list[str] = []
        self.assigned: set[int] = set()
        self.revocations = 0
        self.kind = kind
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(MAKERS[kind], bootstrap, group, topic), daemon=True)
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


class ProcessReader:
    """The same as a process of its own: it can be killed and suspended."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str) -> None:
        self.kind = kind
        self.values: list[str] = []
        self.assigned: set[int] = set()
        self.revocations = 0
        self._process = subprocess.Popen(
            _command(kind, bootstrap, group, topic),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            text=True,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for line in self._process.stdout or ():
            what, *items = line.split()
            if what == "values":
                self.values += items
            elif what == "assigned":
                self.assigned = {int(item) for item in items}
            else:
                assert what == "revoked", line
                self.revocations += 1

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._end()

    def close(self) -> None:
        """Leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()
        assert self._process.returncode == 0, f"{self.kind} ended with {self._process.returncode}"

    def _end(self) -> None:
        self._process.wait(WITHIN_S)
        self._thread.join(WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self.assigned = set()


def _command(kind: str, bootstrap: str, group: str, topic: str) -> list[str]:
    if kind in MAKERS:
        return [sys.executable, "-m", "tests.integration.client_program", kind, bootstrap, group, topic]
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "group.protocol": "consumer" if kind == JAVA_848 else "classic",
    }
    if kind == JAVA:
        settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        # By default, a leader that reaches nobody forgets the topics, and takes their return for a change.
        settings |= {"metadata.recovery.strategy": "none"}
    return kafka_tools.reader_command(KAFKA_4, topic, settings)


def produce(bootstrap: str, topic: str, values: list[str], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % 6)
    assert gevent.get_hub().threadpool.apply(producer.flush, (WITHIN_S,)) == 0  # the test's ZooKeeper session lives on


def committed(bootstrap: str, group: str) -> int:
    """Return how many records the offsets of a group, kept at these brokers, cover."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return sum(int(one.offset) for one in answer.result(WITHIN_S).topic_partitions or ())


def close_in_turn(readers: Sequence[Reader | ProcessReader]) -> None:
    """Let the readers of a group leave; before the next one does, those that stay share all partitions again.

    librdkafka forgets its member id when it is closed during a rebalance, so its last commit would be refused.
    """
    staying = deque(readers)

    def owned() -> list[int]:
        return sorted(partition for reader in staying for partition in reader.assigned)

    every = owned()
    while staying:
        staying.popleft().close()
        wait_until(lambda: not staying or owned() == every, "those that stay do not share the partitions")
