"""The public API: a consumer whose callbacks run in the application's own thread.

A *consumer* is this object. From a registration until its loss or end, it is a *member* of its group, each time under a
new name. An *agent* is a process with consumers.

Three threads work for a consumer: the application's (`runtime/frontend.py`), the machine thread (ZooKeeper and all
decisions, `runtime/machine_thread.py`) and the fetcher's (`kafka/fetcher.py`). They share `runtime/shared_state.py`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from consumer_agent import arguments
from consumer_agent.consumer_base import ConsumerBase
from consumer_agent.records import Batch, Record
from consumer_agent.runtime import question_steps as questions
from consumer_agent.runtime import steps
from consumer_agent.runtime.frontend import Committable
from consumer_agent.runtime.notices import Notice
from consumer_agent.runtime.steps import Block, Callback, Step, Steps, T, Wait
from zkrebalancer.protocol.fields import TopicPartition

ITERATION_TIMEOUT_S = 1.0
COMMIT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
QUESTION_TIMEOUT_S = 10.0

Handler = Callable[[Batch], object]


class Consumer(ConsumerBase):
    """Reads the partitions that the coordinator assigns to this consumer.

    Use it from one thread: `subscribe`, then `poll` (or iterate) and `commit`, then `close`; or as a context manager.
    The keyword arguments are those of `ConsumerConfig`. A partition is a pair (topic, number).
    """

    def unsubscribe(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group as `close` does; `subscribe` may follow. Does nothing if not subscribed."""
        self._do(steps.unsubscribe(self._frontend, timeout_s))

    # ---- reading

    def poll(self, timeout_s: float | None = ITERATION_TIMEOUT_S, *, max_records: int | None = None) -> Batch:
        """Return records as soon as there are any, or none after `timeout_s` seconds.

        None waits without limit, until there are records or the consumer is closed; Ctrl-C interrupts it.

        At most `max_records` are returned (default: `max_poll_records`; -1: no limit). Records fetched beyond the limit
        stay for the next call; positions and commits follow the returned records.

        With `enable_auto_commit`, this call finishes the records of earlier polls, unless `max_records` is 0: that only
        runs callbacks and shows that the application is alive.

        Raises:
            ConfigurationError: `max_records` is not allowed.
            ConsumerStateError: not subscribed, closed, or called from within a callback.
            ZooKeeperUnavailableError, KafkaUnavailableError, RegistrationError, ChrootMissingError: as named.

        """
        return self._do(steps.poll(self._frontend, timeout_s, max_records))

    def __iter__(self) -> Iterator[Batch]:
        """Return batches of records, until the consumer is closed; a batch is finished when the next is requested."""
        while not self._frontend.is_closed:
            batch = self._do(steps.poll_batch(self._frontend, ITERATION_TIMEOUT_S))
            if batch is not None:
                self._frontend.is_iterated = True
                yield batch

    def records(self) -> Iterator[Record]:
        """Return records one by one, until the consumer is closed; a record is finished when the next is requested."""
        while not self._frontend.is_closed:
            record = self._do(steps.poll_record(self._frontend, ITERATION_TIMEOUT_S))
            if record is not None:
                self._frontend.is_iterated = True
                yield record

    def commit(self, what: Committable = None, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Mark everything returned so far as finished, and wait until that is stored.

        With `what`, only that: a record and all before it in its partition, or `{("orders", 0): 42}`, the next offsets
        to read, which may be lower than before. If one of them cannot be stored, none is.

        Without `what`, it only stores what is finished if the application may be working on the rest: in callbacks and
        signals' handlers, with `enable_auto_finish=False`, and after `run`, whose handlers finish their own batches.

        Raises:
            CommitFailedError: the partitions were lost, and others will read the records again; or Kafka did not store
            it. CommitTimeoutError: the outcome is unknown after `timeout_s` seconds. ConfigurationError: `what` is none
            of those. ConsumerStateError: closed, never polled, or beyond the returned records.

        """
        self._do(steps.commit(self._frontend, what, timeout_s))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offsets of assigned partitions (default: of all), None if nothing is stored.

        Raises:
            CommitTimeoutError: no answer after `timeout_s` seconds.
            ConsumerStateError: closed, never polled, one of the partitions is not assigned to this consumer, or nobody
                says what is stored of one.

        """
        return self._do(steps.committed(self._frontend, partitions, timeout_s))

    # ---- asking Kafka

    def seek_to_beginning(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> None:
        """Continue from the first records of these partitions (default: of all assigned ones), as `seek` does.

        Raises:
            ConsumerStateError: before the first poll, or one of the partitions is not assigned to this consumer.
            KafkaUnavailableError: no answer after `timeout_s` seconds; nothing was moved.

        """
        return self._ask(questions.seek_to(self._frontend, "seek_to_beginning", partitions, "earliest", timeout_s))

    def seek_to_end(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> None:
        """Continue after the last records of these partitions (default: of all); as `seek_to_beginning`."""
        return self._ask(questions.seek_to(self._frontend, "seek_to_end", partitions, "latest", timeout_s))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition (default: of all assigned ones).

        Any partition may be named, also before the first poll, and any thread may call this.

        Raises:
            ConsumerStateError: closed.
            KafkaUnavailableError: no answer after `timeout_s` seconds, for example because a partition does not exist.

        """
        return self._ask(questions.ends(self._frontend, "beginning_offsets", partitions, "earliest", timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition; as `beginning_offsets`.

        This is Kafka's last stable offset, unless librdkafka's `isolation.level` is `read_uncommitted`.

        """
        return self._ask(questions.ends(self._frontend, "end_offsets", partitions, "latest", timeout_s))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time: `{("orders", 0): 1_700_000_000_000}`, in ms.

        If no record is that young, it is the offset after the last one, so that the result can be passed to `seek`.
        Otherwise as `beginning_offsets`.

        """
        return self._ask(questions.offsets_for_times(self._frontend, times, timeout_s))

    def lag(self, *, timeout_s: float = QUESTION_TIMEOUT_S) -> dict[TopicPartition, int]:
        """Return how many offsets each assigned partition has from its position to its end, as Kafka says now.

        Offsets of compacted records and of transactions' markers also count. Partitions without position are left out.
        `metrics()` has the sum, as of the last seconds, without waiting. Errors as with `beginning_offsets`.

        """
        return self._ask(questions.lag(self._frontend, timeout_s))

    def partitions_for_topic(self, topic: str, *, timeout_s: float = QUESTION_TIMEOUT_S) -> set[int] | None:
        """Return the numbers of a topic's partitions, None if it does not exist; errors as with `beginning_offsets`."""
        return self._ask(questions.partitions_for_topic(self._frontend, topic, timeout_s))

    # ---- handlers in threads

    def run(self, handler: Handler, *, threads: int = 1) -> None:
        """Call `handler(batch)` in `threads` new threads, each with its own partitions, until one raises.

        A batch is finished when its handler has returned. The callbacks run in the caller's thread; `on_revoke` waits
        until no handler works on its partitions. If a handler or a callback raises, or on Ctrl-C, `run` raises the
        error after all handlers have returned.

        Raises:
            ConfigurationError: not a callable, or not a number of threads.
            ConsumerStateError: not subscribed, closed, or called from within a callback or a handler.

        """
        from consumer_agent.runtime.workers import Workers  # noqa: PLC0415  # rarely used

        arguments.check_run(handler, threads)
        self._frontend.require_usable("run")
        self._frontend.set_threads(threads)
        self._frontend.runner, self._frontend.run_threads = threading.get_ident(), threads
        try:
            Workers(self._frontend, handler, threads, self._run_notice).run()
        finally:
            self._frontend.runner, self._frontend.run_threads = None, 1

    # ---- leaving

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, finish: bool | None = None) -> None:
        """Leave the group within `timeout_s` seconds: `on_revoke`, a final commit; then the partitions are free.

        With `enable_auto_commit`, the last batch is finished (and committed) with `finish=True`, and not with False. By
        default it is finished if this thread or greenlet has polled it and no longer works on it: not after a `break`
        out of a loop over the consumer or the batch, nor while an exception is handled that has come since, nor if
        another thread polls, nor in a signal's handler. Closing again does nothing. If a callback raises, the consumer
        leaves its group, then raises the error. If a signal's handler interrupts another call in the middle of a
        change, that call closes the consumer at its end.

        Raises:
            ConfigurationError: `finish=True` without `enable_auto_commit`.
            ConsumerStateError: called from within a callback or a deserializer, or during `run`.

        """
        self._do(steps.close(self._frontend, timeout_s, finish=finish))

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception or a `break` the last batch stays unfinished."""
        self._do(steps.close(self._frontend, CLOSE_TIMEOUT_S, finish=None if error is None else False))

    # ---- what these methods consist of

    def _do(self, generator: Steps[T]) -> T:
        """Do the steps of a method in this thread."""
        frontend = self._frontend
        error: BaseException | None = None
        try:
            frontend.enter(generator)
            while True:
                try:
                    step = next(generator) if error is None else generator.throw(error)
                    error = None
                    self._perform(step)
                except BaseException as raised:  # the generator raises it again
                    if generator.gi_frame is not None:  # type: ignore[attr-defined]  # it has not ended
                        error = raised  # by a step, or by an interrupt between two: the generator handles it
                        continue
                    if isinstance(raised, StopIteration):
                        result: T = raised.value
                        break
                    raise
        except BaseException:
            frontend.is_broken |= frontend.outer is generator  # no call before this either
            frontend.undo(generator)
            self._close_if_due()
            raise
        # No call between here and the application, so that nothing interrupts these assignments.
        if frontend.outer is generator:
            frontend.shared.taken = None
            frontend.outer = None
        if frontend.is_close_due:
            self._close_if_due()
        return result

    def _close_if_due(self) -> None:
        frontend = self._frontend
        if frontend.is_close_due and frontend.outer is None and not frontend.shared.changed.is_held:
            self.close(finish=False)

    def _ask(self, generator: Steps[T]) -> T:
        """Do the steps of a query, even while another thread is in a method: there is nothing to undo."""
        while True:
            try:
                step = next(generator)
            except StopIteration as end:
                result: T = end.value
                return result
            self._perform(step)

    def _perform(self, step: Step) -> None:
        match step:
            case Wait(changes, deadline_s):
                left_s = None if math.isinf(deadline_s) else max(0.0, deadline_s - time.monotonic())
                self._frontend.shared.changed.wait_for_change(changes, left_s)
            case Callback(call):
                arguments.require_answer(call())
            case Block(call):
                call()

    def _run_notice(self, notice: Notice) -> None:
        self._do(steps.run_notice(self._frontend, notice))
