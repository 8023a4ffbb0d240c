"""A handler in several consumer threads, each with the partitions that the coordinator gave to that thread.

The threads take their records by themselves. Who called `run` only sees to the callbacks, and holds an
`on_revoke` back until no thread works on its partitions any more.

A handler that takes longer than `max_poll_interval_ms` over a batch counts as an application that does not poll: the
whole consumer gives up its partitions. It cannot give up those of one thread alone: what is assigned to whom is the
coordinator's to say, who would hand them to the same thread again. And a consumer that has lost its partitions joins
again only when no handler has records any more: before, one thread might be given what another one still works on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from consumer_agent.records import Batch
from consumer_agent.runtime.frontend import Frontend, Step
from consumer_agent.runtime.record_buffer import Run
from consumer_agent.runtime.shared_state import Notice
from zkrebalancer.protocol.fields import TopicPartition

Handler = Callable[[Batch], object]
LOOK_INTERVAL_S = 1.0


class Workers:
    """The threads of one `Consumer.run`."""

    def __init__(self, core: Frontend, handler: Handler, count: int, run_notice: Callable[[Notice], None]) -> None:
        """Prepare; nothing runs before `run`."""
        self._frontend = core
        self._handler = handler
        self._count = count
        self._run_notice = run_notice
        self._ending = False
        self._futures: list[Future[None]] = []
        self._in_hand: dict[int, set[TopicPartition]] = {}  # whose records each of the threads works on

    def run(self) -> None:
        """Work until a handler or a callback raises; raises that, once all threads have finished their batch."""
        core = self._frontend
        try:
            core.begin_poll(is_handled=True)
            with ThreadPoolExecutor(self._count, "consumer-agent-worker") as executor:
                try:
                    self._futures = [executor.submit(self._work, number) for number in range(self._count)]
                    for future in self._futures:
                        future.add_done_callback(lambda _: self._ring())
                    while not self._is_over():
                        self._attend()
                finally:
                    self._ending = True
                    self._ring()
        finally:
            core.end_poll()
        for future in self._futures:
            future.result()

    def _attend(self) -> None:
        """Do what there is for the application besides records, or wait for it."""
        core, changed, shared = self._frontend, self._frontend.shared.changed, self._frontend.shared
        with changed:
            waits_to_revoke = any(shared.revoking & held for held in self._in_hand.values())
            waits_to_join = shared.is_out and shared.is_working
            step: Step | None = None
            if not waits_to_revoke:
                step = shared.next_notice() if waits_to_join else core.next(0)
            if not step and not self._is_over():
                changed.wait(LOOK_INTERVAL_S)
        if isinstance(step, Notice):
            self._run_notice(step)

    def _is_over(self) -> bool:
        return any(future.done() for future in self._futures)

    def _ring(self) -> None:
        with self._frontend.shared.changed:
            self._frontend.shared.changed.notify()

    # ---- in each of the threads

    def _work(self, number: int) -> None:
        shared = self._frontend.shared
        while runs := self._wait_for_records(number):
            try:
                self._handler(Batch(runs))
                last = {(run.topic, run.partition): run.messages[-1].offset() for run in runs}
                shared.finish_below({partition: offset + 1 for partition, offset in last.items()})
            finally:
                with shared.changed:
                    shared.end_work(number)
                    del self._in_hand[number]
                    shared.changed.notify()

    def _wait_for_records(self, number: int) -> list[Run]:
        """Return records of a thread's partitions, none at the end."""
        changed = self._frontend.shared.changed
        with changed:
            while not self._ending:
                runs = self._frontend.take_of(number, self._count)
                if runs:
                    self._frontend.shared.begin_work(number)
                    self._in_hand[number] = {(run.topic, run.partition) for run in runs}
                    return runs
                changed.wait()
        return []
