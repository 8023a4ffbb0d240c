"""Writes what a member's application sees as events: the same for every protocol, none of which reports about itself.

Callbacks start and end ownership. The records that a poll returned count as delivered, each with its delay at that
moment.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from zkrebalancer.experiments.producer import sent_at_us
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.fields import TopicPartition

UNKNOWN_POSITION = -1  # asking for it would cost some protocols a request that others do not need


class Received(NamedTuple):
    """One record as its consumer returned it."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


class Recorder:
    """Writes the events of one member; used by the member's own thread."""

    def __init__(self, log: EventLog, group: str, member: str, *, has_all_delays: bool = True) -> None:
        """Write for `member` of `group`; the name stays the same when the member leaves and joins again.

        `has_all_delays`: of each record, else of the last one in each event, for loads whose delays would fill disks.
        """
        self._log = log
        self._group = group
        self._member = member
        self._has_all_delays = has_all_delays
        self._next: dict[TopicPartition, int] = {}  # next offset of every owned partition

    def joined(self) -> None:
        """Record that the consumer is about to be created."""
        self._log.write("member_joined", group=self._group, member=self._member)

    def left(self) -> None:
        """Record that the consumer has closed; partitions it still owns stop here."""
        self.stopped(list(self._next), "closed")
        self._log.write("member_left", group=self._group, member=self._member, reason="closed")

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions were assigned."""
        new = {partition: UNKNOWN_POSITION for partition in partitions if partition not in self._next}
        self._next.update(new)
        self._write_partitions("fetcher_started", new)

    def stopped(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Record that partitions were given up; `reason` is revoked, lost or closed."""
        old = {partition: self._next.pop(partition) for partition in partitions if partition in self._next}
        self._write_partitions("fetcher_stopped", old, reason)

    def committed(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Record committed offsets, the next ones to read."""
        for (topic, partition), offset in sorted(offsets):
            self._log.write(
                "committed", group=self._group, member=self._member, topic=topic, partition=partition, offset=offset
            )

    def delivered(self, records: Sequence[Received]) -> None:
        """Record that a poll has just returned these records, in offset order for each partition."""
        ts_us, mono_us = time.time_ns() // 1_000, time.monotonic_ns() // 1_000
        for run in contiguous(records):
            topic, partition, last_offset, _value = run[-1]
            dated = run if self._has_all_delays else run[-1:]
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
                delays_us=[ts_us - sent_at_us(record.value or b"") for record in dated],
            )
        self._log.flush()  # before anything of it is committed

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
        self._log.flush()


def contiguous(records: Iterable[Received]) -> Iterator[list[Received]]:
    """Split records into lists of contiguous offsets of one partition."""
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
