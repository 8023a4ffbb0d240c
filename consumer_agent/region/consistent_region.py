"""A consistent region: the results of a group's records, each exactly once.

Transactions of a sink ensure this: its own offsets say what is stored, and its generations fence out a consumer that
was suspended. Or checkpoints of a state that the application keeps itself do (`own_state.py`). Why that is enough:
`docs/decisions/0033-consistent-region.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from consumer_agent.consumer import ITERATION_TIMEOUT_S, Consumer
from consumer_agent.errors import ConsumerStateError
from consumer_agent.records import Batch
from consumer_agent.region.joining import DEFAULT_RESET_S, checked_every, own_state
from consumer_agent.region.own_state import PARTITION, SINK, Checkpoint, OwnState, checked_handlers, checked_recovery
from consumer_agent.region.progress import Extent, Progress
from consumer_agent.region.sink import Advance, Claim, Keeping, Sink
from consumer_agent.region.sinks import as_sink
from consumer_agent.runtime.notices import Tell
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

_log = logs.named(__name__)


class ConsistentRegion:
    """Reads a consumer's batches, and keeps their results consistent with the group's offsets.

    Make it before the consumer's first poll; closing it closes the consumer. Use it from the consumer's thread.
    `recovery`: where the results are, which decides what has to be restored after a crash.

    - `sink`: in a database; `transaction` stores them together with the progress. `every_s`: how often the group's
      offsets, by which tools show lag, follow those of the sink.
    - `partition`: in a state for each partition, which `on_checkpoint(checkpoint)` stores when it begins, every
      `every_s`, and before a partition moves, and `on_reset(checkpoint)` restores.
    - `group`: in one state of each member. All members store theirs every `every_s`; after a crash, all restore them.
      `member`: a name that a restarted process has again (default: the instance id, else the client id); `reset_s`:
      how long a checkpoint or a reset may take.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        name: str,
        every_s: float = 10.0,
        recovery: str = SINK,
        member: str | None = None,
        reset_s: float = DEFAULT_RESET_S,
        on_checkpoint: Callable[[Checkpoint], object] | None = None,
        on_reset: Callable[[Checkpoint | None], object] | None = None,
        on_retire: Callable[[Checkpoint], object] | None = None,
    ) -> None:
        """Make the consumer a member of the region `name`; `on_retire(checkpoint)`: earlier copies may be deleted.

        Raises:
            ConfigurationError, InvalidNameError: an argument is not allowed.
            ConsumerStateError: the consumer has polled already, or is in a region.

        """
        if not isinstance(consumer, Consumer):
            raise ConfigurationError(f"consumer: a Consumer is expected, not {type(consumer).__name__}")
        self.name = paths.validate_name("region", name)
        self._consumer = consumer
        self._frontend = consumer._frontend  # noqa: SLF001  # both are parts of one API
        config = self._frontend.config
        interval_ms = int(1_000 * checked_every(every_s))
        self.group = config.group
        handlers = checked_handlers(checked_recovery(recovery), on_checkpoint, on_reset, on_retire)
        hooks: Mapping[Tell, Callable[[list[TopicPartition]], object]]
        hooks = {Tell.ASSIGNED: self._assigned, Tell.LOST: self._lost}
        self._own: OwnState | None = None  # None: `transaction` takes its place
        if handlers is not None:
            named = self.name, member, float(every_s), reset_s
            self._own, hooks = own_state(consumer, recovery, named, handlers)
        config = replace(config, enable_auto_finish=False, auto_commit_interval_ms=interval_ms)
        consumer._join_region(replace(config, enable_auto_commit=recovery != PARTITION), hooks)  # noqa: SLF001
        self._is_stopped = False
        self._progress = Progress()
        self._sink: Sink | None = None  # that of the last transaction
        self._database: Any = None  # which it was made for
        self._in_hand: Batch | None = None  # returned, until the next one is requested or a transaction begins
        self._storing: Mapping[TopicPartition, Extent] = {}  # by a transaction, until it is stored or returned again
        self._in_use: Sink | None = None  # a sink whose transaction may be open
        self._batch: dict[TopicPartition, Extent] = {}  # returned, not yet in a transaction

    # ---- reading

    def __iter__(self) -> Iterator[Batch]:
        """Return batches of records, until `stop` or `close`; the next request shows that one is processed.

        With a sink, a batch that a `break` or an exception has left before its transaction is returned again.
        """
        if self._own is not None:
            yield from self._own.batches()
            return
        while not self._frontend.is_closed and not self._is_stopped:
            self._return_what_was_left()
            self._in_hand = self._consumer.poll(ITERATION_TIMEOUT_S)  # no call in between: a signal's handler may raise
            if self._in_hand:
                self._batch = _joined(self._without_transaction(), _extents(self._in_hand))
                yield self._in_hand
            self._in_hand = None

    def _return_what_was_left(self) -> None:
        """Return a batch again if the iteration was left within it, or its transaction was not ended."""
        if self._storing or self._in_use is not None:
            self.undo()
        if not self._in_hand:
            return
        generations = self._consumer.generation()
        left = {tp: one for tp, one in _extents(self._in_hand).items() if generations.get(tp) == one.generation}
        batch = {tp: extent for tp, extent in self._batch.items() if tp not in left}
        for partition, extent in left.items():
            known = self._batch.get(partition, extent)
            if known.generation == extent.generation and known.first < extent.first:
                batch[partition] = replace(known, after=extent.first)  # earlier batches without a transaction
        self._seek({partition: extent.first for partition, extent in left.items()})
        self._batch, self._in_hand = batch, None

    def _without_transaction(self) -> dict[TopicPartition, Extent]:
        """Return what the last batch had of partitions that are still owned, if nothing of it was stored."""
        generations = self._consumer.generation() if self._batch else {}
        return {tp: extent for tp, extent in self._batch.items() if extent.generation == generations.get(tp)}

    def transaction(self, database: Any) -> Transaction:  # noqa: ANN401  # a connection of any known database, or a sink
        """Return a context manager: what it yields writes rows, and leaving it commits them with the batch's offsets.

        Use it once for each batch; the next transaction also advances the partitions of a batch without one. If an
        exception leaves it, nothing is stored, and the batch is returned again. The same happens, without an
        exception, if the sink shows that another consumer has claimed a partition, or continues elsewhere.

        Raises:
            ConfigurationError: no sink for such a database is known.
            ConsumerStateError: there is no batch, or it is stored already.

        """
        if self._own is not None:
            raise ConsumerStateError("transaction: the region does not recover by a sink")
        self._frontend.require_process("transaction")  # after a fork, a sink in Kafka would wait for ever
        if not self._batch:
            raise ConsumerStateError("transaction: there is no batch that is not stored already; use it once for each")
        return Transaction(self, self._sink_of(database))

    def _sink_of(self, database: Any) -> Sink:  # noqa: ANN401
        if self._sink is None or database is not self._database:
            self._sink, self._database, self._progress = as_sink(database), database, Progress()
        return self._sink

    def checkpoint(self, timeout_s: float = DEFAULT_RESET_S) -> bytes:
        """Make a checkpoint now, and return bytes that describe it; call it between two batches.

        All batches so far count as processed. In a region that recovers as a group, all members store theirs.

        Raises:
            ConsumerStateError: the region recovers by a sink, is closed, or no checkpoint was complete in time.
            CommitFailedError: a partition was lost meanwhile.

        """
        return self._required("checkpoint").checkpoint(timeout_s)

    def reset(self, data: bytes | None, timeout_s: float = DEFAULT_RESET_S) -> None:
        """Go back to the last complete checkpoint, which `data` describes; None: to the beginning.

        In a region that recovers as a group, all members do.

        Raises:
            NodeContentError: `data` describes no checkpoint.
            ConsumerStateError: it is not the last one, or of another region or member; the region recovers by a sink,
            is closed, or was not reset in time.

        """
        self._required("reset").reset(data, timeout_s)

    def metrics(self) -> dict[str, float]:
        """Return figures of the region by name, with the unit last; those with `_total` only grow."""
        return self._required("metrics").metrics()

    def _required(self, method: str) -> OwnState:
        if self._own is None:
            raise ConsumerStateError(f"{method}: the region recovers by a sink")
        return self._own

    def stop(self) -> None:
        """Return no further batch: the iteration ends after this one. Threads and signal handlers may call it."""
        self._is_stopped = True
        if self._own is not None:
            self._own.stop()

    def close(self) -> None:
        """Close the consumer: it leaves its group, after a last checkpoint of the application's state.

        If the iteration was left within a batch, by `break` or by Ctrl-C, no last checkpoint is stored: it is unknown
        how much of the batch the state reflects, so it is read again. `stop` ends an iteration between batches.
        """
        self._close(is_clean=True)

    def _close(self, *, is_clean: bool) -> None:
        """Roll back what an interrupt has left open; after another one, closing again does the rest."""
        try:
            self._roll_back()
        finally:
            if self._own is not None:
                self._own.close(is_clean=is_clean)
            self._consumer.close()

    def __enter__(self) -> Self:
        """Return the region."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception, without storing the state of the application."""
        self._close(is_clean=error is None)

    # ---- the consumer's callbacks

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        """Claim new partitions, if the sink is known, and continue where it says; not within a transaction."""
        if self._sink is not None and self._in_use is None:  # else the next transaction claims
            generations, positions = self._consumer.generation(), self._consumer.position()
            there = [tp for tp in partitions if tp in generations and tp in positions]
            self._in_use = self._sink
            try:
                self._claim(self._sink, {tp: generations[tp] for tp in there}, positions)
                self._in_use = None
            except BaseException:  # the next transaction claims, with a connection that works
                self._forget_sink()
                self._roll_back()
                raise

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self._progress.forget(partitions)

    # ---- what a transaction consists of

    def begin(self, sink: Sink) -> dict[TopicPartition, Advance]:
        """Begin a transaction for the batch in hand; return what it stores, nothing if it has to be rolled back."""
        self._in_use, self._storing, self._batch, self._in_hand = sink, self._batch, {}, None
        try:
            return self._begin(sink, self._storing)
        except BaseException:
            self.undo()
            raise

    def _begin(self, sink: Sink, batch: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, Advance]:
        now = self._consumer.generation()  # a partition may have come back since: its new claim stays
        generations = {tp: one.generation for tp, one in batch.items() if now.get(tp, one.generation) == one.generation}
        moved = self._claim(sink, generations, {tp: extent.first for tp, extent in batch.items()})
        advances = self._progress.advances(batch)
        if moved or len(advances) < len(batch):
            sink.begin(self.group, {})
            refused = batch.keys() & self._progress.refused.keys()
            self._consumer.pause(self._held(refused))  # the application may have resumed them
            return self._return_again(advances)
        refused = sink.begin(self.group, advances)
        if refused:
            self._refuse(refused)
            return self._return_again(advances.keys() - refused)
        return advances

    def stored(self, advances: Mapping[TopicPartition, Advance]) -> None:
        """Note that a transaction is committed: its records are finished."""
        self._progress.stored(advances)
        self._consumer.finish({partition: advance.after for partition, advance in advances.items()})
        self._storing, self._in_use = {}, None

    def undo(self) -> None:
        """After an exception, roll back and return the batch again; claim again, which shows if it is stored after all.

        The next call does what a second interrupt leaves undone.
        """
        try:
            if self._storing:
                self._forget_sink()  # first: without a claim, another batch would be stored after one that is not
                generations = self._consumer.generation()
                again = {tp: one.first for tp, one in self._storing.items() if one.generation == generations.get(tp)}
                self._seek(again)
                self._storing = {}
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        """Leave no transaction open."""
        if self._in_use is None:
            return
        try:
            self._in_use.rollback()
        except Exception:  # of the database: trying again would not help
            self._in_use = None
            raise
        self._in_use = None

    def _forget_sink(self) -> None:
        """Do not use the sink again before the next transaction, as its connection may be lost."""
        progress = Progress()
        self._sink, self._database, self._progress = None, None, progress

    def _claim(
        self, sink: Sink, generations: Mapping[TopicPartition, int], expected: Mapping[TopicPartition, int]
    ) -> bool:
        """Claim what is not claimed yet; return whether a partition continues elsewhere than at the expected offset."""
        unclaimed = self._progress.unclaimed(generations)
        if not unclaimed:
            return False
        kept = generations.keys() | self._consumer.generation().keys()
        self._progress.keep(kept)
        if isinstance(sink, Keeping):
            sink.keep(kept)
        origins = self._frontend.shared.origins
        claims = [Claim(tp, generations[tp], *origins[tp], expected[tp]) for tp in unclaimed]
        answer = sink.claim(self.group, claims)
        elsewhere = self._progress.note_claims(claims, answer, expected)
        self._refuse(set(unclaimed) - answer.keys())
        if elsewhere:
            self._seek(elsewhere)
        return bool(elsewhere)

    def _refuse(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no more records of partitions that a younger consumer has claimed, until they are assigned anew."""
        refused = sorted(partitions)
        if not refused:
            return
        self._progress.refuse(refused)
        topic, number = refused[0]
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        _log.warning(
            "%s/%s%s: a younger consumer has claimed it in the sink; its records are left to it", topic, number, more
        )
        self._consumer.pause(self._held(refused))

    def _return_again(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Advance]:
        """Continue where the sink is; return that nothing of the batch is stored."""
        self._seek(self._progress.positions(partitions))
        self._storing = {}
        return {}

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer.seek({tp: positions[tp] for tp in self._held(positions)})

    def _held(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Leave out what was given up, or lost, since the batch was returned: the application has polled meanwhile."""
        shared = self._frontend.shared
        with shared.lock:
            return [tp for tp in partitions if shared.is_known(tp) or shared.was_known(tp)]


class Transaction:
    """A transaction of a sink for one batch."""

    def __init__(self, region: ConsistentRegion, sink: Sink) -> None:
        """Prepare; nothing is begun before `__enter__`."""
        self._region = region
        self._sink = sink
        self._advances: dict[TopicPartition, Advance] = {}

    def __enter__(self) -> Any:  # noqa: ANN401  # each database has its own type
        """Begin; return what the application writes rows with."""
        self._advances = self._region.begin(self._sink)
        try:
            return self._sink.connection
        except BaseException:  # a signal's exception
            self._region.undo()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back after an exception and if the batch may not be stored."""
        if error is not None or not self._advances:
            self._region.undo()
            return
        try:
            self._sink.commit()
            self._region.stored(self._advances)
        except BaseException:
            self._region.undo()
            raise


def _extents(batch: Batch) -> dict[TopicPartition, Extent]:
    """Return the extent of each partition's records; a partition may have several runs in a batch."""
    extents: dict[TopicPartition, Extent] = {}
    for partition, records in batch.by_partition().items():
        first, last = records[0], records[-1]
        extents[partition] = Extent(first.offset, last.offset + 1, last.generation)
    return extents


def _joined(
    earlier: Mapping[TopicPartition, Extent], later: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, Extent]:
    """Return the extents of two batches that one transaction stores."""
    both = {**earlier, **later}
    return {tp: replace(extent, first=earlier[tp].first) if tp in earlier else extent for tp, extent in both.items()}
