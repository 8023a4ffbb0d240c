"""The bounded buffer between fetching and the application: messages and positions by partition.

Pure: no thread, no clock. Each partition has two marks: `returned` is the next offset that the application gets,
`finished` the offset after the records that it has finished (the offset to commit). A stopped partition keeps its marks
until it is forgotten, so that the application can still commit the records it was given.

Two heuristics of Kafka's KIP-41 decide which partitions' records a call returns, and when more are fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from consumer_agent.errors import CommitFailedError, ConsumerStateError
from consumer_agent.membership.events import Position
from consumer_agent.runtime.buffered_partition import BufferedPartition, Chunk, Messages
from consumer_agent.runtime.shares import equal_shares
from zkrebalancer.protocol.fields import TopicPartition


class Run(NamedTuple):
    """Records of one partition in offset order, as they are returned; never empty."""

    topic: str
    partition: int
    generation: int
    messages: Messages


class Finished(NamedTuple):
    """Where the application has finished a partition's records: the next offset, and the generation, if known."""

    offset: int
    generation: int | None = None  # of the record that the application named


class Advance(NamedTuple):
    """A partition's position before `advance`, and its generation."""

    begin: int  # its position before
    generation: int


class Fairness(Enum):
    """Which buffered records a call returns. The next call begins with the partitions that got none."""

    GREEDY = "greedy"  # as many as possible of each partition in turn
    PROPORTIONAL = "proportional"  # the same number of each; what some can't fill goes to the others


class Prefetch(Enum):
    """When more records are fetched."""

    TOTAL = "total"  # when fewer records than the limit are retained
    PER_PARTITION = "per_partition"  # when a partition retains less than its share of the limit


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """How much is returned and retained. One fetch may exceed `max_bytes`, none exceeds `max_records`."""

    limit: int  # the usual one of a call
    max_records: int
    max_bytes: int
    fairness: Fairness = Fairness.GREEDY
    prefetch: Prefetch = Prefetch.TOTAL
    begins_paused: bool = False  # until `unpause`, others read the partitions and report it with `advance`


