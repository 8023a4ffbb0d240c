"""The application's side of a consumer: what `Consumer`, its threads and `AsyncConsumer` have in common.

Nothing here waits. `steps.py` asks for the next thing to do (`next`); if there is none, it yields a wait for
`shared.changed`.
"""

from __future__ import annotations

import itertools
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from consumer_agent import arguments
from consumer_agent.config import NO_LIMIT, ConsumerConfig, Subscription
from consumer_agent.errors import CommitFailedError, ConsumerStateError
from consumer_agent.kafka_config import TOKEN
from consumer_agent.membership.duties import NO_DUTIES
from consumer_agent.membership.events import CloseRequested, CommitRequested, Polled, Revoked, StoredRequested
from consumer_agent.records import Batch, Record
from consumer_agent.runtime.buffer_limits import MANY_RECORDS, buffer_settings
from consumer_agent.runtime.clock import now_ms
from consumer_agent.runtime.decoding import Decoder
from consumer_agent.runtime.notices import Notice, Tell
from consumer_agent.runtime.record_buffer import RecordBuffer, Run
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from consumer_agent.runtime.threads import in_own_thread, new_lock
from consumer_agent.runtime.usage import Usage
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

if TYPE_CHECKING:
    from consumer_agent.kafka.offset_queries import OffsetQueries

Callback = Callable[[list[TopicPartition]], object]

NEVER_NESTED = frozenset({"poll", "poll_batch", "poll_record", "unsubscribe"})  # of `steps`, in no other call
CommitCallback = Callable[[CommitFailedError | None], object]
Committable = Record | Mapping[TopicPartition, int] | None  # what to commit; None: everything returned


