"""The buffer: nothing lost, doubled or out of order; nothing of a stopped partition; bounded; nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumer_agent.membership.events import Position
from consumer_agent.runtime.record_buffer import BufferSettings, Fairness, Finished, Prefetch, RecordBuffer
from consumer_agent.runtime.shares import equal_shares
from tests.unit.consumer_agent.messages import ROOMY, messages

LIMIT = 7
MAX_RECORDS = 20
RECORD_BYTES = 10
MAX_BYTES = 15 * RECORD_BYTES
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
GENERATION = 3


def put(buffer: RecordBuffer, partition: tuple[str, int], offsets: list[int]) -> None:
    buffer.put(partition, messages(partition, offsets), RECORD_BYTES * len(offsets))


class BufferMachine(RuleBasedStateMachine):
    """Compares the buffer with what should have come out of each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[tuple[str, int], list[int]] = {}  # offsets in the buffer
        self.emitting: set[tuple[str, int]] = set()
        self.paused: set[tuple[str, int]] = set()
        self.returned: dict[tuple[str, int], int] = {}
        self.finished: dict[tuple[str, int], int] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.again: set[tuple[str, int]] = set()  # partitions of which nothing is put until they are fetched again

    @initialize(fairness=st.sampled_from(Fairness), prefetch=st.sampled_from(Prefetch), begins_paused=st.booleans())
    def begin(self, fairness: Fairness, prefetch: Prefetch, begins_paused: bool) -> None:
        self.settings = BufferSettings(LIMIT, MAX_RECORDS, MAX_BYTES, fairness, prefetch, begins_paused)
        self.buffer = RecordBuffer(self.settings)

    @rule(partition=st.sampled_from(PARTITIONS), position=st.integers(0, 50))
    def admit(self, partition: tuple[str, int], position: int) -> None:
        self.buffer.admit(partition, GENERATION, position)
        self.expected[partition] = []
        self.emitting.add(partition)
        self.again.discard(partition)  # it is fetched from its new position
        (self.paused.add if self.settings.begins_paused else self.paused.discard)(partition)
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
        put(self.buffer, partition, offsets)
        if partition in self.emitting - self.paused - self.again:
            fresh = [offset for offset in offsets if offset >= self.next_offset[partition]]
            self.expected[partition] += fresh
            if fresh:
                self.next_offset[partition] = fresh[-1] + 1

    @rule(
        partition=st.sampled_from(PARTITIONS),
        steps=st.lists(st.integers(1, 3), min_size=3, max_size=8),
        counts=st.lists(st.integers(1, 3), max_size=4),
    )
    def serve(self, partition: tuple[str, int], steps: list[int], counts: list[int]) -> None:
        """What happens most of all: records come, and are taken few by few. Else few runs of the machine have any."""
        if partition not in self.returned:
            self.admit(partition, 0)
        self.resume({partition})
        self.unpause({partition})
        self.fetch_again()
        self.put(partition, steps, 0)
        for count in counts:
            self.take(count)

    @rule(count=st.integers(1, 12) | st.none())
    def take(self, count: int | None) -> None:
        held = {tp: len(offsets) for tp, offsets in self.expected.items() if offsets and tp not in self.paused}
        total = sum(held.values())
        waiting = list(self.buffer._ready)
        runs = self.buffer.take(count)
        taken = {(run.topic, run.partition): [message.offset() for message in run.messages] for run in runs}
        assert len(taken) == len(runs)
        assert sum(map(len, taken.values())) == (total if count is None else min(count, total))
        if self.settings.fairness is Fairness.PROPORTIONAL:
            self.check_shares(held, {partition: len(taken.get(partition, [])) for partition in held})
        for partition, offsets in taken.items():
            assert partition in self.emitting - self.paused
            assert offsets == self.expected[partition][: len(offsets)]
            del self.expected[partition][: len(offsets)]
            self.returned[partition] = offsets[-1] + 1
        assert list(self.buffer._ready)[: len(waiting) - len(taken)] == waiting[len(taken) :]  # these come first next
        assert all(run.generation == GENERATION for run in runs)

    @rule()
    def interrupt(self) -> None:
        """A signal's exception in the middle of a change: what is buffered is dropped, and fetched again."""
        self.buffer.begin_again()
        self.again = self.emitting - self.paused
        for partition in self.returned:
            self.expected[partition] = []
            self.next_offset[partition] = self.returned[partition]

    @rule()
    def fetch_again(self) -> None:
        assert self.buffer.has_again == bool(self.again)
        fetched = self.again & (self.emitting - self.paused)
        assert self.buffer.again() == {partition: self.next_offset[partition] for partition in fetched}
        assert not self.buffer.has_again
        self.again = set()

    def check_shares(self, held: dict[tuple[str, int], int], taken: dict[tuple[str, int], int]) -> None:
        """Nobody whose records are left gets less than anybody else, but for one record."""
        for partition, count in taken.items():
            assert count == held[partition] or count >= max(taken.values()) - 1

    @rule()
    def finish(self) -> None:
        self.buffer.finish()
        self.finished.update(self.returned)

    @rule(partition=st.sampled_from(PARTITIONS), offset=st.integers(0, 80))
    def finish_below(self, partition: tuple[str, int], offset: int) -> None:
        self.buffer.finish_below({partition: Finished(offset)})
        if partition in self.finished:
            self.finished[partition] = max(self.finished[partition], min(offset, self.returned[partition]))

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def stop(self, partitions: set[tuple[str, int]]) -> None:
        self.buffer.stop(partitions)
        self.emitting -= partitions
        for partition in partitions:
            self.expected.pop(partition, None)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def resume(self, partitions: set[tuple[str, int]]) -> None:
        stopped = {partition for partition in partitions if partition in self.returned} - self.emitting
        self.buffer.resume(partitions)
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
        """What is buffered is kept, unless that is too much; then it is fetched again."""
        known = sorted(partitions & self.returned.keys())
        sizes = {partition: held.size_bytes for partition, held in self.buffer._partitions.items()}
        assert self.buffer.pause(known) == dict.fromkeys(known)
        for partition in known:
            aside = [tp for tp in self.paused if self.expected.get(tp)] + [partition]
            count, size_bytes = sum(len(self.expected.get(tp, [])) for tp in aside), sum(map(sizes.__getitem__, aside))
            if partition not in self.paused and (count > MAX_RECORDS or size_bytes > MAX_BYTES):
                self.expected[partition] = []
                self.next_offset[partition] = self.returned[partition]
            self.paused.add(partition)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def unpause(self, partitions: set[tuple[str, int]]) -> None:
        known = partitions & self.returned.keys()
        fetched = known & self.paused & self.emitting
        assert self.buffer.unpause(known) == {partition: self.next_offset[partition] for partition in fetched}
        self.paused -= known

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)), offset=st.integers(0, 80))
    def advance(self, partitions: set[tuple[str, int]], offset: int) -> None:
        """The application has others read paused partitions: nothing passes through, and the marks say that it did."""
        known = partitions & self.paused & self.emitting
        moved = {partition: self.returned[partition] for partition in known if self.returned[partition] <= offset}
        advances = self.buffer.advance(dict.fromkeys(partitions, offset))
        assert {partition: advance.begin for partition, advance in advances.items()} == moved
        assert all(self.buffer.generation(tp) == advance.generation for tp, advance in advances.items())
        for partition in moved:
            self.expected[partition] = []
            self.returned[partition] = self.next_offset[partition] = offset

    @precondition(lambda self: self.returned)
    @rule(partition=st.sampled_from(PARTITIONS))
    def forget(self, partition: tuple[str, int]) -> None:
        self.buffer.forget([partition])
        for some in (self.emitting, self.again, self.paused):
            some.discard(partition)
        for known in (self.expected, self.returned, self.finished, self.next_offset):
            known.pop(partition, None)

    @rule()
    def hold_back(self) -> None:
        """Only of what is there to be returned, and never so that nobody fetches although somebody lacks records."""
        pausing = self.buffer.held_back()
        share = max(1, LIMIT // max(1, len(self.returned)))
        assert all(len(self.expected[partition]) >= share for partition in pausing)
        assert pausing <= self.emitting
        assert not pausing or self.settings.prefetch is Prefetch.PER_PARTITION

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
    def what_is_counted_in_is_counted_out(self) -> None:
        """In `take` or `_drop_records`, forget the bytes of a chunk, or of what was taken of one."""
        chunks = [chunk for held in self.buffer._partitions.values() for chunk in held.chunks]
        aside = [self.buffer._partitions[tp] for tp in self.paused]
        assert self.buffer._aside_bytes == sum(held.size_bytes for held in aside) <= MAX_BYTES
        assert self.buffer._aside_count == sum(held.count for held in aside) <= MAX_RECORDS
        assert self.buffer._byte_count + self.buffer._aside_bytes == sum(chunk.size_bytes for chunk in chunks)
        assert all(chunk.size_bytes >= 0 and chunk.taken < len(chunk.messages) for chunk in chunks)
        assert sum(len(chunk.messages) - chunk.taken for chunk in chunks) == self.buffer.retained_count

    @invariant()
    def bounded(self) -> None:
        held = sum(len(offsets) for partition, offsets in self.expected.items() if partition not in self.paused)
        assert held <= 2 * MAX_RECORDS  # a partition that is no longer paused brings what was kept of it
        assert self.buffer.record_count == held
        share = max(1, LIMIT // max(1, len(self.returned)))
        if self.settings.prefetch is not Prefetch.PER_PARTITION:
            wanted = held < LIMIT
        else:
            wanted = any(len(self.expected[tp]) < share for tp in self.emitting - self.paused)
        if not wanted or held >= MAX_RECORDS:
            assert self.buffer.room == 0
        elif held < LIMIT:
            assert self.buffer.room == MAX_RECORDS - held


TestBuffer = BufferMachine.TestCase


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=8), limit=st.integers(8, 200))
def test_shares_are_equal_but_for_who_has_less(counts: list[int], limit: int) -> None:
    shares = equal_shares(counts, limit)
    assert sum(shares) == min(limit, sum(counts))
    for share, count in zip(shares, counts, strict=True):
        assert 1 <= share <= count
        assert share == count or share >= max(shares) - 1


