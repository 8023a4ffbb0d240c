"""Produces many records per second to all partitions alike, the backlog first; `produced` events come from the broker.

It runs as a separate process (`python -m zkrebalancer.experiments.bulk_producer`). Its event file appears when the
backlog is there. It asks the broker for the end of each partition instead of awaiting each record's acknowledgement: no
Python runs for a record. A record's value ends with the time of its sending, as those of `producer.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is its public name

from zkrebalancer.cli.main import run
from zkrebalancer.experiments.ending import block_sigterm, is_told_to_end
from zkrebalancer.experiments.producer import STALL_S, TICK_S, ProducerError, parse_partitions
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol import fields

LOOK_INTERVAL_S = 0.2
ANSWER_DEADLINE_S = 30.0
FLUSH_DEADLINE_S = 60.0
MAX_QUEUED_RECORDS = 500_000
SETTINGS: Mapping[str, bool | int] = {
    "enable.idempotence": True,
    "linger.ms": 10,
    "queue.buffering.max.messages": 2 * MAX_QUEUED_RECORDS,
    "batch.size": 200_000,
}
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Ends:
    """The ends of partitions that each get as many records in each round; turns them into `produced` events."""

    def __init__(self, partitions: list[fields.TopicPartition]) -> None:
        """Begin with empty partitions."""
        self._known = dict.fromkeys(partitions, 0)
        self._sent: deque[tuple[int, int]] = deque()  # rounds: the end of each partition, when it was handed over
        self._end = 0

    def sent(self, count: int, mono_us: int) -> None:
        """Note that each partition was handed `count` records."""
        self._end += count
        self._sent.append((self._end, mono_us))

    def acknowledged(self, ends: Mapping[fields.TopicPartition, int]) -> list[dict[str, Any]]:
        """Return the fields of an event for each partition whose end has grown to these."""
        events: list[dict[str, Any]] = []
        for (topic, partition), end in ends.items():
            first = self._known[topic, partition]
            if end > first:
                self._known[topic, partition] = end
                sent_us = next((at_us for until, at_us in self._sent if until > first), 0)
                offsets = {"first_offset": first, "last_offset": end - 1, "sent_us": sent_us}
                events.append({"topic": topic, "partition": partition, **offsets})
        lowest = min(self._known.values())
        while self._sent and self._sent[0][0] <= lowest:
            self._sent.popleft()
        return events


class BulkProducer:
    """Hands over batches of equal records."""

    def __init__(self, bootstrap: str, partitions: list[fields.TopicPartition], record_bytes: int) -> None:
        """Create a producer for at least one partition, at the broker HOST:PORT."""
        self.ends = Ends(partitions)
        self._partitions = partitions
        self._record_bytes = record_bytes
        self._producer = Producer({"bootstrap.servers": bootstrap, **SETTINGS})
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def produce(self, count: int) -> int:
        """Hand over up to `count` records, of each partition as many; return how many.

        Raises:
            ProducerError: the client did not accept records, though it has room.

        """
        of_each = min(count, MAX_QUEUED_RECORDS - len(self._producer)) // len(self._partitions)
        if of_each <= 0:
            self._producer.poll(0)
            return 0
        sent_at = f" {time.time_ns() // 1_000}".encode()
        messages = [{"value": sent_at.rjust(self._record_bytes, b"x")}] * of_each
        self.ends.sent(of_each, time.monotonic_ns() // 1_000)
        for topic, partition in self._partitions:
            accepted = self._producer.produce_batch(topic, messages, partition=partition)
            if accepted != of_each:
                raise ProducerError(f"{topic}/{partition}: {accepted} of {of_each} records were accepted")
        self._producer.poll(0)
        return of_each * len(self._partitions)

    def produce_backlog(self, count: int) -> None:
        """Produce as quickly as possible; returns when the broker has everything."""
        left = count - count % len(self._partitions)
        while left:
            left -= self.produce(left)
            self._producer.poll(TICK_S if len(self._producer) >= MAX_QUEUED_RECORDS // 2 else 0)
        self.finish()

    def finish(self) -> None:
        """Wait for every acknowledgement; raises ProducerError."""
        left = self._producer.flush(FLUSH_DEADLINE_S)
        if left:
            raise ProducerError(f"{left} records were not acknowledged")

    def look(self, event_log: EventLog) -> None:
        """Write what the broker has, as events."""
        asked = {TopicPartition(topic, number): _LATEST for topic, number in self._partitions}
        answers = self._admin.list_offsets(asked, request_timeout=ANSWER_DEADLINE_S)
        ends = {(one.topic, one.partition): future.result().offset for one, future in answers.items()}
        for event in self.ends.acknowledged(ends):
            event_log.write("produced", **event)


@click.command()
@click.option("--bootstrap", required=True)
@click.option("--topic", "partitions", multiple=True, required=True, metavar="NAME:FIRST-LAST")
@click.option("--rate", required=True, type=click.IntRange(min=1), help="Records per second over all partitions.")
@click.option("--record-bytes", required=True, type=click.IntRange(min=20))
@click.option("--backlog", required=True, type=click.IntRange(min=0), help="Records to produce before all others.")
@click.option("--events", required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True)
def produce(
    *, bootstrap: str, partitions: tuple[str, ...], rate: int, record_bytes: int, backlog: int, events: Path, name: str
) -> None:
    """Produce until SIGTERM; write an event when a round is late or the client cannot accept all records."""
    block_sigterm()
    producer = BulkProducer(bootstrap, parse_partitions(partitions), record_bytes)
    producer.produce_backlog(backlog)
    event_log = EventLog(events, name)
    began = last = looked = time.monotonic()
    producer.look(event_log)
    sent = left_out = 0
    while not is_told_to_end(TICK_S):
        now = time.monotonic()
        due = int((now - began) * rate) - sent - left_out
        handed_over = producer.produce(due)
        sent += handed_over
        missed = max(0, due - handed_over - rate)  # more than a second's records: the client does not keep up
        left_out += missed
        if missed or now - last > STALL_S:
            event_log.write("stalled", role="producer", gap_ms=round((now - last) * 1_000), left_out_count=missed)
        if now - looked >= LOOK_INTERVAL_S:
            producer.look(event_log)
            looked = now
        last = now
    producer.finish()
    producer.look(event_log)
    event_log.close()


if __name__ == "__main__":
    run(produce)
