"""Reads a topic once with one kind of client, in a process of its own, and prints the figures as JSON.

`python -m tests.benchmarks.agent.readers KIND TOPIC PARTITIONS COUNT BOOTSTRAP ZOOKEEPER`. Every kind checks each error
and reads each value, 500 records at a time. The measurement starts after the first batch; CPU time is that of all
threads. Memory is the process's: at the end, and how much it has grown since a tenth of the records was read.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from kafka import KafkaConsumer as PythonConsumer  # type: ignore[import-untyped]  # it has no types
from kafka import TopicPartition as PythonPartition

from consumer_agent import AsyncConsumer, Batch, Consumer
from consumer_agent.runtime.record_buffer import Run

BATCH = 500
MANY = 5_000
RETAINED = 50_000  # by an agent with `per_partition`
THREADS = 4
TUNED = {"fetch.queue.backoff.ms": 10}
WAIT_S = 1.0

Values = Sequence[Any]


class EnoughError(Exception):
    """All records were read."""


class Meter:
    """Counts records from the first batch on, and raises `EnoughError` when there were as many as wanted."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._count = self._first = 0
        self._lock = threading.Lock()
        self._began_s = self._began_cpu_s = self._elapsed_s = self._cpu_s = self._early_mib = self._memory_mib = 0.0

    def add(self, count: int) -> None:
        """Count a batch."""
        with self._lock:
            if not count or self._elapsed_s:
                return
            if not self._count:
                self._first = count
                self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()
            self._count += count
            if not self._early_mib and self._count >= self._wanted // 10:
                self._early_mib = _memory_mib()
            if self._count >= self._wanted:
                self._elapsed_s, self._cpu_s = time.monotonic() - self._began_s, time.process_time() - self._began_cpu_s
                self._memory_mib = _memory_mib()
                raise EnoughError

    def figures(self) -> dict[str, float]:
        """Return what `make bench-agent` shows."""
        records = self._count - self._first
        return {
            "records_per_s": records / self._elapsed_s,
            "cpu_s_per_million": self._cpu_s / records * 1e6,
            "memory_mib": self._memory_mib,
            "growth_mib": self._memory_mib - self._early_mib,
        }


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


def raw_kept(task: Task) -> Iterator[Values]:
    """Read values when ten batches are there, as a poll of 5,000 does."""
    kept: list[Message] = []
    for messages in _consumed(_assigned(task, TUNED)):
        kept += messages
        if len(kept) >= MANY or not messages:
            yield list(map(Message.value, kept))
            kept = []


def raw_threads(task: Task) -> Iterator[Values]:
    """Fetch in one thread and read values in another, as whatever passes records between threads does."""
    batches: queue.Queue[list[Message]] = queue.Queue(RETAINED // BATCH)
    consumed = _consumed(_assigned(task, TUNED))

    def fetch() -> None:
        for messages in consumed:
            batches.put(messages)

    threading.Thread(target=fetch, daemon=True).start()
    while True:
        yield list(map(Message.value, batches.get()))


def raw_records(task: Task) -> Iterator[Values]:
    """Yield every field of every record."""
    for messages in _consumed(_assigned(task, TUNED)):
        yield [(m.topic(), m.partition(), m.offset(), m.key(), m.value(), m.headers(), m.timestamp()) for m in messages]


def raw_made(task: Task) -> Iterator[Values]:
    """Make a `Record` of every message, as the agent does, which is the least that its records cost."""
    for messages in _consumed(_assigned(task, TUNED)):
        yield list(Batch([Run(task.topic, 0, 0, messages)])) if messages else ()


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


def _settings(task: Task, settings: dict[str, Any]) -> dict[str, Any]:
    own = {"zookeeper": task.zookeeper, "bootstrap": task.bootstrap, "group": f"bench-{time.time_ns()}"}
    return {**own, "max_poll_records": BATCH, **settings}


def _agent(task: Task, settings: dict[str, Any]) -> Iterator[Batch]:
    with Consumer(**_settings(task, settings)) as consumer:
        consumer.subscribe([task.topic])
        yield from consumer


def agent(task: Task, **settings: Any) -> Iterator[Values]:
    for batch in _agent(task, settings):
        yield batch.values()


def agent_records(task: Task) -> Iterator[Values]:
    """Every field of every record."""
    for batch in _agent(task, {}):
        yield list(batch)


def iterated(batches: Callable[[Task], Iterator[Values]]) -> Callable[[Task, Meter], None]:
    def read(task: Task, meter: Meter) -> None:
        for values in batches(task):
            meter.add(len(values))

    return read


def agent_run(task: Task, meter: Meter) -> None:
    """Handlers in several threads."""
    with Consumer(**_settings(task, {})) as consumer:
        consumer.subscribe([task.topic])
        consumer.run(lambda batch: meter.add(len(batch.values())), threads=THREADS)


def agent_async(task: Task, meter: Meter) -> None:
    async def read() -> None:
        async with AsyncConsumer(**_settings(task, {})) as consumer:
            consumer.subscribe([task.topic])
            async for batch in consumer:
                meter.add(len(batch.values()))

    asyncio.run(read())


RAW, RAW_RECORDS = "raw consume(500), tuned", "raw consume(500), tuned, all fields"
RAW_MADE = "raw consume(500), tuned, a Record of each"
RAW_KEPT, RAW_THREADS = "raw consume(500), tuned, values of 5,000 at once", "raw consume(500), tuned, in another thread"
KINDS: dict[str, Callable[[Task, Meter], None]] = {
    "raw consume(500), defaults": iterated(lambda task: raw(task, {})),
    RAW: iterated(lambda task: raw(task, TUNED)),
    RAW_KEPT: iterated(raw_kept),
    RAW_THREADS: iterated(raw_threads),
    "agent, values": iterated(agent),
    "agent, values, poll of 5,000": iterated(partial(agent, max_poll_records=5_000)),
    "agent, values, per_partition": iterated(partial(agent, prefetch="per_partition")),
    "agent, values, proportional": iterated(partial(agent, poll_fairness="proportional")),
    "agent, values, run(threads=4)": agent_run,
    "agent, values, AsyncConsumer": agent_async,
    RAW_RECORDS: iterated(raw_records),
    RAW_MADE: iterated(raw_made),
    "agent, records": iterated(agent_records),
    "raw poll(), tuned": iterated(raw_poll),
    "classic group, consume(500), tuned": iterated(classic),
    "kafka-python": iterated(kafka_python),
}


def main() -> None:
    """Read the topic and print the figures."""
    kind, *arguments = sys.argv[1:]
    task = Task(*arguments)
    meter = Meter(task.count)
    with suppress(EnoughError):
        KINDS[kind](task, meter)
    sys.stdout.write(json.dumps(meter.figures()) + "\n")
    sys.stdout.flush()


def _memory_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


if __name__ == "__main__":
    main()
