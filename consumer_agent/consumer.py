"""The public API: a consumer whose callbacks run in the application's own thread.

Three threads work for it: the application's (this file and `runtime/frontend.py`), the machine thread
(`runtime/machine_thread.py`: ZooKeeper and all decisions) and the fetcher (`kafka/fetcher.py`). They meet in
`runtime/shared_state.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from consumer_agent import arguments
from consumer_agent.consumer_base import ConsumerBase
from consumer_agent.errors import CommitTimeoutError, ConsumerStateError
from consumer_agent.records import Batch, Record
from consumer_agent.runtime.frontend import Committable
from consumer_agent.runtime.shared_state import Notice
from consumer_agent.runtime.workers import Handler, Workers
from zkrebalancer.protocol.fields import TopicPartition

ITERATION_TIMEOUT_S = 1.0
COMMIT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0


class Consumer(ConsumerBase):
    """Reads the partitions that the coordinator gives to this consumer.

    Use it from one thread: `subscribe`, then `poll` (or iterate) and `commit`, then `close`; or as a context manager.
    The keyword arguments are those of `ConsumerConfig`. A partition is a pair (topic, number).
    """

    def unsubscribe(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group as `close` does, but so that `subscribe` may follow. Nothing happens if not subscribed."""
        arguments.check_timeout("unsubscribe", timeout_s)
        self._frontend.require_usable("unsubscribe")
        try:
            if self._frontend.machine_thread is not None:
                self._leave(timeout_s, is_finished=True)
        finally:
            self._frontend.unsubscribe()

    # ---- reading

    def poll(self, timeout_s: float = ITERATION_TIMEOUT_S, *, max_records: int | None = None) -> Batch:
        """Return records as soon as there are any, or none after `timeout_s` seconds.

        At most `max_records` of them, or `max_poll_records` without it; -1 is no limit, 0 is for an application that
        has enough to do, but wants its callbacks run and to be known as alive. What was fetched beyond that
        stays for the next call: positions and commits follow what was returned.

        With `enable_auto_commit` the records of earlier polls count as finished now.

        Raises:
            ConfigurationError: `max_records` is not allowed.
            ConsumerStateError: not subscribed, closed, or called from within a callback.
            ZooKeeperUnavailableError, KafkaUnavailableError, RegistrationError, ChrootMissingError: as named.

        """
        arguments.check_timeout("poll", timeout_s)
        arguments.check_max_records(max_records)
        return self._poll(timeout_s, self._frontend.config.max_poll_records if max_records is None else max_records)

    def _poll(self, timeout_s: float, max_records: int) -> Batch:
        core = self._frontend
        core.require_usable("poll")
        deadline_s = time.monotonic() + timeout_s
        lock, changed = core.shared.lock, core.shared.changed
        try:
            core.begin_poll()
            core.draw(max_records)
            while True:
                with lock:
                    step = core.next(max_records, draws=True)
                    if not step and not core.is_closed and (remaining_s := deadline_s - time.monotonic()) > 0:
                        changed.wait(remaining_s)
                        continue
                if not isinstance(step, Notice):
                    return step
                self._run(step)
        finally:
            core.end_poll()

    def __iter__(self) -> Iterator[Batch]:
        """Return batches of records, until the consumer is closed."""
        while not self._frontend.is_closed:
            batch = self.poll(ITERATION_TIMEOUT_S)
            if batch:
                yield batch

    def records(self) -> Iterator[Record]:
        """Return records one by one, until the consumer is closed; one is finished when the next is asked for."""
        while not self._frontend.is_closed:
            yield from self._poll(ITERATION_TIMEOUT_S, 1)

    def commit(self, what: Committable = None, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Store that everything returned so far is finished; returns when it is stored.

        Or just `what`: a record, with all before it of its partition, or `{("orders", 0): 42}`, the next offsets to
        read, also lower ones than before. Nothing is stored if one of them cannot be.

        Raises:
            CommitFailedError: the partitions were lost, and others read the records again; or Kafka did not store it.
            CommitTimeoutError: the outcome is not known after `timeout_s` seconds.
            ConfigurationError: `what` is none of those.
            ConsumerStateError: closed, never polled, or more than was returned.

        """
        arguments.check_timeout("commit", timeout_s)
        core = self._frontend
        token = core.begin_commit(what)
        is_over = self._wait(lambda: core.shared.has_commit(token), time.monotonic() + timeout_s)
        if not core.in_callback:
            self._run_notices()
        if not is_over:
            raise CommitTimeoutError(f"the commit is not confirmed after {timeout_s:g} s")
        error = core.shared.take_commit(token)
        if error is not None:
            raise error

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> dict[TopicPartition, int | None]:
        """Return the stored offsets of assigned partitions (None: of all), None where nothing is stored.

        Raises:
            CommitTimeoutError: no answer after `timeout_s` seconds.
            ConsumerStateError: closed, never polled, or one of the partitions is not assigned to this consumer.

        """
        arguments.check_timeout("committed", timeout_s)
        shared, token = self._frontend.shared, self._frontend.begin_to_ask(partitions)
        if not self._wait(lambda: shared.has_stored(token), time.monotonic() + timeout_s):
            raise CommitTimeoutError(f"what is stored is not known after {timeout_s:g} s")
        offsets, error = shared.take_stored(token)
        if error is not None:
            raise ConsumerStateError(f"committed: {error}")
        return dict(offsets)

    def run(self, handler: Handler, *, threads: int = 1) -> None:
        """Call `handler(batch)` in `threads` threads of its own, each with its own partitions, until one raises.

        What a handler has returned from is finished. The callbacks run in the caller's thread; `on_revoke` only when no
        handler works on its partitions any more. Raises what a handler or a callback has raised, or Ctrl-C, when all
        handlers have returned.

        Raises:
            ConfigurationError: not a callable, or not a number of threads.
            ConsumerStateError: not subscribed, closed, or called from within a callback or a handler.

        """
        arguments.check_run(handler, threads)
        self._frontend.require_usable("run")
        self._frontend.set_threads(threads)
        self._frontend.runner = threading.get_ident()
        try:
            Workers(self._frontend, handler, threads, self._run).run()
        finally:
            self._frontend.runner = None

    # ---- leaving

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group: `on_revoke`, final commit, and the partitions are free at once. At most `timeout_s` seconds.

        With `enable_auto_commit` everything that was returned counts as finished. Closing again does nothing. When a
        callback raises, the group is left all the same; then that is raised.

        Raises:
            ConsumerStateError: called from within a callback, or while `run` is under way.

        """
        arguments.check_timeout("close", timeout_s)
        self._close(timeout_s, is_finished=True)

    def _close(self, timeout_s: float, *, is_finished: bool) -> None:
        if self._frontend.begin_closing():
            self._leave(timeout_s, is_finished=is_finished)

    def _leave(self, timeout_s: float, *, is_finished: bool) -> None:
        core = self._frontend
        deadline_s = time.monotonic() + timeout_s
        core.begin_leaving(is_finished=is_finished)
        try:
            self._take_leave(deadline_s)
        finally:
            core.end(deadline_s)
        self._run_notices()  # commits that could not be stored

    def _take_leave(self, deadline_s: float) -> None:
        """Run the callbacks until the group is left, all of them also if one raises; that is raised afterwards."""
        shared = self._frontend.shared
        try:
            while not shared.is_closed and time.monotonic() < deadline_s:
                self._run_notices()
                self._wait(lambda: shared.is_closed or shared.has_notice, deadline_s)
            self._run_notices()
        except Exception:
            self._take_leave(deadline_s)
            raise

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception the last batch does not count as finished."""
        self._close(CLOSE_TIMEOUT_S, is_finished=error is None)

    # ---- the application's part in what the machine decides

    def _wait(self, is_so: Callable[[], bool], deadline_s: float) -> bool:
        changed = self._frontend.shared.changed
        with changed:
            while not is_so():
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return False
                changed.wait(remaining_s)
        return True

    def _run_notices(self) -> None:
        while True:
            with self._frontend.shared.lock:
                notice = self._frontend.shared.next_notice()
            if notice is None:
                return
            self._run(notice)

    def _run(self, notice: Notice) -> None:
        core = self._frontend
        callback = core.callback(notice)
        core.in_callback = True
        try:
            if callback is not None:
                callback()
        finally:
            core.in_callback = False
            core.called_back(notice)
