"""Which records the child has, which wait for it, and which it cannot process. Pure: the caller passes the time.

A partition's records are given in order, and only acknowledged ones are finished. A failed record blocks its partition:
once the child has answered all other records it has of the partition, it is given the failed one again, alone.

When the child dies with several records, the culprit is unknown. All of them become suspects, and the next child gets
one record at a time: if it dies again, that record was the cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from consumer_agent.records import Record
from zkrebalancer.protocol.fields import TopicPartition

RECORD_OVERHEAD_BYTES = 256
BACKOFF_MS = 100  # before the first retry; doubled for each further one
MAX_BACKOFF_MS = 10_000


def backoff_ms(failures: int) -> int:
    """Return how long to wait after so many failures."""
    return int(min(BACKOFF_MS * 2.0 ** min(failures - 1, 32), MAX_BACKOFF_MS))


class Letter(NamedTuple):
    """A record that the child cannot process."""

    record: Record
    failures: int
    reason: str  # of the last failure


@dataclass(slots=True, eq=False)
class _Entry:
    record: Record
    size_bytes: int
    failures: int = 0
    reason: str = ""
    is_suspect: bool = False


@dataclass(slots=True)
class _Partition:
    end: int  # after the last record that was taken, or before the first one that is withheld
    waiting: deque[_Entry] = field(default_factory=deque)
    given: deque[_Entry] = field(default_factory=deque)
    failed: list[_Entry] = field(default_factory=list)  # to be given again one by one, in order
    dead: list[_Entry] = field(default_factory=list)  # on their way to the dead letters
    not_before_ms: int = 0
    told: int | None = None  # what `finished` returned last
    is_withheld: bool = False  # the child gets nothing more of it

    def finished(self) -> int:
        firsts = (entries[0].record.offset for entries in (self.waiting, self.given, self.failed, self.dead) if entries)
        return min([*firsts, self.end])

    @property
    def goes_back(self) -> bool:
        """Whether the next record is not behind those that the child has: reading went back, as Kafka has lost some.

        An answer about an offset would be about both.
        """
        return bool(self.given and self.waiting) and self.waiting[0].record.offset <= self.given[-1].record.offset

    @property
    def is_open(self) -> bool:
        return bool(self.waiting or self.given or self.failed or self.dead)


class Ledger:
    """The open records: fetched for the child and not finished."""

    def __init__(self, max_records: int, max_bytes: int, max_failures: int) -> None:
        """Begin empty. At most `max_records` are open; no more are taken while these have `max_bytes`."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_failures = max_failures
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._open_count = self._open_bytes = 0
        self._given_bytes = 0
        self.given_count = 0
        self._suspect_count = 0
        self._letters: list[Letter] = []

    @property
    def room(self) -> int:
        """How many records may be added with `take`."""
        return max(0, self._max_records - self._open_count) if self._open_bytes < self._max_bytes else 0

    @property
    def open_count(self) -> int:
        """How many records are not finished."""
        return self._open_count

    def take(self, records: Iterable[Record]) -> None:
        """Add records that the consumer has returned, in order."""
        for record in records:
            size_bytes = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
            held = self._partitions.setdefault((record.topic, record.partition), _Partition(record.offset))
            while held.waiting and held.waiting[-1].record.offset >= record.offset:
                self._close(held.waiting.pop())  # reading went back: Kafka has lost it, or it comes again
            held.waiting.append(_Entry(record, size_bytes))
            held.end = record.offset + 1
            self._open_count += 1
            self._open_bytes += size_bytes

    def give(self, now_ms: int, unreleased: Collection[TopicPartition] = ()) -> list[Record]:
        """Return the records to give the child now; none of unreleased partitions, which may be at other offsets."""
        given: list[Record] = []
        for partition, held in list(self._partitions.items()):
            count = len(given)
            if held.is_withheld or partition in unreleased:
                continue
            if held.failed:
                if not held.given and not held.dead and now_ms >= held.not_before_ms and self._has_room:
                    given.append(self._give(held, held.failed.pop(0)))
            elif not held.dead and not (held.given and held.given[0].failures):
                while held.waiting and self._has_room and not held.goes_back:
                    given.append(self._give(held, held.waiting.popleft()))
            if len(given) > count:  # next time, the others come first
                self._partitions[partition] = self._partitions.pop(partition)
        return given

    @property
    def _has_room(self) -> bool:
        if self._suspect_count:
            return self.given_count == 0
        return self.given_count < self._max_records and self._given_bytes < self._max_bytes

    def _give(self, held: _Partition, entry: _Entry) -> Record:
        held.given.append(entry)
        self.given_count += 1
        self._given_bytes += entry.size_bytes
        return entry.record

    def ack(self, partition: TopicPartition, offset: int) -> int:
        """Note that the given records of a partition are done up to `offset`; return how many those are."""
        held = self._partitions.get(partition)
        count = 0
        while held is not None and held.given and held.given[0].record.offset <= offset:
            entry = held.given.popleft()
            self._taken_back(entry)
            self._close(entry)
            count += 1
        return count

    def fail(self, partition: TopicPartition, offset: int, reason: str, now_ms: int) -> int:
        """Note that the child could not process a record; return 1, or 0 if the child does not have it."""
        held = self._partitions.get(partition)
        entry = next((entry for entry in held.given if entry.record.offset == offset), None) if held else None
        if held is None or entry is None:
            return 0
        held.given.remove(entry)
        self._taken_back(entry)
        self._blame(held, entry, reason)
        held.not_before_ms = now_ms + backoff_ms(entry.failures)
        return 1

    def child_ended(self, reason: str, *, had_others: bool = False) -> int:
        """Reclaim the child's records for the next one; return how many there were.

        With `had_others`, it may have died of one that was dropped: a single record is a suspect, too.
        """
        count = self.given_count
        for held in self._partitions.values():
            while held.given:
                entry = held.given.pop()
                self._taken_back(entry)
                self._suspect_count += not entry.is_suspect
                entry.is_suspect = True
                if count == 1 and not had_others:
                    self._blame(held, entry, reason)
                else:
                    held.failed.append(entry)
            held.failed.sort(key=_offset)
        return count

    def letters(self) -> list[Letter]:
        """Return the records that, since the last call, have failed too often; they stay open until `buried`."""
        letters, self._letters = self._letters, []
        return letters

    def buried(self, partition: TopicPartition, offset: int) -> None:
        """Note that a dead letter is safe; this finishes its record."""
        held = self._partitions.get(partition)
        if held is not None:
            for entry in [entry for entry in held.dead if entry.record.offset == offset]:
                held.dead.remove(entry)
                self._close(entry)

    def finished(self) -> dict[TopicPartition, int]:
        """Return the offset below which all is finished, for each partition where it has changed."""
        changed = {}
        for partition, held in list(self._partitions.items()):
            offset = held.finished()
            if offset != held.told:
                held.told = changed[partition] = offset
            if not held.is_open:
                del self._partitions[partition]
        return changed

    def withhold(self, partitions: Collection[TopicPartition]) -> None:
        """Give no more records of these partitions; those that the child has may still be finished."""
        for held in self._held(partitions):
            held.is_withheld = True
            removed = [*held.waiting, *held.failed]
            held.end = min([held.end, *map(_offset, removed)])
            for entry in removed:
                self._close(entry)
            held.waiting.clear()
            held.failed.clear()

    def is_burying(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether there are dead letters of these partitions that are not safe yet."""
        return any(held.dead for held in self._held(partitions))

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions, with dead letters that are to be written: others read the records again."""
        self.withhold(partitions)
        self._letters = [one for one in self._letters if (one.record.topic, one.record.partition) not in partitions]
        for partition in partitions:
            held = self._partitions.pop(partition, None)
            if held is not None:
                for entry in held.given:
                    self._taken_back(entry)
                for entry in (*held.given, *held.dead):
                    self._close(entry)

    def _held(self, partitions: Collection[TopicPartition]) -> Iterator[_Partition]:
        return (self._partitions[partition] for partition in partitions if partition in self._partitions)

    def _taken_back(self, entry: _Entry) -> None:
        self.given_count -= 1
        self._given_bytes -= entry.size_bytes

    def _close(self, entry: _Entry) -> None:
        self._open_count -= 1
        self._open_bytes -= entry.size_bytes
        self._suspect_count -= entry.is_suspect

    def _blame(self, held: _Partition, entry: _Entry, reason: str) -> None:
        entry.failures += 1
        entry.reason = reason
        if entry.failures < self._max_failures:
            held.failed.append(entry)
            held.failed.sort(key=_offset)
        else:
            held.dead.append(entry)
            held.dead.sort(key=_offset)
            self._letters.append(Letter(entry.record, entry.failures, reason))


def _offset(entry: _Entry) -> int:
    return entry.record.offset
