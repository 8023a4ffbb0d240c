"""A region whose application keeps a state for each partition: it is stored, then the offset is committed.

The commit is fenced by the partition's owner, and names which copy is the valid one. So neither a crash nor a planned
move concerns any other partition, and no member waits for another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from consumer_agent.consumer import Consumer
from consumer_agent.errors import CommitFailedError, CommitTimeoutError, ConsumerStateError
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.records import Batch
from consumer_agent.region.central_source import missed
from consumer_agent.region.figures import Figures
from consumer_agent.region.own_state import Checkpoint, Handlers
from consumer_agent.runtime.clock import now_ms
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Finished
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Merge

POLL_S = 0.1
RETRY_S = 1.0  # after a commit that failed


class PartitionStates:
    """The states of the partitions that one consumer holds."""

    def __init__(self, consumer: Consumer, every_s: float, handlers: Handlers) -> None:
        """Start without partitions; `hooks` are called within the consumer's polls."""
        self._consumer, self._every_s, self._handlers = consumer, every_s, handlers
        self._frontend = consumer._frontend  # noqa: SLF001  # both are parts of one API
        self._processed: dict[TopicPartition, int] = {}  # next offsets, of partitions that the application knows
        self._stored: dict[TopicPartition, int | None] = {}  # next offsets of the copies that are valid
        self._restored: dict[TopicPartition, int] = {}  # generations of the partitions whose state was restored
        self._given_up: dict[TopicPartition, tuple[int, int]] = {}  # their generations, and next offsets of the copies
        self._begins: dict[TopicPartition, tuple[int, int]] = {}  # generations, and where each partition began in it
        self._batch = Batch()
        self._left: set[TopicPartition] = set()  # partitions of the batch, given up or lost since it was returned
        self._is_given = True  # the application got the batch
        self._may_have_missed = True  # a callback may have been cut off since the last `_catch_up`
        self._due_s = time.monotonic() + every_s
        self.figures = Figures()
        self._is_closed = self._is_stopped = False
        self._is_torn = False  # a batch is in hand, or is being read: it may be processed in part, or not at all
        self._may_store = True  # False after an exception, or a torn batch
        self.hooks = {Tell.ASSIGNED: self._assigned, Tell.REVOKE: self._revoked, Tell.LOST: self._forget}

    # ---- the application's calls

    def batches(self) -> Iterator[Batch]:
        """Return batches, until the consumer is closed, or stopped."""
        self._may_have_missed = True
        while not self._frontend.is_closed and not self._is_stopped:
            self._is_torn = True
            self._processed_batch()
            if self._may_have_missed:
                self._catch_up()
                self._may_have_missed = False
            if time.monotonic() >= self._due_s:
                self._store_and_commit(list(self._processed))
            self._is_given = False
            self._batch = self._consumer.poll(POLL_S)  # no call in between: a signal's handler may raise
            if self._batch:
                self._is_given = True
                yield self._batch
            self._is_torn = False

    def _return_what_was_not_given(self) -> None:
        """Return a batch again that the application did not get, as a signal's handler has raised meanwhile."""
        if self._batch and not self._is_given:
            held = self._consumer.position()
            first = {tp: records[0].offset for tp, records in self._batch.by_partition().items() if tp in held}
            self._consumer.seek(first)
            self._batch = Batch()

    def stop(self) -> None:
        """Return no further batch."""
        self._is_stopped = True

    def checkpoint(self, timeout_s: float) -> bytes:
        """Store the states of all partitions, commit, and return their offsets."""
        self._may_have_missed = True  # also for an iteration that goes on after an exception of this
        self._processed_batch()
        self._catch_up()
        self._store_and_commit(list(self._processed), timeout_s)
        self._is_torn = False
        return documents.encode_merge(Merge(1, self._processed))

    def reset(self, data: bytes | None, timeout_s: float) -> None:
        """Go back to the copies that are valid; None: to the beginnings of the partitions, without any state.

        Raises:
            NodeContentError: these bytes describe no checkpoint.
            ConsumerStateError: a partition has a younger copy.

        """
        self._may_have_missed = True  # as in `checkpoint`
        self._processed_batch()
        self._catch_up()
        held = set(self._processed)
        if data is None:
            begins: Mapping[TopicPartition, int] = self._consumer.beginning_offsets(held, timeout_s=timeout_s)
            anew = held & begins.keys() & self._restored.keys()
            self._begins |= {tp: (self._restored[tp], begins[tp]) for tp in anew}  # where a state without a copy begins
            self._restore(dict.fromkeys(held), begins)
            return
        offsets = {tp: at for tp, at in documents.decode_merge(data).offsets.items() if tp in held}
        for (topic, number), offset in sorted(offsets.items()):
            if self._stored.get((topic, number)) != offset:
                known = self._stored.get((topic, number))
                if known is None:
                    text = "no copy is valid for where reading goes on; make a checkpoint first"
                    raise ConsumerStateError(f"{topic}/{number}: {text}")
                raise ConsumerStateError(f"{topic}/{number}: the copy at {offset} is retired; the last is at {known}")
        self._restore(dict(offsets), offsets)

    def metrics(self) -> dict[str, float]:
        """Return figures by name."""
        return self.figures.by_name(len(self._processed), len({topic for topic, _number in self._processed}))

    def close(self, *, is_clean: bool) -> None:
        """Leave the group; if clean, and not within a batch, what was processed is stored first."""
        is_clean = is_clean and not self._is_torn and not self._is_closed
        self._is_closed, self._may_store = True, is_clean
        if is_clean and self._frontend.is_own_process:
            self._processed_batch()
        self._consumer.close()

    # ---- the consumer's callbacks

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        """Restore the states of new partitions as of their committed offsets.

        Not of those on whose former records the application still works: the next request for a batch restores them.
        """
        self.figures.rebalances += 1
        new = [tp for tp in partitions if tp not in self._left]
        self._may_have_missed = self._may_have_missed or len(new) < len(partitions)
        if new:
            self._restore_new(new)

    def _catch_up(self) -> None:
        """Do what a signal's exception has cut off: a callback that has begun is not called again."""
        gone, new = missed(self._consumer, self._restored)
        if gone:
            self._forget(gone)
        if new:
            self._restore_new(new)

    def _restore_new(self, partitions: list[TopicPartition]) -> None:
        begun_ms = now_ms()
        generations, positions = self._consumer.generation(), self._consumer.position()
        try:
            committed = self._consumer.committed(partitions)
        except ConsumerStateError:
            now = self._consumer.generation()
            held = [tp for tp in partitions if tp in now]
            if held == partitions:
                raise
            if held:
                self._restore_new(held)
            return  # the others are lost: `on_lost` follows
        self._stored.update(committed)
        self._processed.update({tp: positions[tp] for tp in partitions if tp in positions})
        copies = committed | self._copies_of(partitions, generations)
        self._handlers.reset(Checkpoint(offsets=copies))
        anew = [tp for tp, at in copies.items() if at is None and tp in self._processed and self._may_store]
        self._continue_at(self._behind(copies, generations, positions), anew)
        self._restored |= {tp: generations[tp] for tp in partitions if tp in generations}  # else `on_lost` follows
        self.figures.resets.note(now_ms() - begun_ms)

    def _behind(
        self,
        copies: Mapping[TopicPartition, int | None],
        generations: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return where to continue instead of behind records that no copy has.

        A signal's exception has kept `on_revoke` from storing their state, and then the move was cancelled.
        """
        known = {tp: one for tp, one in self._begins.items() if one[0] == generations.get(tp)}
        new = copies.keys() & generations.keys() & positions.keys()
        self._begins = {tp: (generations[tp], positions[tp]) for tp in new} | known
        wanted = {tp: self._begins[tp][1] if at is None else at for tp, at in copies.items() if tp in self._begins}
        return {tp: at for tp, at in wanted.items() if positions.get(tp, at) != at}

    def _copies_of(
        self, partitions: list[TopicPartition], generations: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the next offsets of copies of partitions that were to move, and stay: reading goes on behind them."""
        given_up = {tp: self._given_up.pop(tp) for tp in partitions if tp in self._given_up}
        return {tp: at for tp, (generation, at) in given_up.items() if generation == generations.get(tp)}

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        """Store the states of just the partitions that move; their final offsets go with the acknowledgement.

        Not those of a batch on which the application still works: it has polled meanwhile, and they have a part of it.
        """
        self.figures.rebalances += 1
        if not self._is_torn:
            self._processed_batch()
        in_hand = self._batch.by_partition()
        whole = [tp for tp in partitions if tp not in in_hand]
        if self._may_store:
            self._store([tp for tp in whole if tp in self._processed])
            self._note_given_up(whole)
        self._forget(partitions)

    def _note_given_up(self, partitions: list[TopicPartition]) -> None:
        held = self._consumer.generation()  # until the coordinator knows that they are given up, or cancels that
        placed = self._restored.keys() & self._processed.keys()  # the others have no position yet
        new = {tp: (self._restored[tp], self._processed[tp]) for tp in partitions if tp in placed}
        self._given_up = {tp: known for tp, known in (self._given_up | new).items() if tp in held}

    def _forget(self, partitions: list[TopicPartition]) -> None:
        self._left |= self._batch.by_partition().keys() & set(partitions)
        for partition in partitions:
            self._processed.pop(partition, None)
            self._stored.pop(partition, None)
            self._restored.pop(partition, None)

    # ---- what both consist of

    def _processed_batch(self) -> None:
        """Note that the application has processed the last batch."""
        self._return_what_was_not_given()
        held = self._consumer.position()
        batch = self._batch.by_partition()
        read = {tp: records for tp, records in batch.items() if tp in held and tp not in self._left}
        for tp, records in read.items():
            if records[0].offset < self._processed.get(tp, 0):
                self._stored.pop(tp, None)  # Kafka had others there: a copy at the same offset is of another state
        self._processed.update({tp: records[-1].offset + 1 for tp, records in read.items()})
        self._batch, self._left = Batch(), set()  # last: a signal's handler may raise at any point
        self._note_going_back(held)

    def _note_going_back(self, positions: Mapping[TopicPartition, int]) -> None:
        """Where reading goes on before what a state has, commit nothing until a copy of it is stored there.

        Kafka has lost records that were read from there on, or the application has sought.
        """
        back = {tp: at for tp, at in positions.items() if at < self._processed.get(tp, at)}
        generations = self._consumer.generation() if back else {}
        for tp, at in back.items():
            if self._restored.get(tp, 0) == generations.get(tp):  # else its `on_assign` follows
                self._finish_at({tp: NO_OFFSET})
                self._stored.pop(tp, None)
                self._processed[tp] = at

    def _finish_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Prevent commits of records that were finished further on."""
        shared = self._frontend.shared
        with shared.lock:
            for tp, at in offsets.items():
                with suppress(CommitFailedError, ConsumerStateError):  # it is lost, or Kafka has lost records of it
                    shared.buffer.finish_at({tp: Finished(at)})

    def _store(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Let the application store the states that have changed, and mark their records as finished."""
        changed = {tp: self._processed[tp] for tp in partitions if self._processed[tp] != self._stored.get(tp)}
        if changed:
            begun_ms = now_ms()
            self._handlers.checkpoint(Checkpoint(offsets=changed))
            self._consumer.finish(changed)
            self.figures.checkpoints.note(now_ms() - begun_ms)
        return changed

    def _store_and_commit(self, partitions: list[TopicPartition], timeout_s: float | None = None) -> None:
        self._due_s = time.monotonic() + self._every_s
        changed = self._store(partitions)
        if not changed:
            return
        try:
            if timeout_s is None:
                self._consumer.commit(changed)
            else:
                self._consumer.commit(changed, timeout_s=timeout_s)
        except (CommitFailedError, CommitTimeoutError, ConsumerStateError):
            # ZooKeeper is away; partitions are lost: `on_lost` follows; or Kafka has lost records that were read.
            self._due_s = time.monotonic() + RETRY_S
            if timeout_s is not None:
                raise
            return
        self._stored.update(changed)
        self._handlers.retire(Checkpoint(offsets=changed))

    def _restore(self, offsets: Mapping[TopicPartition, int | None], positions: Mapping[TopicPartition, int]) -> None:
        self._handlers.reset(Checkpoint(offsets=offsets))
        self._continue_at(positions, [tp for tp in positions if offsets[tp] is None])
        self._is_torn = False

    def _continue_at(self, positions: Mapping[TopicPartition, int], anew: list[TopicPartition]) -> None:
        """Continue at these offsets. States that begin `anew` are stored first, as an unclean end commits there."""
        self._processed.update(positions)
        if positions:
            self._consumer.seek(positions)
        for tp in anew:
            self._stored.pop(tp, None)  # a copy at the same offset is of another state
        self._store(anew)
        self._finish_at(positions)