class Frontend(Usage):
    """A consumer as its application sees it. Its other threads live from the first poll to `end`."""

    def __init__(
        self,
        config: ConsumerConfig | None,
        settings: Mapping[str, Any],
        who: Callable[[], object],
        *,
        begins_paused: bool = False,
    ) -> None:
        """Check the configuration; nothing is connected before the first poll. `who`: see `Usage`.

        Raises:
            ConfigurationError: settings are unknown, missing or not allowed; the text names all of them.

        """
        if config is not None and settings:
            raise ConfigurationError("give a ConsumerConfig or settings, not both")
        arguments.check_config(config)
        self.config = config or ConsumerConfig.from_settings(settings)
        self.decoder = Decoder(self.config)
        from consumer_agent.runtime.engine import Engine  # noqa: PLC0415  # takes longer to import than Kafka's client

        self._engine_type = Engine  # now and not in the first poll, which joins
        self._begins_paused = begins_paused
        self.duties = NO_DUTIES
        self.listeners: list[Callable[[], object]] = []  # called whenever there may be something to do; see `Condition`
        self._early_queries: OffsetQueries | None = None
        self._telemetry = Telemetry(None, self.config.group)
        super().__init__(self._new_shared(), who)
        self._dropped: weakref.finalize[..., Frontend] | None = None  # ends the engine of a dropped consumer
        self._is_ended = self._is_leaving = False
        self._start_lock = new_lock()
        self._polling: object | None = None  # the same, if it is a poll
        self._new_member = ""  # the name for the next registration
        self._subscription: Subscription | None = None
        self._callbacks: dict[Tell, Callback | None] = {}
        self._tokens = itertools.count(1)
        self._commit_callbacks: dict[int, CommitCallback] = {}

    # ---- before the first poll

    def subscribe(self, wanted: Subscription, callbacks: Mapping[Tell, Callback | None]) -> None:
        """Set what to read and the callbacks."""
        if self.is_closed:
            raise ConsumerStateError("subscribe: the consumer is closed")
        self.require_process("subscribe")
        self._subscription = wanted
        self._callbacks = dict(callbacks)
        if self._engine is not None:
            self._engine.resubscribe(wanted, asks_to_revoke=self._callbacks[Tell.REVOKE] is not None)

    def unsubscribe(self) -> None:
        """Forget the subscription, after `end`; the application may subscribe again."""
        self._subscription = None
        if self._engine is not None and not self._is_ended:  # nobody else would end it, or read its partitions
            self._engine.machine_thread.dropped = "has unsubscribed, which was interrupted"
        self._engine = None
        self._renew(self.shared)

    def _renew(self, former: SharedState) -> None:
        """Go on with another state: the threads that end mark the former one as closed, perhaps later."""
        if self.shared is former:
            new = self._new_shared()
            new.count_on(former)
            self.shared = new

    def _new_shared(self) -> SharedState:
        buffer = RecordBuffer(buffer_settings(self.config, self._begins_paused))
        shared = SharedState(buffer, now_ms, self._telemetry.out_of_range)
        shared.changed.listeners = self.listeners
        return shared

    @property
    def starts_slowly(self) -> bool:
        """Whether `start` takes seconds: Kafka's clients wait for their first token."""
        return TOKEN in self.config.kafka_config

    def start(self) -> None:
        """Start the threads with the first poll. It may run in another thread, which outlives a cancelled poll."""
        with self._start_lock:
            if self._engine is None:
                self._start()

    def _start(self) -> None:
        config, wanted, shared = self.config, self._subscription, self.shared
        if wanted is None:
            raise ConsumerStateError("subscribe before the first poll")
        asks = self._callbacks[Tell.REVOKE] is not None
        args = config, wanted, shared, self._telemetry
        engine = self._engine_type(*args, asks_to_revoke=asks, duties=self.duties)
        try:
            engine.start()
            with shared.changed.lock:
                if self.is_closed or self.shared is not shared or self._subscription is not wanted:
                    raise ConsumerStateError("the consumer was closed, or subscribed again, before it was connected")
                dropped = weakref.finalize(self, engine.drop)
                dropped.atexit = False
                self._engine, self._dropped, self._is_ended = engine, dropped, False
        except BaseException:
            self._renew(shared)
            engine.end(0.0)
            raise
        self._end_early_queries()

    # ---- reading

    def begin_poll(self, *, is_handled: bool = False, is_look: bool = False) -> None:
        """Begin a poll. With automatic commits, this finishes the records of earlier polls.

        With `is_handled` the records go to handlers, which finish them one batch at a time. A mere look asks for no
        records, so the application may still work on earlier ones.
        """
        self._in_poll, self._polling, self.may_work = True, self.outer, is_look
        self.shared.come(finishes=self._finishes and not is_look)
        if not is_look:
            self._note_poller()
        self._is_handled = is_handled

    @property
    def _finishes(self) -> bool:
        """Whether a poll finishes the records of earlier ones."""
        return self.config.enable_auto_commit and self.config.enable_auto_finish and not self._is_handled

    def end_poll(self) -> None:
        """Return to the application, which must poll again within `max_poll_interval_ms`."""
        self._in_poll, self._polling = False, None
        self.shared.go()

    def enter(self, call: Generator[Any, None, Any]) -> None:
        """Begin a call of `steps`; finish first what an interrupt of `undo` has left undone."""
        if self.is_broken and self.outer is not None:
            self.undo(self.outer)
        if self.outer is None:
            self._begin_again()
            self.outer = call
        elif self.outer is not call and call.gi_code.co_name in NEVER_NESTED:  # type: ignore[attr-defined]
            self._require_no_running_call(call.gi_code.co_name)  # type: ignore[attr-defined]

    def undo(self, call: Generator[Any, None, Any]) -> None:
        """Clean up after a call that an exception has ended at any point, for example a signal's.

        Its records are returned again. A callback that had begun counts as run; the others run in the next call. A
        second interrupt may end this too: each part can be done again, as `enter` does.
        """
        if self.outer is not call or not self.is_own_process:
            return
        shared = self.shared
        self.in_callback = self._is_leaving = False
        self.end_calling()
        self.end_decoding()
        if shared.in_hand is not None and shared.in_hand.is_begun:
            self.called_back(shared.in_hand)
        again = {(run.topic, run.partition): run.messages[0].offset() for run in shared.taken or ()}
        self.note_repositioned(again, "interrupt")
        with shared.lock:
            shared.got_position(again)  # an error about a later record must not come before these
            shared.put_back()
        self._begin_again()
        if self._polling is call:
            self.end_poll()
        self.outer, self.is_broken = None, False

    def _begin_again(self) -> None:
        """Fetch everything again after an interrupt within a change of the buffer, or before its records were returned.

        It stays due until it is done.
        """
        shared = self.shared
        if (shared.taken is not None or shared.is_interrupted) and self.is_own_process:
            with shared.lock:
                shared.buffer.begin_again(shared.taken or ())
                shared.fetcher_wake.notify()
                shared.taken, shared.is_interrupted = None, False

    def next(self, max_records: int) -> Notice | Batch:
        """Return a callback to run, or records, possibly none. The lock of `changed` must be held.

        Raises:
            RebalancerError: the machine thread or the fetcher failed.

        """
        machine_thread = self.require_machine_thread("poll")
        if self.is_closed:  # by another thread or task, which now runs the callbacks
            return Batch()
        if self.shared.is_out:
            self._new_member = self._new_member or f"{self.config.client_id}-{uuid.uuid4()}"
            machine_thread.send(Polled(self._new_member, time.time_ns() // 1_000_000))
            self.shared.is_out = False  # after sending: an interrupt in between would lose the event
            self._telemetry.member, self._new_member = self._new_member, ""
        notice = self.shared.next_notice()
        if notice is not None:
            return notice
        failure = self.shared.take_failure()
        if failure is not None:
            raise failure.with_traceback(None)  # with each raise it would grow
        if max_records == 0:
            return Batch()
        limit = None if max_records == NO_LIMIT else max_records
        return Batch(self.shared.take(limit, self._telemetry.delivered), self.loops)

    def draw(self, max_records: int) -> None:
        """Fetch what Kafka's client has ready, in this thread, if no records are retained. No lock may be held."""
        fetcher = self._fetcher
        if fetcher is None or not max_records or self.shared.buffer.record_count:
            return
        wanted = max(max_records, self.config.max_poll_records)
        if NO_LIMIT in {max_records, self.config.max_poll_records}:
            wanted = MANY_RECORDS
        fetcher.current.draw(wanted, are_awaited=max_records in {wanted, NO_LIMIT})

    def draw_for_threads(self) -> Collection[TopicPartition]:
        """Fetch what Kafka's client has ready, in a consumer thread; return the partitions of these records.

        Nothing while another one fetches: greenlets of one thread are not kept apart by a lock.
        """
        limit, fetcher = self.config.max_poll_records, self._fetcher
        if fetcher is None or fetcher.current.is_drawing:
            return ()
        return fetcher.current.draw(limit if limit != NO_LIMIT else MANY_RECORDS)

    def take_of(self, thread: int, count: int) -> list[Run]:
        """Return records for one of `count` consumer threads; the lock of `changed` must be held.

        Skips partitions whose `on_assign` is not over.
        """
        limit = None if self.config.max_poll_records == NO_LIMIT else self.config.max_poll_records
        among = self.shared.buffer.of_thread(thread, count) - self.shared.unannounced
        return self.shared.take(limit, self._telemetry.delivered, among)

    def set_threads(self, count: int) -> None:
        """Subscribe with this number of consumer threads."""
        if self._subscription is None:
            raise ConsumerStateError("subscribe before run")
        threads = dict.fromkeys(self._subscription.threads, count)
        self.subscribe(replace(self._subscription, threads=threads), self._callbacks)

    def callback(self, notice: Notice) -> Callable[[], object] | None:
        """Return the application's callback for a notice, or None."""
        if notice.tell is Tell.COMMITTED:
            on_commit = self._commit_callbacks.get(notice.token)  # None: its `commit_async` was interrupted
            return None if on_commit is None else lambda: on_commit(notice.error)
        call = notice.call
        callback = None if notice.tell is Tell.EVENT else self._callbacks[notice.tell]
        if callback is not None and notice.partitions:
            partitions = sorted(notice.partitions)
            call = partial(callback, partitions)
        if call is not None and self._in_poll:
            self.shared.go()
        return call

    def called_back(self, notice: Notice) -> None:
        """Note that a notice's callback has returned or raised."""
        if self._in_poll:
            self.shared.come()
        self.shared.called_back(notice)
        if notice.tell is Tell.REVOKE:
            self.require_machine_thread("on_revoke").send(Revoked(notice.token))
        elif notice.tell is Tell.COMMITTED:  # each kind has its own tokens
            self._commit_callbacks.pop(notice.token, None)
        self.shared.in_hand = None

    def note_repositioned(self, positions: Mapping[TopicPartition, int], reason: str) -> None:
        """Write the event that these partitions continue elsewhere."""
        self._telemetry.repositioned(positions, reason)

    def change(
        self,
        method: str,
        partitions: Iterable[TopicPartition],
        change: Callable[[set[TopicPartition]], Mapping[TopicPartition, int | None]],
    ) -> None:
        """Change what is fetched; the application must know these partitions."""
        self.require_machine_thread(method)
        fetcher, shared = self._fetcher, self.shared
        self._require_no_change(method)

        def checked_change() -> Mapping[TopicPartition, int | None]:
            self._require_known(method, partitions)
            known = {partition for partition in partitions if shared.is_known(partition)}
            shared.changed.notify()  # there may be records to return then, which had been set aside
            try:
                return change(known)
            except BaseException:  # a signal's exception, which may come between any two steps
                shared.is_interrupted = True
                shared.buffer.begin_again()
                shared.fetcher_wake.notify()
                shared.is_interrupted = False
                raise

        if fetcher is not None:
            fetcher.change(checked_change)

    # ---- asking

    def require_assigned(self, method: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise ConsumerStateError if one of these is not assigned."""
        with self.shared.lock:
            self._require_known(method, partitions)

    def queries(self, method: str) -> OffsetQueries:
        """Return what asks Kafka, from the first poll on the engine's; ConsumerStateError if the consumer is closed."""
        self.require_open(method)
        if self._fetcher is not None:
            return self._fetcher.current.queries
        if self._early_queries is None:
            from consumer_agent.kafka.client import store_settings  # noqa: PLC0415  # imports the admin client
            from consumer_agent.kafka.offset_queries import OffsetQueries  # noqa: PLC0415

            self._early_queries = OffsetQueries(store_settings(self.config))
        return self._early_queries

    def _end_early_queries(self) -> None:
        queries, self._early_queries = self._early_queries, None
        if queries is not None:
            queries.close()

    # ---- committing and leaving

    def begin_commit(self, what: Committable = None, on_commit: CommitCallback | None = None) -> int:
        """Mark records as finished and request a commit; return its token.

        With `on_commit`, notices report the outcomes in the order of the commits; otherwise the caller waits.
        """
        shared, machine_thread = self.shared, self._require_commits("commit")
        finished = arguments.checked_commit(what)
        if finished is None and (self.is_within_batch(waits=on_commit is None) or not self.config.enable_auto_finish):
            finished = {}  # the application may work on what was returned
        token = next(self._tokens)
        try:
            if on_commit is not None:
                self._commit_callbacks[token] = on_commit
            shared.begin_commit(token, finished, by_notice=on_commit is not None)
            machine_thread.send(CommitRequested(token))
        except BaseException:  # refused, or a signal's exception: the caller gets it, `on_commit` is not called
            self._commit_callbacks.pop(token, None)
            shared.commit_finished([token], None)
            shared.take_commit(token)
            raise
        return token

    def begin_to_ask(self, partitions: Iterable[TopicPartition] | None) -> int:
        """Request the stored offsets of these partitions, or of all; return the request's token."""
        machine_thread = self._require_commits("committed")
        checked = None if partitions is None else frozenset(arguments.checked_partitions("committed", partitions))
        token = next(self._tokens)
        self.shared.stored.expect(token)
        machine_thread.send(StoredRequested(token, checked))
        return token

    def begin_closing(self) -> bool:
        """Close for good; return whether there is a group to leave. A forked process has none.

        Raises:
            ConsumerStateError: called from within a callback or a deserializer, or while `run` is under way.

        """
        if not self.is_own_process:
            return False
        if self.is_in_own_callback or self.is_deserializing:
            raise ConsumerStateError("close may not be called from within a callback or a deserializer")
        if self.runner is not None:
            raise ConsumerStateError("close: run is under way; raise from a handler or a callback to end it")
        if self._engine is not None and in_own_thread():
            self.is_closed = True
            self._engine.drop("was closed in a consumer's own thread")
            self.shared.changed.notify_if_free()  # else a poll of another thread ends when the group is left
            return False
        # Other threads cannot go on before the call that a signal's handler has interrupted.
        self.is_close_due = self.shared.changed.is_held
        with self.shared.changed.lock:
            self.is_closed = True
            self.shared.changed.notify()  # ends a poll of another thread or task
        self._end_early_queries()
        if self._is_ended or self._is_leaving or self._engine is None or self.is_close_due:
            return False
        self._is_leaving = True  # another thread's `close` does nothing; after an interrupt, the next one continues
        return True

    def begin_leaving(self, *, finish: bool | None) -> None:
        """Leave the group; with `finish`, all returned records are finished first.

        None: if polls finish them, and the caller `is_done`.
        """
        is_over = self.is_done if finish is None else finish
        self.may_work = not is_over
        if is_over and (finish or self._finishes):
            self.shared.finish()
        if self.machine_thread is not None:
            self.machine_thread.send(CloseRequested())

    def end(self, deadline_s: float) -> None:
        """End the threads, whether or not the consumer has left its group."""
        if self._engine is not None and self._dropped is not None:
            self._engine.end(deadline_s)
            self._dropped.detach()
            self._is_ended = True

    def end_leaving(self) -> None:
        """End a `close`, successful or not; after an interrupt it may be called again."""
        self._is_leaving = False
        if self._is_ended:
            self.listeners.clear()
