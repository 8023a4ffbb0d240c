"""Fills topics with records for a benchmark to read."""

from __future__ import annotations

from confluent_kafka import Producer

FLUSH_DEADLINE_S = 120.0


def fill_topic(bootstrap: str, topic: str, partitions: int, count: int, size: int) -> None:
    """Write `count` records of `size` bytes, evenly over the partitions; exits if some were not acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.kbytes": 65_536})
    value = b"x" * size
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(FLUSH_DEADLINE_S):
        raise SystemExit(f"{topic}: not all records were written")
