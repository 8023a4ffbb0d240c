"""Runs a handler in several consumer threads, each with the partitions that the coordinator gave to that thread.

The threads fetch and take their records themselves. The caller of `run` runs the callbacks, and delays an `on_revoke`
until no thread works on its partitions.

A handler that needs longer than `max_poll_interval_ms` for a batch counts as an application that does not poll: the
consumer gives up all its partitions. It cannot give up those of one thread alone, because the coordinator would assign
them to the same thread again. A consumer that has lost its partitions joins again only when all handlers have
returned: otherwise one thread could get records that another one still works on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from consumer_agent import arguments
from consumer_agent.records import Batch
from consumer_agent.runtime.frontend import Frontend
from consumer_agent.runtime.notices import Notice
from consumer_agent.runtime.record_buffer import Finished, Run
from consumer_agent.runtime.steps import Callback, Decoded, decoded
from consumer_agent.runtime.threads import Condition, Thread
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

Handler = Callable[[Batch], object]
LOOK_INTERVAL_S = 1.0
IDLE_LOOK_INTERVAL_S = 0.02  # between an idle thread's looks for records while others work and the fetcher rests

_log = logs.named(__name__)


class Workers:
    """The threads of one `Consumer.run`."""

    def __init__(self, frontend: Frontend, handler: Handler, count: int, run_notice: Callable[[Notice], None]) -> None:
        """Prepare; nothing runs before `run`."""
        self._frontend = frontend
        self._handler = handler
        self._count = count
        self._run_notice = run_notice
        self._ending = False
        self._running = 0  # threads that have begun and not ended
        self._failure: BaseException | None = None  # the first one of a handler
        self._in_hand: dict[int, set[TopicPartition]] = {}  # the partitions each thread works on
        self._idle = [Condition(frontend.shared.lock) for _ in range(count)]  # wake one thread each

    def run(self) -> None:
        """Work until a handler or a callback raises, and raise that when all threads have finished their batch.

        A signal's exception may come at any point, so no executor is used: its locks may stay held, and threads wait.
        """
        if not self._frontend.config.enable_auto_commit:
            _log.warning(
                "run with enable_auto_commit=False stores what is finished only when partitions are given up, and at"
                " close: after a crash, all since then is read again"
            )
        try:
            self._begin()
            while self._failure is None:
                self._attend()
            self._end()
        except BaseException:
            self._end()  # perhaps again
            raise
        try:
            raise self._failure
        finally:
            self._failure = None  # its traceback refers to this object

    def _begin(self) -> None:
        frontend = self._frontend
        frontend.listeners.append(self._wake_all)
        frontend.begin_poll(is_handled=True)
        frontend.start()
        for number in range(self._count):
            name = f"consumer-agent-worker_{number}"
            Thread(partial(self._work_to_the_end, number), name, is_applications=True).start()

    def _end(self) -> None:
        """Wait until all threads have finished their batch, and leave the poll; after an interrupt, call it again."""
        frontend, changed = self._frontend, self._frontend.shared.changed
        try:
            with changed.lock:
                self._ending = True
                self._wake_all()
            while True:
                changes = changed.changes
                if not self._running:
                    break
                changed.wait_for_change(changes, None)
        finally:
            if self._wake_all in frontend.listeners:
                frontend.listeners.remove(self._wake_all)
            frontend.end_poll()

    def _attend(self) -> None:
        """Run a callback that is due, or wait for one. After an interrupt, one that was not called is due again."""
        try:
            self._attend_once()
        except BaseException:  # a signal's exception
            shared = self._frontend.shared
            if shared.in_hand is not None and not shared.in_hand.is_begun:
                with shared.lock:
                    shared.put_back()
            raise

    def _attend_once(self) -> None:
        frontend, changed, shared = self._frontend, self._frontend.shared.changed, self._frontend.shared
        with changed.lock:
            changes = changed.changes
            waits_to_revoke = any(shared.revoking & held for held in self._in_hand.values())
            waits_to_join = shared.is_out and shared.presence.is_working
            step: Notice | Batch | None = None
            if not waits_to_revoke:
                step = shared.next_notice() if waits_to_join else frontend.next(0)
            is_idle = not step and self._failure is None
        if is_idle:
            changed.wait_for_change(changes, LOOK_INTERVAL_S)  # it leaves the lock as it is also if Ctrl-C ends it
        if isinstance(step, Notice):
            self._run_notice(step)

    # ---- in each of the threads

    def _work_to_the_end(self, number: int) -> None:
        shared = self._frontend.shared
        failure: BaseException | None = None
        with shared.lock:
            if self._ending:  # an interrupt has come while this thread was started
                return
            self._running += 1
        try:
            self._work(number)
        except BaseException as raised:  # noqa: BLE001  # `run` raises it
            failure = raised
        with shared.lock:
            self._running -= 1
            if self._failure is None:
                self._failure = failure
            shared.changed.notify()
        del failure  # its traceback refers to this frame

    def _work(self, number: int) -> None:
        shared = self._frontend.shared
        while runs := self._wait_for_records(number):
            try:
                batch, ends = self._decoded(runs)
                if batch:
                    arguments.require_answer(self._handler(batch))
                generations = {(run.topic, run.partition): run.generation for run in runs}
                shared.finish_below({tp: Finished(end, generations[tp]) for tp, end in ends.items()})
            finally:
                with shared.changed.lock:
                    shared.presence.end_work(number)
                    del self._in_hand[number]
                    if shared.revoking or shared.is_out:
                        shared.changed.notify()  # the thread in `run` may wait for that

    def _decoded(self, runs: list[Run]) -> Decoded:
        """Deserialize what a thread gets, in this thread."""
        if not self._frontend.decoder:
            ends = {(run.topic, run.partition): run.messages[-1].offset() + 1 for run in runs}
            return Decoded(Batch(runs), ends)
        decoding = decoded(self._frontend, runs)
        while True:
            try:
                step = next(decoding)
            except StopIteration as end:
                result: Decoded = end.value
                return result
            if isinstance(step, Callback):
                arguments.require_answer(step.call())

    def _wait_for_records(self, number: int) -> list[Run]:
        """Wait for records of a thread's partitions; return none at the end."""
        frontend, shared = self._frontend, self._frontend.shared
        has_drawn = False
        while True:
            with shared.lock:
                if self._ending:
                    return []
                runs = frontend.take_of(number, self._count)
                if runs:
                    shared.presence.begin_work(number)
                    self._in_hand[number] = {(run.topic, run.partition) for run in runs}
                    return runs
                if has_drawn:
                    is_fetched = shared.is_awaited and shared.buffer.room
                    self._idle[number].wait(None if is_fetched else IDLE_LOOK_INTERVAL_S)
            drawn = frontend.draw_for_threads()
            has_drawn = True
            with shared.lock:
                for other in range(self._count):
                    if other != number and not shared.buffer.of_thread(other, self._count).isdisjoint(drawn):
                        self._idle[other].notify()

    def _wake_all(self) -> None:
        for idle in self._idle:
            idle.notify()
