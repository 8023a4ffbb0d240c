"""The buffer: nothing lost, doubled or out of order; nothing of a stopped partition; bounded."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_agent.buffer import RECORD_OVERHEAD_BYTES, Record, RecordBuffer
from consumer_agent.signals import Position

MAX_RECORDS = 20
MAX_BYTES = 15 * (RECORD_OVERHEAD_BYTES + 1)
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
GENERATION = 3


def record(partition: tuple[str, int], offset: int) -> Record:
    return Record(*partition, offset, None, b"v", (), None, GENERATION)


class BufferMachine(RuleBasedStateMachine):
    """Compares the buffer with what should have come out of each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = RecordBuffer(MAX_RECORDS, MAX_BYTES)
        self.expected: dict[tuple[str, int], list[int]] = {}  # offsets in the buffer
        self.emitting: set[tuple[str, int]] = set()
        self.paused: set[tuple[str, int]] = set()
        self.returned: dict[tuple[str, int], int] = {}
        self.finished: dict[tuple[str, int], int] = {}
        self.next_offset: dict[tuple[str, int], int] = {}

    @rule(partition=st.sampled_from(PARTITIONS), position=st.integers(0, 50))
    def admit(self, partition: tuple[str, int], position: int) -> None:
        self.buffer.admit(partition, GENERATION, position)
        self.expected[partition] = []
        self.emitting.add(partition)
        self.paused.discard(partition)
        self.returned[partition] = self.finished[partition] = self.next_offset[partition] = position

    @rule(
        partition=st.sampled_from(PARTITIONS),
        steps=st.lists(st.integers(1, 3), max_size=8),
        back=st.integers(0, 3),
    )
    def put(self, partition: tuple[str, int], steps: list[int], back: int) -> None:
        """Offsets rise, with gaps (compaction), and may begin with some that were put before."""
        offset = self.next_offset.get(partition, 0) - back
        offsets = [offset + sum(steps[:index]) for index in range(len(steps))]
        offsets = [offset for offset in offsets if offset >= 0][: self.buffer.room]
        self.buffer.put(partition, [record(partition, offset) for offset in offsets])
        if partition in self.emitting - self.paused:
            fresh = [offset for offset in offsets if offset >= self.next_offset[partition]]
            self.expected[partition] += fresh
            if fresh:
                self.next_offset[partition] = fresh[-1] + 1

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        held = sum(map(len, self.expected.values()))
        runs = self.buffer.take(count)
        assert sum(map(len, runs)) == min(count, held)
        assert len({(run[0].topic, run[0].partition) for run in runs}) == len(runs)
        for run in runs:
            partition = (run[0].topic, run[0].partition)
            assert partition in self.emitting
            offsets = [entry.offset for entry in run]
            assert offsets == self.expected[partition][: len(run)]
            del self.expected[partition][: len(run)]
            self.returned[partition] = offsets[-1] + 1

    @rule()
    def finish(self) -> None:
        self.buffer.finish()
        self.finished.update(self.returned)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def stop(self, partitions: set[tuple[str, int]]) -> None:
        self.buffer.stop(partitions)
        self.emitting -= partitions
        for partition in partitions:
            self.expected.pop(partition, None)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def resume(self, partitions: set[tuple[str, int]]) -> None:
        stopped = {partition for partition in partitions if partition in self.returned} - self.emitting
        fetched = stopped - self.paused
        assert self.buffer.resume(partitions) == {partition: self.returned[partition] for partition in fetched}
        for partition in stopped:
            self.emitting.add(partition)
            self.expected[partition] = []
            self.next_offset[partition] = self.returned[partition]

    @rule(partition=st.sampled_from(PARTITIONS), position=st.integers(0, 60))
    def reset(self, partition: tuple[str, int], position: int) -> None:
        """Kafka has no longer, or not yet, what was asked for."""
        assert self.buffer.reset(partition, position) == (partition in self.emitting)
        if partition in self.emitting:
            self.expected[partition] = []
            self.returned[partition] = self.next_offset[partition] = position
            self.finished[partition] = min(self.finished[partition], position)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)), position=st.integers(0, 60), is_finished=st.booleans())
    def seek(self, partitions: set[tuple[str, int]], position: int, is_finished: bool) -> None:
        """The application goes on from elsewhere: what was buffered is dropped, and commits follow."""
        known = partitions & self.returned.keys()
        fetched = known & self.emitting - self.paused
        assert self.buffer.seek(dict.fromkeys(known, position), is_finished) == dict.fromkeys(fetched, position)
        for partition in known:
            self.expected[partition] = []
            self.returned[partition] = self.next_offset[partition] = position
            if is_finished:
                self.finished[partition] = position

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def pause(self, partitions: set[tuple[str, int]]) -> None:
        known = partitions & self.returned.keys()
        assert self.buffer.pause(known) == dict.fromkeys(known)
        self.paused |= known
        for partition in known:
            self.expected[partition] = []
            self.next_offset[partition] = self.returned[partition]

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def unpause(self, partitions: set[tuple[str, int]]) -> None:
        known = partitions & self.returned.keys()
        fetched = known & self.paused & self.emitting
        assert self.buffer.unpause(known) == {partition: self.returned[partition] for partition in fetched}
        self.paused -= known

    @precondition(lambda self: self.returned)
    @rule(partition=st.sampled_from(PARTITIONS))
    def forget(self, partition: tuple[str, int]) -> None:
        self.buffer.forget([partition])
        self.emitting.discard(partition)
        self.paused.discard(partition)
        for known in (self.expected, self.returned, self.finished, self.next_offset):
            known.pop(partition, None)

    @invariant()
    def positions_are_exact(self) -> None:
        positions = self.buffer.positions()
        assert positions == {
            partition: Position(self.returned[partition], self.finished[partition]) for partition in self.returned
        }
        assert self.buffer.emitting() == sorted(self.emitting)
        assert self.buffer.paused() == sorted(self.paused)
        assert self.buffer.fetched() == {tp: self.returned[tp] for tp in self.emitting - self.paused}
        assert all(self.buffer.holds({partition}) == (partition in self.returned) for partition in PARTITIONS)

    @invariant()
    def bounded(self) -> None:
        held = sum(map(len, self.expected.values()))
        assert held <= MAX_RECORDS
        assert self.buffer.has_records == (held > 0)
        full = held >= MAX_RECORDS or held * (RECORD_OVERHEAD_BYTES + 1) >= MAX_BYTES
        assert self.buffer.room == (0 if full else MAX_RECORDS - held)


TestBuffer = BufferMachine.TestCase


def test_partitions_are_taken_in_turn() -> None:
    buffer = RecordBuffer(100, 1_000_000)
    for partition in PARTITIONS[:2]:
        buffer.admit(partition, GENERATION, 0)
        buffer.put(partition, [record(partition, offset) for offset in range(10)])
    order = [run[0].partition for _ in range(4) for run in buffer.take(5)]
    assert order == [0, 1, 0, 1]


def test_a_resumed_partition_takes_again_what_was_dropped() -> None:
    buffer = RecordBuffer(100, 1_000_000)
    partition = PARTITIONS[0]
    buffer.admit(partition, GENERATION, 0)
    buffer.put(partition, [record(partition, offset) for offset in range(10)])
    buffer.take(4)
    buffer.stop([partition])
    assert buffer.resume([partition]) == {partition: 4}
    buffer.put(partition, [record(partition, offset) for offset in range(10)])
    assert [entry.offset for entry in buffer.take(100)[0]] == [4, 5, 6, 7, 8, 9]