def test_what_some_cannot_fill_goes_to_the_others() -> None:
    assert equal_shares([100, 2, 100], 30) == [14, 2, 14]


def test_partitions_are_taken_in_turn() -> None:
    buffer = RecordBuffer(ROOMY)
    for partition in PARTITIONS[:2]:
        buffer.admit(partition, GENERATION, 0)
        put(buffer, partition, list(range(10)))
    order = [run.partition for _ in range(4) for run in buffer.take(5)]
    assert order == [0, 1, 0, 1]


def test_a_resumed_partition_takes_again_what_was_dropped() -> None:
    buffer = RecordBuffer(ROOMY)
    partition = PARTITIONS[0]
    buffer.admit(partition, GENERATION, 0)
    put(buffer, partition, list(range(10)))
    buffer.take(4)
    buffer.stop([partition])
    buffer.resume([partition])
    assert buffer.fetched() == {partition: 4}
    put(buffer, partition, list(range(10)))
    assert [message.offset() for message in buffer.take(100)[0].messages] == [4, 5, 6, 7, 8, 9]


def test_bytes_bound_what_is_fetched_and_are_given_back() -> None:
    buffer = RecordBuffer(BufferSettings(limit=100, max_records=100, max_bytes=MAX_BYTES))
    buffer.admit(PARTITIONS[0], GENERATION, 0)
    put(buffer, PARTITIONS[0], list(range(15)))
    assert buffer.room == 0
    buffer.take(1)
    assert buffer.room == 100 - 14
    put(buffer, PARTITIONS[0], list(range(15, 30)))
    assert buffer.room == 0
    buffer.take(None)
    assert buffer.room == 100
    put(buffer, PARTITIONS[0], list(range(30, 44)))
    assert buffer.room == 100 - 14
    buffer.stop([PARTITIONS[0]])
    buffer.resume([PARTITIONS[0]])
    put(buffer, PARTITIONS[0], list(range(30, 44)))
    assert buffer.room == 100 - 14


