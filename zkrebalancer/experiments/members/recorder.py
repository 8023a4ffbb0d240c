"""One recorder for every protocol: it wraps a consumer and writes what its application sees, in the same events.

So no protocol is measured by its own words. What a callback says begins or ends a holding; what a poll returned is
delivered, with the age of each record at that moment.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from zkrebalancer.experiments.producer import sent_at_us
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.fields import TopicPartition

UNKNOWN_POSITION = -1  # asking where a partition begins would cost some protocols a request, and others none


class Received(NamedTuple):
    """One record as its consumer returned it."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


class Recorder:
    """Writes the events of one member; used by the member's own thread."""

    def __init__(self, log: EventLog, group: str, member: str) -> None:
        """Write for `member` of `group`, whose name stays the same when it leaves and joins again."""
        self._log = log
        self._group = group
        self._member = member
        self._next: dict[TopicPartition, int] = {}  # of every partition that is held

    def joined(self) -> None:
        """The consumer is about to be created."""
        self._log.write("member_joined", group=self._group, member=self._member)

    def left(self) -> None:
        """The consumer was closed in good order; what it did not give back by itself ends here."""
        self.stopped(list(self._next), "closed")
        self._log.write("member_left", group=self._group, member=self._member, reason="closed")

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """The consumer was given partitions."""
        new = {partition: UNKNOWN_POSITION for partition in partitions if partition not in self._next}
        self._next.update(new)
        self._write_partitions("fetcher_started", new)

    def stopped(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """The consumer gave partitions up; `reason` is revoked, lost or closed."""
        old = {partition: self._next.pop(partition) for partition in partitions if partition in self._next}
        self._write_partitions("fetcher_stopped", old, reason)

    def committed(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Stored offsets were confirmed: the next ones to read."""
        for (topic, partition), offset in sorted(offsets):
            self._log.write(
                "committed", group=self._group, member=self._member, topic=topic, partition=partition, offset=offset
            )

    def delivered(self, records: Sequence[Received]) -> None:
        """A poll has just returned these records, in offset order for each partition."""
        ts_us, mono_us = time.time_ns() // 1_000, time.monotonic_ns() // 1_000
        for run in unbroken(records):
            topic, partition, last_offset, _value = run[-1]
            if (topic, partition) in self._next:
                self._next[topic, partition] = last_offset + 1
            self._log.write(
                "delivered",
                group=self._group,
                mono_us=mono_us,
                member=self._member,
                topic=topic,
                partition=partition,
                first_offset=run[0].offset,
                last_offset=last_offset,
                count=len(run),
                delays_us=[ts_us - sent_at_us(record.value or b"") for record in run],
            )

    def _write_partitions(self, kind: str, positions: dict[TopicPartition, int], reason: str | None = None) -> None:
        extra: dict[str, Any] = {} if reason is None else {"reason": reason}
        for topic, group in itertools.groupby(sorted(positions), key=lambda partition: partition[0]):
            numbers = [number for _topic, number in group]
            self._log.write(
                kind,
                group=self._group,
                member=self._member,
                topic=topic,
                partitions=numbers,
                positions=[positions[topic, number] for number in numbers],
                **extra,
            )


def unbroken(records: Iterable[Received]) -> Iterator[list[Received]]:
    """Split records into runs of one partition whose offsets follow each other."""
    by_partition: dict[TopicPartition, list[Received]] = {}
    for record in records:
        by_partition.setdefault((record.topic, record.partition), []).append(record)
    for run in by_partition.values():
        begin = 0
        for index in range(1, len(run)):
            if run[index].offset != run[index - 1].offset + 1:
                yield run[begin:index]
                begin = index
        yield run[begin:]
