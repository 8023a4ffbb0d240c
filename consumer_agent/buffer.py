"""The bounded buffer between fetching and the application: records by partition, and how far each partition has come.

Pure: no thread, no clock. Each partition has two marks: `returned` is the next offset that the application gets,
`finished` the next offset after what it has finished (what may be committed). A stopped partition keeps its marks until
it is forgotten, so that the application can still commit what it was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from consumer_agent.signals import Position
from zkrebalancer.protocol.fields import TopicPartition

RECORD_OVERHEAD_BYTES = 256


class Record(NamedTuple):
    """One record of a topic; `generation` is that of its partition's start: a fencing token for sinks."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    generation: int


@dataclass(slots=True)
class _Partition:
    generation: int
    returned: int
    finished: int
    next_offset: int  # the lowest offset that may still be put
    emitting: bool = True
    wanted: bool = True  # False: paused by the application
    records: deque[Record] = field(default_factory=deque)


class RecordBuffer:
    """Records by partition, at most `max_records` and about `max_bytes` of them."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Begin empty."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._ready: deque[TopicPartition] = deque()  # partitions that hold records, the next to be taken first
        self._record_count = 0
        self._byte_count = 0

    @property
    def room(self) -> int:
        """How many records may be put; a put may pass `max_bytes`, then there is no room until some are taken."""
        return 0 if self._byte_count >= self._max_bytes else max(0, self._max_records - self._record_count)

    @property
    def has_records(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._ready)

    def generation(self, partition: TopicPartition) -> int | None:
        """Return the generation under which a partition is emitted, None when it is not."""
        held = self._partitions.get(partition)
        return held.generation if held is not None and held.emitting else None

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Return the lowest offset that may still be put, None when the partition is not emitted."""
        held = self._partitions.get(partition)
        return held.next_offset if held is not None and held.emitting else None

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether these partitions are admitted and not forgotten."""
        return self._partitions.keys() >= set(partitions)

    def admit(self, partition: TopicPartition, generation: int, position: int) -> None:
        """Take in records of a partition from `position` on."""
        self.forget([partition])
        self._partitions[partition] = _Partition(generation, position, position, position)

    def reset(self, partition: TopicPartition, position: int) -> bool:
        """Go on from another position, also a lower one; False if the partition is not emitted."""
        held = self._partitions.get(partition)
        if held is None or not held.emitting:
            return False
        self._drop_records(partition, held)
        held.returned = held.next_offset = position
        held.finished = min(held.finished, position)
        return True

    def seek(self, positions: Mapping[TopicPartition, int], is_finished: bool) -> dict[TopicPartition, int | None]:
        """Go on from other positions, as the application wishes; return what is to be fetched, and from where.

        With `is_finished` all below these positions, and nothing from there on, counts as finished.
        """
        for partition, position in positions.items():
            held = self._partitions[partition]
            self._drop_records(partition, held)
            held.returned = held.next_offset = position
            if is_finished:
                held.finished = position
        return {partition: positions[partition] for partition in positions if self._is_fetched(partition)}

    def pause(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Drop the records of these partitions and take no more until `unpause`; return what to fetch no more."""
        for partition in partitions:
            held = self._partitions[partition]
            self._drop_records(partition, held)
            held.wanted, held.next_offset = False, held.returned
        return dict.fromkeys(partitions)

    def unpause(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Take records of paused partitions again; return from where they are to be fetched."""
        paused = [partition for partition in partitions if not self._partitions[partition].wanted]
        for partition in paused:
            self._partitions[partition].wanted = True
        return {tp: self._partitions[tp].returned for tp in paused if self._is_fetched(tp)}

    def put(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Add records in offset order; those of a partition that is not emitted, or seen before, are dropped."""
        held = self._partitions.get(partition)
        if held is None or not held.emitting or not held.wanted:
            return
        fresh = [record for record in records if record.offset >= held.next_offset]
        if not fresh:
            return
        if not held.records:
            self._ready.append(partition)
        held.records.extend(fresh)
        held.next_offset = fresh[-1].offset + 1
        self._record_count += len(fresh)
        self._byte_count += sum(map(_size_bytes, fresh))

    def take(self, max_records: int) -> list[list[Record]]:
        """Return at most `max_records` records, one list per partition, partitions in turn."""
        runs: list[list[Record]] = []
        while self._ready and max_records > 0:
            partition = self._ready.popleft()
            held = self._partitions[partition]
            if len(held.records) <= max_records:
                run = list(held.records)
                held.records.clear()
            else:
                run = [held.records.popleft() for _ in range(max_records)]
                self._ready.append(partition)
            held.returned = run[-1].offset + 1
            max_records -= len(run)
            self._record_count -= len(run)
            self._byte_count -= sum(map(_size_bytes, run))
            runs.append(run)
        return runs

    def finish(self) -> None:
        """Count everything that was returned as finished."""
        for held in self._partitions.values():
            held.finished = held.returned

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records of these partitions and take no more; their marks stay."""
        for partition in partitions:
            held = self._partitions.get(partition)
            if held is not None:
                self._drop_records(partition, held)
                held.emitting = False

    def resume(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Emit stopped partitions again from where the application is; return those positions."""
        positions = {}
        for partition in partitions:
            held = self._partitions.get(partition)
            if held is not None and not held.emitting:
                held.emitting = True
                held.next_offset = held.returned
                if held.wanted:
                    positions[partition] = held.returned
        return positions

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions with all that is known of them."""
        for partition in partitions:
            held = self._partitions.pop(partition, None)
            if held is not None:
                self._drop_records(partition, held)

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the marks of every partition, stopped ones included."""
        return {partition: Position(held.returned, held.finished) for partition, held in self._partitions.items()}

    def emitting(self) -> list[TopicPartition]:
        """Return the partitions whose records are returned, sorted."""
        return sorted(partition for partition, held in self._partitions.items() if held.emitting)

    def fetched(self) -> dict[TopicPartition, int]:
        """Return the partitions that are to be fetched, and from where if nothing is buffered of them."""
        return {tp: held.returned for tp, held in self._partitions.items() if self._is_fetched(tp)}

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that the application has paused, sorted."""
        return sorted(partition for partition, held in self._partitions.items() if not held.wanted)

    def _is_fetched(self, partition: TopicPartition) -> bool:
        held = self._partitions[partition]
        return held.emitting and held.wanted

    def _drop_records(self, partition: TopicPartition, held: _Partition) -> None:
        if held.records:
            self._ready.remove(partition)
            self._record_count -= len(held.records)
            self._byte_count -= sum(map(_size_bytes, held.records))
            held.records.clear()


def _size_bytes(record: Record) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