def per_partition() -> RecordBuffer:
    """A hot partition has taken half of the buffer, a cold one has nothing."""
    buffer = RecordBuffer(
        BufferSettings(limit=10, max_records=40, max_bytes=1_000_000, prefetch=Prefetch.PER_PARTITION)
    )
    for partition in PARTITIONS[:2]:
        buffer.admit(partition, GENERATION, 0)
    put(buffer, PARTITIONS[0], list(range(19)))
    return buffer


def test_what_an_interrupt_dropped_takes_no_room() -> None:
    """In `RecordBuffer.begin_again`, keep the count of records or of bytes."""
    buffer = RecordBuffer(BufferSettings(LIMIT, MAX_RECORDS, max_bytes=3 * RECORD_BYTES))
    for partition in PARTITIONS:
        buffer.admit(partition, GENERATION, 0)
        put(buffer, partition, [0])
    assert buffer.room == 0
    buffer.begin_again()
    assert (buffer.room, buffer.record_count) == (MAX_RECORDS, 0)
    assert buffer.again() == dict.fromkeys(PARTITIONS, 0)


def test_what_was_set_aside_before_an_interrupt_takes_no_room() -> None:
    """In `RecordBuffer.begin_again`, keep the count or the bytes of what is set aside."""
    one, other = PARTITIONS[:2]
    for settings in (
        BufferSettings(LIMIT, 5, max_bytes=1_000 * RECORD_BYTES),
        BufferSettings(LIMIT, 100, max_bytes=5 * RECORD_BYTES),
    ):
        buffer = RecordBuffer(settings)
        for partition in (one, other):
            buffer.admit(partition, GENERATION, 0)
        put(buffer, one, [0, 1, 2])
        buffer.pause([one])
        buffer.begin_again()
        buffer.again()
        put(buffer, other, [0, 1, 2])
        buffer.pause([other])
        assert buffer.unpause([other]) == {other: 3}, settings  # it was kept