class RecordBuffer:
    """Messages by partition, bounded in number and bytes."""

    def __init__(self, settings: BufferSettings) -> None:
        """Begin empty."""
        self.settings = settings
        self.keeps_copies = False  # of states: every finished offset has one, also where reading goes back
        self._partitions: dict[TopicPartition, BufferedPartition] = {}
        self._unfinished: set[TopicPartition] = set()  # partitions whose marks may differ
        self._again: set[TopicPartition] = set()  # nothing of these is put until Kafka's client fetches them again
        self._ready: deque[TopicPartition] = deque()  # partitions with records, in the order of taking
        self.record_count = self._byte_count = 0  # of what may be taken
        self._aside_count = self._aside_bytes = 0  # of paused partitions

    # ---- fetching

    @property
    def room(self) -> int:
        """How many records may be put now; 0 while no more should be fetched."""
        if self._byte_count >= self.settings.max_bytes:
            return 0
        lacks = self.record_count < self.settings.limit
        wanted = self._some_lack(self._share()) if self.has_shares else lacks
        return max(0, self.settings.max_records - self.record_count) if wanted else 0

    @property
    def has_shares(self) -> bool:
        """Whether each partition may retain a share, however much the others retain."""
        return self.settings.prefetch is Prefetch.PER_PARTITION

    def held_back(self) -> frozenset[TopicPartition]:
        """Return the partitions to pause in Kafka's client, so that others get their share.

        Only when half of the buffer is full and a partition has less than its share, because Kafka's client drops what
        it has prefetched of a paused partition.
        """
        settings, share = self.settings, self._share()
        if not self.has_shares:
            return frozenset()
        is_crowded = 2 * self.record_count >= settings.max_records or 2 * self._byte_count >= settings.max_bytes
        is_extreme = is_crowded and self._some_lack(share)
        for held in self._partitions.values():
            held.held_back = held.wanted and held.count >= share and (held.held_back or is_extreme)
        return frozenset(partition for partition, held in self._partitions.items() if held.held_back)

    def _share(self) -> int:
        return max(1, self.settings.limit // max(1, len(self._partitions)))

    def _some_lack(self, share: int) -> bool:
        return any(held.emitting and held.wanted and held.count < share for held in self._partitions.values())

    def generation(self, partition: TopicPartition) -> int | None:
        """Return the generation under which a partition is emitted; None if it is not."""
        held = self._partitions.get(partition)
        return held.generation if held is not None and held.emitting else None

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Return the lowest offset that may still be put; None if the partition is not emitted."""
        held = self._partitions.get(partition)
        return held.next_offset if held is not None and held.emitting else None

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether these partitions are admitted and not forgotten."""
        return self._partitions.keys() >= set(partitions)

    def put(self, partition: TopicPartition, messages: Messages, size_bytes: int) -> None:
        """Add messages in offset order; drop those seen before, and all of a partition that is not fetched now."""
        held = self._partitions.get(partition)
        if held is None or not held.emitting or not held.wanted or partition in self._again:
            return
        try:
            self._put(partition, held, messages, size_bytes)
        except BaseException:  # a signal's exception, which may come between any two steps
            self.begin_again()
            raise

    def _put(self, partition: TopicPartition, held: BufferedPartition, messages: Messages, size_bytes: int) -> None:
        if messages and messages[0].offset() < held.next_offset:
            messages = [message for message in messages if message.offset() >= held.next_offset]
        if not messages:
            return
        if not held.count:
            self._ready.append(partition)
        held.chunks.append(Chunk(messages, size_bytes))
        held.count += len(messages)
        held.next_offset = messages[-1].offset() + 1
        self._count(len(messages), size_bytes)

    # ---- taking

    @property
    def retained_count(self) -> int:
        """How many records are retained, those of paused partitions included."""
        return self.record_count + self._aside_count

    def take(
        self,
        max_records: int | None,
        among: Collection[TopicPartition] | None = None,
        runs: list[Run] | None = None,
    ) -> list[Run]:
        """Return at most `max_records` records (None: all) of all partitions, or `among` some, added to `runs`.

        Partitions take turns; each gives one run.
        """
        runs = [] if runs is None else runs
        if among is not None:
            others = [partition for partition in self._ready if partition not in among]
            self._ready = deque(partition for partition in self._ready if partition in among)
            self.take(max_records, None, runs)
            self._ready.extend(others)
            return runs
        try:
            self._take(runs, self.record_count if max_records is None else max_records)
        except BaseException:  # as in `put`
            self.begin_again(runs)
            raise
        return runs

    def _take(self, runs: list[Run], limit: int) -> None:
        for count in self._shares(limit):
            partition = self._ready.popleft()
            held = self._partitions[partition]
            messages, size_bytes = held.take(count)
            self._count(-count, -size_bytes)
            returned = messages[-1].offset() + 1
            self._unfinished.add(partition)
            runs.append(Run(*partition, held.generation, messages))
            held.returned = returned  # after it is in `runs`: see `begin_again`
            if held.count:
                self._ready.append(partition)

    # ---- after an interrupt

    def begin_again(self, taken: Collection[Run] = ()) -> None:
        """Undo the taking of these runs and drop all records, as a change may be half done; all are fetched again."""
        for run in taken:
            held = self._partitions.get((run.topic, run.partition))
            if held is not None and held.generation == run.generation:
                held.returned = min(held.returned, run.messages[0].offset())
        self._ready.clear()
        self.record_count = self._byte_count = self._aside_count = self._aside_bytes = 0
        for held in self._partitions.values():
            held.clear()
            held.next_offset = held.returned
        self.fetch_again()

    def fetch_again(self) -> None:
        """Put nothing until Kafka's client continues where this buffer ends: what it handed over since is lost."""
        self._again = {partition for partition in self._partitions if self._is_fetched(partition)}

    @property
    def has_again(self) -> bool:
        """Whether `again` returns anything."""
        return bool(self._again)

    def again(self) -> dict[TopicPartition, int | None]:
        """Return where partitions are to be fetched again; from now on their messages may be put."""
        again, self._again = self._again & self._partitions.keys(), set()
        return {tp: self._partitions[tp].next_offset for tp in again if self._is_fetched(tp)}

    def _shares(self, limit: int) -> list[int]:
        """Return how many records to take of each partition, in the order of taking."""
        counts = [self._partitions[partition].count for partition in self._ready]
        if self.settings.fairness is Fairness.PROPORTIONAL:
            return equal_shares(counts[:limit], limit)
        shares: list[int] = []
        for count in counts:
            if limit <= 0:
                break
            shares.append(min(count, limit))
            limit -= shares[-1]
        return shares

    def finish_at(self, finished: Mapping[TopicPartition, Finished]) -> None:
        """Set what is finished, possibly less than before; if one partition is refused, nothing changes.

        Raises:
            CommitFailedError: a partition is no longer owned, is given up, or was started again since.
            ConsumerStateError: an offset is beyond what was returned.

        """
        for (topic, number), (offset, generation) in finished.items():
            held, where = self._partitions.get((topic, number)), f"{topic}/{number}"
            if held is None or held.let_go:
                raise CommitFailedError(f"{where} no longer belongs to this consumer; others read its records again")
            if generation not in {None, held.generation}:
                text = f"was fetched under generation {generation}, and the partition started again under"
                raise CommitFailedError(f"{where}: the record {text} {held.generation}")
            if offset > held.returned:
                raise ConsumerStateError(f"commit: {where} was returned up to {held.returned}, not up to {offset}")
        for partition, (offset, _generation) in finished.items():
            self._partitions[partition].finished = offset
        self._unfinished.update(finished)

    def finish(self, but: Collection[Run] = ()) -> None:
        """Mark all returned records as finished, but those of these runs, which a poll has yet to return."""
        taken = {(run.topic, run.partition): (run.generation, run.messages[0].offset()) for run in but}
        for partition in self._unfinished & self._partitions.keys():
            self._partitions[partition].finish(taken.get(partition))
        self._unfinished.intersection_update(taken)

    # ---- partitions

    def of_thread(self, thread: int, count: int) -> set[TopicPartition]:
        """Return the partitions of one of `count` consumer threads."""
        return {partition for partition, held in self._partitions.items() if held.thread % count == thread}

    def finish_below(self, finished: Mapping[TopicPartition, Finished]) -> None:
        """Mark the returned records below these offsets as finished; unknown partitions and starts are skipped."""
        for partition, held in self._held(finished):
            offset, generation = finished[partition]
            if generation in {None, held.generation} and (not self.keeps_copies or offset <= held.returned):
                held.finished = max(held.finished, min(offset, held.returned))

    def admit(self, partition: TopicPartition, generation: int, position: int, thread: int = 0) -> None:
        """Accept records of a partition from `position` on."""
        self.forget([partition])
        wanted = not self.settings.begins_paused
        self._partitions[partition] = BufferedPartition(generation, position, position, position, thread, wanted=wanted)

    def place(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Let partitions without a position begin here, with nothing finished; return those that had none."""
        placed = {partition: positions[partition] for partition, held in self._held(positions) if held.returned < 0}
        for partition, held in self._held(placed):
            held.returned = held.finished = held.next_offset = placed[partition]
        return placed

    def unplaced(self) -> list[TopicPartition]:
        """Return the partitions that have no position."""
        return [partition for partition, held in self._partitions.items() if held.emitting and held.returned < 0]

    def reset(self, partition: TopicPartition, position: int) -> bool:
        """Continue from another position, possibly a lower one; False if the partition is not emitted."""
        held = self._partitions.get(partition)
        if held is None or not held.emitting:
            return False
        self._drop_records(partition, held)
        held.go_to(position, keeps_copies=self.keeps_copies)
        self._unfinished.add(partition)
        return True

    def seek(self, positions: Mapping[TopicPartition, int], is_finished: bool) -> dict[TopicPartition, int | None]:
        """Continue from other positions; return what to fetch, and from where.

        With `is_finished` everything below these positions, and nothing above, is finished.
        """
        for partition, position in positions.items():
            held = self._partitions[partition]
            self._drop_records(partition, held)
            held.returned = held.next_offset = position
            if is_finished:
                held.finished = position
            self._unfinished.add(partition)
        return {partition: positions[partition] for partition in positions if self._is_fetched(partition)}

    def pause(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return and accept no records of these partitions until `unpause`; return what to stop fetching.

        What is buffered of them is kept, beside the bounds for the others and up to the same bounds.
        """
        for partition in partitions:
            held = self._partitions[partition]
            if held.wanted:
                self._set_aside(partition, held)
            held.wanted = False
        return dict.fromkeys(partitions)

    def _set_aside(self, partition: TopicPartition, held: BufferedPartition) -> None:
        count, size_bytes = held.count, held.size_bytes
        is_much = self._aside_count + count > self.settings.max_records
        if is_much or self._aside_bytes + size_bytes > self.settings.max_bytes:
            self._drop_records(partition, held)
            held.next_offset = held.returned
        elif count:
            self._ready.remove(partition)
            self._count(-count, -size_bytes)
            self._aside_count += count
            self._aside_bytes += size_bytes

    def unpause(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return and accept records of paused partitions again; return from where to fetch them."""
        paused = [partition for partition in partitions if not self._partitions[partition].wanted]
        for partition in paused:
            held = self._partitions[partition]
            held.wanted = True
            if held.count:
                self._ready.append(partition)
                size_bytes = held.size_bytes
                self._aside_count -= held.count
                self._aside_bytes -= size_bytes
                self._count(held.count, size_bytes)
        return {tp: self._partitions[tp].next_offset for tp in paused if self._is_fetched(tp)}

    def advance(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Advance]:
        """Count records of paused partitions below these offsets as returned; return the partitions that moved."""
        advances: dict[TopicPartition, Advance] = {}
        for partition, held in self._held(offsets):
            offset = offsets[partition]
            if held.emitting and not held.wanted and 0 <= held.returned <= offset:
                self._drop_records(partition, held)
                advances[partition] = Advance(held.returned, held.generation)
                held.returned = held.next_offset = offset
                self._unfinished.add(partition)
        return advances

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records of these partitions and accept no more; their positions stay."""
        for partition, held in self._held(partitions):
            self._drop_records(partition, held)
            held.emitting = held.held_back = False

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """Accept no more commits of these stopped partitions: their last `on_revoke` is over. Others were resumed."""
        for _partition, held in self._held(partitions):
            held.let_go = not held.emitting

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Emit stopped partitions again, from the application's positions."""
        for _partition, held in self._held(partitions):
            if not held.emitting:
                held.emitting, held.let_go = True, False
                held.next_offset = held.returned

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop these partitions with their positions."""
        for partition, held in self._held(partitions):
            self._drop_records(partition, held)
            self._unfinished.discard(partition)
            self._again.discard(partition)
            del self._partitions[partition]

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the marks of every partition, stopped ones included."""
        return {partition: Position(held.returned, held.finished) for partition, held in self._partitions.items()}

    def generations(self) -> dict[TopicPartition, int]:
        """Return the generation in which each partition was started, stopped ones included."""
        return {partition: held.generation for partition, held in self._partitions.items()}

    def emitting(self) -> list[TopicPartition]:
        """Return the partitions whose records are returned, sorted."""
        return sorted(partition for partition, held in self._partitions.items() if held.emitting)

    def emitting_positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition whose records are returned, or are paused, and that has one."""
        emitting = ((tp, held.returned) for tp, held in self._partitions.items() if held.emitting)
        return {partition: returned for partition, returned in emitting if returned >= 0}

    def fetched(self) -> dict[TopicPartition, int]:
        """Return the partitions to fetch, and from where if nothing of them is retained."""
        return {tp: held.returned for tp, held in self._partitions.items() if self._is_fetched(tp)}

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that the application has paused, sorted."""
        return sorted(partition for partition, held in self._partitions.items() if not held.wanted)

    def _held(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, BufferedPartition]]:
        """Return those that are admitted."""
        return [(partition, self._partitions[partition]) for partition in partitions if partition in self._partitions]

    def _is_fetched(self, partition: TopicPartition) -> bool:
        held = self._partitions[partition]
        return held.emitting and held.wanted and held.returned >= 0  # NO_OFFSET: it has no position yet

    def _drop_records(self, partition: TopicPartition, held: BufferedPartition) -> None:
        if held.count and held.wanted:
            self._ready.remove(partition)
            self._count(-held.count, -held.size_bytes)
        elif held.count:
            self._aside_count -= held.count
            self._aside_bytes -= held.size_bytes
        held.clear()

    def _count(self, records: int, size_bytes: int) -> None:
        self.record_count += records
        self._byte_count += size_bytes
