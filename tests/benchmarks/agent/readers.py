"""Reads a topic once with one kind of client, in a process of its own, and prints the figures as JSON.

`python -m tests.benchmarks.agent.readers KIND TOPIC PARTITIONS COUNT BOOTSTRAP ZOOKEEPER`. Every kind checks each error
and reads each value, 500 records at a time. The measurement starts after the first batch; CPU time is that of all
threads. Memory is the process's: at the end, and how much it has grown since a tenth of the records was read.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from kafka import KafkaConsumer as PythonConsumer  # type: ignore[import-untyped]  # it has no types
from kafka import TopicPartition as PythonPartition

from consumer_agent import Consumer

BATCH = 500
TUNED = {"fetch.queue.backoff.ms": 10}
WAIT_S = 1.0

Values = Sequence[Any]


class Task:
    """The topic to read, how much of it, and where."""

    def __init__(self, topic: str, partitions: str, count: str, bootstrap: str, zookeeper: str) -> None:
        self.topic = topic
        self.partitions = int(partitions)
        self.count = int(count)
        self.bootstrap = bootstrap
        self.zookeeper = zookeeper


def _client(task: Task, settings: dict[str, Any]) -> KafkaConsumer:
    return KafkaConsumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": f"bench-{time.time_ns()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


def _assigned(task: Task, settings: dict[str, Any]) -> KafkaConsumer:
    client = _client(task, settings)
    client.assign([TopicPartition(task.topic, number, OFFSET_BEGINNING) for number in range(task.partitions)])
    return client


def _consumed(client: KafkaConsumer) -> Iterator[list[Message]]:
    while True:
        messages = client.consume(BATCH, WAIT_S)
        if any(map(Message.error, messages)):
            raise SystemExit(f"error: {messages[0].error()}")
        yield messages


def raw(task: Task, settings: dict[str, Any]) -> Iterator[Values]:
    for messages in _consumed(_assigned(task, settings)):
        yield list(map(Message.value, messages))


def raw_records(task: Task) -> Iterator[Values]:
    """Yield every field of every record."""
    for messages in _consumed(_assigned(task, TUNED)):
        yield [(m.topic(), m.partition(), m.offset(), m.key(), m.value(), m.headers(), m.timestamp()) for m in messages]


def raw_poll(task: Task) -> Iterator[Values]:
    client = _assigned(task, TUNED)
    while True:
        message = client.poll(WAIT_S)
        if message is not None:
            if message.error():
                raise SystemExit(f"error: {message.error()}")
            yield (message.value(),)


def classic(task: Task) -> Iterator[Values]:
    client = _client(task, TUNED)
    client.subscribe([task.topic])
    for messages in _consumed(client):
        yield list(map(Message.value, messages))


def kafka_python(task: Task) -> Iterator[Values]:
    client = PythonConsumer(bootstrap_servers=task.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    client.assign([PythonPartition(task.topic, number) for number in range(task.partitions)])
    while True:
        for records in client.poll(timeout_ms=int(WAIT_S * 1_000), max_records=BATCH).values():
            yield [record.value for record in records]


def _agent(task: Task) -> Consumer:
    group = f"bench-{time.time_ns()}"
    consumer = Consumer(zookeeper=task.zookeeper, bootstrap=task.bootstrap, group=group, max_poll_records=BATCH)
    consumer.subscribe([task.topic])
    return consumer


def agent(task: Task) -> Iterator[Values]:
    with _agent(task) as consumer:
        for batch in consumer:
            yield batch.values()


def agent_records(task: Task) -> Iterator[Values]:
    """Yield every record with all fields."""
    with _agent(task) as consumer:
        for batch in consumer:
            yield list(batch)


KINDS: dict[str, Callable[[Task], Iterator[Values]]] = {
    "raw consume(500), defaults": lambda task: raw(task, {}),
    "raw consume(500), tuned": lambda task: raw(task, TUNED),
    "agent, values": agent,
    "raw consume(500), tuned, all fields": raw_records,
    "agent, records": agent_records,
    "raw poll(), tuned": raw_poll,
    "classic group, consume(500), tuned": classic,
    "kafka-python": kafka_python,
}


def main() -> None:
    """Read the topic and print the figures."""
    kind, *arguments = sys.argv[1:]
    task = Task(*arguments)
    batches = KINDS[kind](task)
    first = len(next(values for values in batches if values))
    began_s, began_cpu_s, count = time.monotonic(), time.process_time(), first
    while count < task.count // 10:
        count += len(next(batches))
    early_mib = _memory_mib()
    while count < task.count:
        count += len(next(batches))
    elapsed_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    records, memory_mib = count - first, _memory_mib()
    figures = {
        "records_per_s": records / elapsed_s,
        "cpu_s_per_million": cpu_s / records * 1e6,
        "memory_mib": memory_mib,
        "growth_mib": memory_mib - early_mib,
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def _memory_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


if __name__ == "__main__":
    main()