@pytest.mark.parametrize(
    "settings",
    [BufferSettings(LIMIT, 5, max_bytes=1_000 * RECORD_BYTES), BufferSettings(LIMIT, 100, max_bytes=5 * RECORD_BYTES)],
)
def test_records_and_bytes_of_paused_partitions_are_bounded(settings: BufferSettings) -> None:
    """In `RecordBuffer._set_aside`, forget the bound of the records or of the bytes."""
    one, other = PARTITIONS[:2]
    buffer = RecordBuffer(settings)
    for partition in (one, other):
        buffer.admit(partition, GENERATION, 0)
        put(buffer, partition, [0, 1, 2])
        buffer.pause([partition])
    assert buffer.retained_count == 3
    assert buffer.unpause([one, other]) == {one: 3, other: 0}


def test_an_unpaused_partition_has_its_turn_beside_others() -> None:
    """In `RecordBuffer.unpause`, make it ready only if nothing else is."""
    buffer = RecordBuffer(ROOMY)
    for partition in PARTITIONS[:2]:
        buffer.admit(partition, GENERATION, 0)
        put(buffer, partition, [0, 1, 2])
    buffer.pause([PARTITIONS[0]])
    buffer.unpause([PARTITIONS[0]])
    assert sorted(run.partition for run in buffer.take(100)) == [0, 1]


def test_only_what_is_still_fetched_is_fetched_again() -> None:
    """In `RecordBuffer.again`, return partitions that were forgotten, stopped or paused after the interrupt."""
    buffer = RecordBuffer(BufferSettings(LIMIT, MAX_RECORDS, MAX_BYTES))
    partitions = [("t", number) for number in range(4)]
    for partition in partitions:
        buffer.admit(partition, GENERATION, 5)
    buffer.begin_again()
    buffer.forget([partitions[0]])
    buffer.stop([partitions[1]])
    buffer.pause([partitions[2]])
    assert buffer.again() == {partitions[3]: 5}


def test_what_was_taken_under_a_former_start_is_not_undone() -> None:
    """In `RecordBuffer.begin_again`, go back for a run of any generation."""
    buffer = RecordBuffer(BufferSettings(LIMIT, MAX_RECORDS, MAX_BYTES))
    buffer.admit(PARTITIONS[0], GENERATION, 0)
    put(buffer, PARTITIONS[0], [0, 1])
    taken = buffer.take(None)
    buffer.admit(PARTITIONS[0], GENERATION + 1, 2)
    buffer.begin_again(taken)
    assert buffer.again() == {PARTITIONS[0]: 2}


def test_who_retains_more_than_its_share_is_held_back_only_when_the_buffer_is_crowded() -> None:
    buffer = per_partition()
    assert buffer.room > 0
    assert buffer.held_back() == frozenset()
    put(buffer, PARTITIONS[0], [19])
    assert buffer.held_back() == {PARTITIONS[0]}
    assert buffer.room == 20  # for the others


def test_who_is_held_back_goes_on_when_its_share_is_gone() -> None:
    buffer = per_partition()
    put(buffer, PARTITIONS[0], [19])
    buffer.held_back()
    buffer.take(15)
    assert buffer.held_back() == {PARTITIONS[0]}
    buffer.take(1)
    assert buffer.held_back() == frozenset()


def test_nobody_is_held_back_while_all_have_their_share() -> None:
    buffer = per_partition()
    put(buffer, PARTITIONS[1], list(range(5)))
    assert buffer.room == 0
    assert buffer.held_back() == frozenset()


def test_bytes_of_paused_records_are_counted_out_as_they_were_counted_in() -> None:
    """Otherwise, after some pauses, there would be no more room for what is set aside."""
    buffer, partition = RecordBuffer(BufferSettings(limit=100, max_records=100, max_bytes=10)), ("t", 0)
    buffer.admit(partition, 1, 0)
    buffer.put(partition, messages(partition, [0, 1]), 8)
    for _ in range(5):
        buffer.pause([partition])
        assert buffer.retained_count == 2
        buffer.unpause([partition])
