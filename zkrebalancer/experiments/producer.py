"""Produces numbered records at a steady rate, and writes down what the broker has acknowledged.

`python -m zkrebalancer.experiments.producer`: a process of its own, so that nothing that it measures is in its way. The
value of each record is its number within its partition and when it was sent, "17 1732150000000000" (microseconds since
the epoch); where nobody else writes, number and offset agree.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from random import Random

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from zkrebalancer.cli.main import run
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

TICK_S = 0.02
FLUSH_DEADLINE_S = 30.0
UNKNOWN_TOPIC_DEADLINE_S = 30.0  # a broker that has just come back may not know its topics for a moment
MAX_QUEUED_RECORDS = 100_000
STALL_S = 0.25  # a round that is later than this is written down: records were sent in bursts
_PARTITIONS = re.compile(r"(?P<topic>.+):(?P<first>\d+)-(?P<last>\d+)")


class ProducerError(RebalancerError):
    """The broker refused a record, or did not answer."""


class NumberedProducer:
    """Deals numbered records over partitions; `acknowledged` ranges become `produced` events."""

    def __init__(
        self,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        event_log: EventLog,
        skew: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Prepare to write to `partitions`, of which there is at least one, at the broker HOST:PORT."""
        self._turns = turns(partitions, skew, seed)
        self._next_number = dict.fromkeys(partitions, 0)
        self._acknowledged: dict[TopicPartition, list[int]] = {}
        self._event_log = event_log
        self._error: KafkaError | None = None
        self._unknown_since_s: float | None = None  # since when the topic is unknown to the broker
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": MAX_QUEUED_RECORDS,
            }
        )

    def produce(self, count: int) -> int:
        """Hand over that many records and return how many were: fewer while the broker cannot take them.

        Raises:
            ProducerError: the broker did not know the topic for UNKNOWN_TOPIC_DEADLINE_S.

        """
        handed_over = 0
        for _ in range(min(count, MAX_QUEUED_RECORDS - len(self._producer))):
            topic, partition = next(self._turns)
            number = self._next_number[topic, partition]
            value = f"{number} {time.time_ns() // 1_000}".encode()
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            except KafkaException as error:
                self._refused(topic, error.args[0])
                break
            self._next_number[topic, partition] += 1
            handed_over += 1
            self._unknown_since_s = None
        self._producer.poll(0)
        self._write_down()
        return handed_over

    def _refused(self, topic: str, error: KafkaError) -> None:
        now_s = time.monotonic()
        if self._unknown_since_s is None:
            self._unknown_since_s = now_s
        if error.code() != KafkaError._UNKNOWN_TOPIC or now_s - self._unknown_since_s > UNKNOWN_TOPIC_DEADLINE_S:  # noqa: SLF001  # its public name
            raise ProducerError(f"topic {topic}: {error.str()}")

    def finish(self) -> None:
        """Wait for every acknowledgement; raises ProducerError if some record was refused."""
        left = self._producer.flush(FLUSH_DEADLINE_S)
        self._write_down()
        if left or self._error is not None:
            raise ProducerError(f"{left} records were not acknowledged, last error: {self._error}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = error
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None and offset is not None:
            self._acknowledged.setdefault((topic, partition), []).append(offset)

    def _write_down(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        for (topic, partition), offsets in acknowledged.items():
            for first, last in unbroken(offsets):
                self._event_log.write(
                    "produced", topic=topic, partition=partition, first_offset=first, last_offset=last
                )


def sent_at_us(value: bytes) -> int:
    """Return when a record was sent, from its value; raises ValueError for one of another producer."""
    return int(value.rpartition(b" ")[2])


def turns(partitions: Sequence[TopicPartition], skew: float, seed: int) -> Iterator[TopicPartition]:
    """Return who gets the next record, without end: each in turn, or by chance where the load is skewed.

    A seed always gives the same turns.
    """
    if not skew:
        return cycle(partitions)
    random, parts = Random(seed), shares(partitions, skew, seed)  # noqa: S311
    shuffled, weights = list(parts), list(parts.values())
    return (random.choices(shuffled, weights)[0] for _ in iter(int, 1))


def shares(partitions: Sequence[TopicPartition], skew: float, seed: int) -> dict[TopicPartition, float]:
    """Return which part of all records each partition gets.

    The n-th of them gets one in proportion to n ** -skew, after they were shuffled as `seed` says.
    """
    shuffled = Random(seed).sample(partitions, len(partitions))  # noqa: S311
    weights = [rank**-skew for rank in range(1, len(partitions) + 1)]
    whole = sum(weights)
    return {partition: weight / whole for partition, weight in zip(shuffled, weights, strict=True)}


def unbroken(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the inclusive ranges that ascending offsets form: another writer's records in between are not ours."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return ranges


def parse_partitions(texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that "NAME:FIRST-LAST" names, both inclusive; raises click.BadParameter."""
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
@click.option("--rate", required=True, type=click.IntRange(min=1), help="Records a second, all partitions together.")
@click.option("--events", required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True)
@click.option("--skew", default=0.0, help="How unequal the partitions' shares are; 0: not at all.")
@click.option("--seed", default=0, help="Decides which partitions get much.")
def produce(
    *, bootstrap: str, partitions: list[TopicPartition], rate: int, events: Path, name: str, skew: float, seed: int
) -> None:
    """Produce until SIGTERM; a round that comes late, or that the broker's client cannot take, becomes an event."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in threads that begin now as well
    event_log = EventLog(events, name)
    producer = NumberedProducer(bootstrap, partitions, event_log, skew, seed)
    began = last = time.monotonic()
    sent = 0
    while signal.sigtimedwait({signal.SIGTERM}, TICK_S) is None:
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
