"""Produces numbered records at a steady rate, and writes events for those that the broker acknowledged.

It runs as a separate process (`python -m zkrebalancer.experiments.producer`), so that it shares no interpreter with
the measured code. A record's value is its number within its partition and the time it was sent, such as "17
1732150000000000" (microseconds since the epoch); without other producers, number and offset are equal.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from random import Random

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from zkrebalancer.cli.main import run
from zkrebalancer.experiments.ending import block_sigterm, is_told_to_end
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition, to_ranges

TICK_S = 0.02
FLUSH_DEADLINE_S = 30.0
UNKNOWN_TOPIC_DEADLINE_S = 30.0  # a restarted broker may not know its topics for a moment
MAX_QUEUED_RECORDS = 100_000
# After so many bytes of a partition, the broker makes an index entry (`log.index.interval.bytes`). If all partitions
# get there at once, as they do with records alike, all records are late in the middle of a run, by 0.1 s and more.
INDEX_BYTES = 4_096
SETTINGS: Mapping[str, bool | int] = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.messages": MAX_QUEUED_RECORDS,
}
STALL_S = 0.25  # a round that is later becomes an event, because its records come in a burst
_PARTITIONS = re.compile(r"(?P<topic>.+):(?P<first>\d+)-(?P<last>\d+)")


class ProducerError(RebalancerError):
    """The broker rejected a record or did not answer."""


class NumberedProducer:
    """Distributes numbered records over partitions; acknowledged ranges become `produced` events."""

    def __init__(
        self,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        event_log: EventLog,
        skew: float = 0.0,
        seed: int = 0,
        first_bytes: int = 0,
    ) -> None:
        """Create a producer for at least one partition, at the broker HOST:PORT.

        The first record of each partition is longer than the next ones, by an even share of up to `first_bytes`.
        """
        self._turns = turns(partitions, skew, seed)
        self._first_bytes = {each: place * first_bytes // len(partitions) for place, each in enumerate(partitions)}
        self._next_number = dict.fromkeys(partitions, 0)
        self._acknowledged: dict[TopicPartition, list[int]] = {}
        self._sent_us: dict[TopicPartition, int] = {}  # wall clock: when the first of these was handed over
        self._event_log = event_log
        self._error: KafkaError | None = None
        self._unknown_since_s: float | None = None  # when the broker first did not know the topic
        self._producer = Producer({"bootstrap.servers": bootstrap, **SETTINGS})

    def produce(self, count: int) -> int:
        """Queue up to `count` records and return how many: fewer while the broker cannot accept them.

        Raises:
            ProducerError: the broker did not know the topic for UNKNOWN_TOPIC_DEADLINE_S.

        """
        handed_over = 0
        for _ in range(min(count, MAX_QUEUED_RECORDS - len(self._producer))):
            topic, partition = next(self._turns)
            number = self._next_number[topic, partition]
            gap = " " * (1 if number else 1 + self._first_bytes[topic, partition])
            value = f"{number}{gap}{time.time_ns() // 1_000}".encode()
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            except KafkaException as error:
                self._handle_rejection(topic, error.args[0])
                break
            self._next_number[topic, partition] += 1
            handed_over += 1
            self._unknown_since_s = None
        self._producer.poll(0)
        self._write_acknowledged()
        return handed_over

    def _handle_rejection(self, topic: str, error: KafkaError) -> None:
        now_s = time.monotonic()
        if self._unknown_since_s is None:
            self._unknown_since_s = now_s
        if error.code() != KafkaError._UNKNOWN_TOPIC or now_s - self._unknown_since_s > UNKNOWN_TOPIC_DEADLINE_S:  # noqa: SLF001  # its public name
            raise ProducerError(f"topic {topic}: {error.str()}")

    def finish(self) -> None:
        """Wait for every acknowledgement; raises ProducerError if a record was rejected."""
        left = self._producer.flush(FLUSH_DEADLINE_S)
        self._write_acknowledged()
        if left or self._error is not None:
            raise ProducerError(f"{left} records were not acknowledged, last error: {self._error}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = error
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None and offset is not None:
            if (topic, partition) not in self._acknowledged:
                self._sent_us[topic, partition] = sent_at_us(message.value() or b"")
            self._acknowledged.setdefault((topic, partition), []).append(offset)

    def _write_acknowledged(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        wall_us = (time.time_ns() - time.monotonic_ns()) // 1_000
        for (topic, partition), offsets in acknowledged.items():
            for first, last in to_ranges(offsets):
                self._event_log.write(
                    "produced",
                    topic=topic,
                    partition=partition,
                    first_offset=first,
                    last_offset=last,
                    sent_us=self._sent_us[topic, partition] - wall_us,
                )


def sent_at_us(value: bytes) -> int:
    """Return when a record was sent, from its value; raises ValueError for another producer's record."""
    return int(value.rpartition(b" ")[2])


def turns(partitions: Sequence[TopicPartition], skew: float, seed: int) -> Iterator[TopicPartition]:
    """Yield the partition of each next record, endlessly: in turn, or at random if the load is skewed.

    The same seed gives the same sequence.
    """
    if not skew:
        return cycle(partitions)
    random, parts = Random(seed), shares(partitions, skew, seed)  # noqa: S311
    shuffled, weights = list(parts), list(parts.values())
    return (random.choices(shuffled, weights)[0] for _ in iter(int, 1))


def shares(partitions: Sequence[TopicPartition], skew: float, seed: int) -> dict[TopicPartition, float]:
    """Return each partition's share of all records.

    After a shuffle by `seed`, the n-th partition's share is proportional to n ** -skew.
    """
    shuffled = Random(seed).sample(partitions, len(partitions))  # noqa: S311
    weights = [rank**-skew for rank in range(1, len(partitions) + 1)]
    whole = sum(weights)
    return {partition: weight / whole for partition, weight in zip(shuffled, weights, strict=True)}


def parse_partitions(texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions named as "NAME:FIRST-LAST", both inclusive; raises click.BadParameter."""
    partitions: list[TopicPartition] = []
    for text in texts:
        found = _PARTITIONS.fullmatch(text)
        if found is None or int(found["first"]) > int(found["last"]):
            raise click.BadParameter(f"{text!r} is not NAME:FIRST-LAST")
        partitions += [(found["topic"], number) for number in range(int(found["first"]), int(found["last"]) + 1)]
    return partitions


@click.command()
@click.option("--bootstrap", required=True)
@click.option(
    "--topic",
    "partitions",
    multiple=True,
    required=True,
    metavar="NAME:FIRST-LAST",
    callback=lambda _context, _option, texts: parse_partitions(texts),
)
@click.option("--rate", required=True, type=click.IntRange(min=1), help="Records per second over all partitions.")
@click.option("--events", required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True)
@click.option("--skew", default=0.0, help="Exponent of the partitions' shares; 0 makes them equal.")
@click.option("--seed", default=0, help="Determines which partitions are hot.")
@click.option("--first-bytes", default=0, help="By how much first records of partitions are longer, at most.")
def produce(
    *,
    bootstrap: str,
    partitions: list[TopicPartition],
    rate: int,
    events: Path,
    name: str,
    skew: float,
    seed: int,
    first_bytes: int,
) -> None:
    """Produce until SIGTERM; write an event when a round is late or the client cannot accept all records."""
    block_sigterm()
    event_log = EventLog(events, name)
    producer = NumberedProducer(bootstrap, partitions, event_log, skew, seed, first_bytes)
    began = last = time.monotonic()
    sent = 0
    while not is_told_to_end(TICK_S):
        now = time.monotonic()
        due = int((now - began) * rate)
        left_out = due - sent - producer.produce(due - sent)
        if left_out or now - last > STALL_S:
            event_log.write("stalled", role="producer", gap_ms=round((now - last) * 1_000), left_out_count=left_out)
        sent, last = due, now
    producer.finish()
    event_log.close()


if __name__ == "__main__":
    run(produce)
