"""What the three threads share, under one lock: the buffer, the lease, and the callbacks that are due.

The machine thread writes the state machine's decisions. The fetcher's thread puts records. The application's thread
takes records, and runs callbacks without the lock. `changed` wakes the application's poll.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from consumer_agent.errors import CommitFailedError, TooManyCommitsError
from consumer_agent.membership.events import Origin, Position
from consumer_agent.runtime.awaited import AwaitedAnswers
from consumer_agent.runtime.known_ends import KnownEnds
from consumer_agent.runtime.notices import NO_PARTITIONS, UNSHOWN, Notice, Tell, given_back
from consumer_agent.runtime.out_of_range import OutOfRange
from consumer_agent.runtime.presence import Presence
from consumer_agent.runtime.record_buffer import Advance, Finished, RecordBuffer, Run
from consumer_agent.runtime.threads import Condition, new_reentrant_lock
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

MAX_ANNOUNCED_COMMITS = 10_000  # whose outcome the application does not know yet
COUNTERS = (
    "undecodable_records_total",
    "polled_records_total",
    "polled_batches_total",
    "offsets_out_of_range_total",
    "zookeeper_refusals_total",
)
MAX_EVENTS = 100  # of Kafka's client, that wait for the application; more are dropped
LAST_COUNTS = "stats_cb"  # of these, only the newest waits
MAX_LEASE_MS = 86_400_000  # shown for a lease that never ends, because it is not checked
_log = logs.named(__name__)

DeliveryRecorder = Callable[[list[Run], int], None]  # runs per partition, and when (CLOCK_MONOTONIC, us)
ResetRecorder = Callable[[OutOfRange], None]


class SharedState:
    """The state between the threads. Methods acquire the lock unless they say otherwise; those of `buffer` do not."""

    def __init__(
        self, buffer: RecordBuffer, now_ms: Callable[[], int], record_reset: ResetRecorder = lambda _: None
    ) -> None:
        """Begin empty, without a group and a lease; `record_reset` must not wait."""
        self.lock = lock = new_reentrant_lock()  # a signal's handler may ask for `metrics` while its thread holds it
        self.changed = Condition(lock)  # wakes the application
        self.fetcher_wake = Condition(lock)  # wakes the fetcher
        self.buffer = buffer
        self.now_ms = now_ms
        self.ends = KnownEnds()
        self._record_reset = record_reset
        self._emit_until_ms = 0
        self._notices: deque[Notice] = deque()  # one REVOKE at a time, ASSIGNED are merged: a handful, besides commits
        self._view: frozenset[TopicPartition] = frozenset()  # what it knew when its poll began, or learned since
        self.in_hand: Notice | None = None  # what `next_notice` returned, until its callback is over
        self.taken: list[Run] | None = None  # by a poll that has not returned yet
        self.is_interrupted = False  # a change of the buffer may be half done; see `Frontend.undo`
        self._known: frozenset[TopicPartition] = frozenset()  # `on_assign` has begun, and they are not given up
        self._assigning: set[TopicPartition] = set()  # `on_assign` is running
        self._is_losing = False  # `on_lost` is running
        self._announced: dict[int, None] = {}  # pending commits that will end with a notice, in order
        self._commits = AwaitedAnswers[CommitFailedError | None]()
        self.stored = AwaitedAnswers[tuple[Mapping[TopicPartition, int | None], str | None]]()
        self._without_position: dict[TopicPartition, RebalancerError] = {}  # partitions without a position
        self.unreadable: frozenset[TopicPartition] = frozenset()  # whose fetches fail; only `note_fetches` changes it
        self._failure: RebalancerError | None = None
        self.breakdown: RebalancerError | None = None  # the first one
        self._counts = dict.fromkeys((*COUNTERS, *(tell.counter for tell in Tell)), 0)
        self.presence = Presence(now_ms)
        self.origins: dict[TopicPartition, Origin] = {}  # as the last start found them; for a region
        self.is_awaited = True  # the fetcher's thread has to fetch, as the application finds no records
        self.is_out = True
        self.is_closed = False

    # ---- the machine thread's side

    def emit_until(self, until_ms: int) -> None:
        """Let records be returned while the clock is below `until_ms`. Nobody waits for a renewal in time."""
        with self.changed.lock:
            is_renewed_in_time = self.now_ms() < self._emit_until_ms <= until_ms
            self._emit_until_ms = until_ms
            if not is_renewed_in_time:
                self.changed.notify()

    def admit(self, partition: TopicPartition, generation: int, position: int, thread: int = 0) -> None:
        """Accept records of a partition."""
        with self.changed.lock:
            self.buffer.admit(partition, generation, position, thread)
            self.changed.notify()

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Return no more records of these partitions."""
        with self.lock:
            self.buffer.stop(partitions)
            self.got_position(partitions)
            self.fetcher_wake.notify()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Continue with stopped partitions."""
        with self.lock:
            self.buffer.resume(partitions)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned, with their callbacks that are due."""
        with self.lock:
            self.buffer.forget(partitions)
            self.ends.forget(partitions)
            self.got_position(partitions)
            self._known = self._known.difference(partitions)
            for notice in self._notices:
                if notice.tell is Tell.ASSIGNED:
                    notice.partitions.difference_update(partitions)
            self.changed.notify()  # a callback may have waited for one of these to be admitted
            self.fetcher_wake.notify()

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the position of every partition."""
        with self.lock:
            return self.buffer.positions()

    def tell(self, tell: Tell, partitions: Collection[TopicPartition] = (), token: int = 0) -> None:
        """Queue a callback. LOST covers all partitions that the application knows; only commits stay in the queue."""
        with self.changed.lock:
            last = self._notices[-1] if self._notices else None
            if tell is Tell.LOST:
                self._notices = deque(notice for notice in self._notices if notice.tell in NO_PARTITIONS)
                partitions, self._known = self._known, frozenset()
            if tell is Tell.ASSIGNED and last is not None and last.tell is Tell.ASSIGNED:
                last.partitions.update(partitions)
            else:
                self._notices.append(Notice(tell, set(partitions), token))
            self.changed.notify()

    def tell_event(self, name: str, call: Callable[[], object]) -> None:
        """Queue a callback of Kafka's client; `name` is its setting."""
        with self.changed.lock:
            waiting = [notice for notice in self._notices if notice.tell is Tell.EVENT]
            former = next((notice for notice in waiting if notice.name == name == LAST_COUNTS), None)
            if former is not None:
                former.call = call
            elif len(waiting) < MAX_EVENTS:
                self._notices.append(Notice(Tell.EVENT, set(), name=name, call=call))
                self.changed.notify()

    def commit_finished(self, tokens: Collection[int], error: str | None) -> None:
        """Note that commits are stored, or have failed."""
        failure = None if error is None else CommitFailedError(f"the offsets are not committed: {error}")
        with self.changed.lock:
            for token in tokens:
                if not self._commits.answer(token, failure) and token in self._announced:
                    del self._announced[token]
                    self._notices.append(Notice(Tell.COMMITTED, set(), token, failure))
            self.changed.notify()

    def answer(self, token: int, offsets: Mapping[TopicPartition, int | None], error: str | None) -> None:
        """Answer a request for stored offsets."""
        with self.changed.lock:
            self.stored.answer(token, (offsets, error))
            self.changed.notify()

    def note_fetches(self, failing: Collection[TopicPartition] = (), working: Container[TopicPartition] = ()) -> None:
        """Note partitions whose fetches fail, or no longer do; several threads may."""
        with self.lock:
            self.unreadable = frozenset(tp for tp in (*self.unreadable, *failing) if tp not in working)

    def fail(self, error: RebalancerError) -> None:
        """Raise this in the application's next poll."""
        with self.changed.lock:
            self._failure = error
            self.changed.notify()

    def break_down(self, error: RebalancerError) -> None:
        """Raise this in every poll from now on: the consumer cannot recover."""
        with self.changed.lock:
            self.breakdown = self.breakdown or error
            self.changed.notify()

    def become_out(self) -> None:
        """Let the application's poll ask for a new registration."""
        with self.changed.lock:
            self.is_out = True
            self.changed.notify()

    def become_closed(self) -> None:
        """Note that the machine thread has ended."""
        self.commit_finished(list(self._announced), str(self._left()))
        with self.changed.lock:
            self.is_closed = True
            self.changed.notify()

    # ---- the application's side

    def count_on(self, former: SharedState) -> None:
        """Continue the counts of the state before `unsubscribe`."""
        self._counts = former._counts
        self.presence.count_on(former.presence)

    def come(self, *, finishes: bool = False) -> None:
        """Note that the application polls, or is back from a callback; `finishes`: returned records are finished."""
        with self.lock:
            self.presence.come()
            self._view = self._known
            if finishes:
                self.buffer.finish()

    def go(self) -> None:
        """Note that the application has left the poll, or is in a callback."""
        self.presence.go()

    def take(
        self, max_records: int | None, record: DeliveryRecorder, among: Collection[TopicPartition] | None = None
    ) -> list[Run]:
        """Return up to `max_records` records (None: all) of all partitions, or `among` some, if the lease holds now.

        The lock must be held: the delivery is recorded under it, so that it never follows the partition's stop, with
        the moment at which the lease was checked. A process suspended right after that check still returns this batch.
        Without `among`, a callback that waits is an `on_assign`, whose partitions are being admitted: it comes first.
        """
        looked_at_us = time.monotonic_ns() // 1_000
        if not self.buffer.record_count or self.now_ms() >= self._emit_until_ms or (among is None and self._notices):
            return []
        runs: list[Run] = []
        self.taken = runs if among is None else self.taken  # first, for `Frontend.undo`
        self.buffer.take(max_records, among, runs)
        if not runs:
            return []
        self._counts["polled_batches_total"] += 1
        self._counts["polled_records_total"] += sum(len(run.messages) for run in runs)
        record(runs, looked_at_us)
        is_relied_on = among is not None and self.is_awaited  # another thread waits, which the fetcher had no room for
        if (self.buffer.has_shares or is_relied_on) and self.buffer.room:
            self.fetcher_wake.notify()
        return runs

    def await_records(self) -> None:
        """Let the fetcher's thread wait for records; the lock must be held."""
        self.is_awaited = True
        self.fetcher_wake.notify()

    def advance(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Advance]:
        """If the lease holds now, count records below these offsets as returned: others have read them."""
        with self.lock:
            return self.buffer.advance(offsets) if self.now_ms() < self._emit_until_ms else {}

    @property
    def has_notice(self) -> bool:
        """Whether `next_notice` would return one; the lock must be held."""
        if not self._notices:
            return False
        first = self._notices[0]
        return first.tell is not Tell.ASSIGNED or self.buffer.holds(first.partitions)

    def next_notice(self) -> Notice | None:
        """Return the next callback to run; the lock must be held.

        `on_assign` waits until its partitions are admitted, so that it may seek. `on_revoke` leaves out partitions for
        which it has run already, in a stop that was pending when the consumer left.
        """
        try:
            while self._notices and self.has_notice:
                notice = self.in_hand = self._notices[0]
                self._notices.popleft()
                self._announce(notice)
                if notice.partitions or notice.tell is Tell.REVOKE or notice.tell in NO_PARTITIONS:
                    return notice
                self.in_hand = None
        except BaseException:  # a signal's exception
            self.put_back()
            raise
        return None

    def _announce(self, notice: Notice) -> None:
        partitions = notice.partitions & self._known if notice.tell is Tell.REVOKE else notice.partitions
        known, view = self._known, self._view
        if notice.tell is Tell.ASSIGNED:
            known, view = known | partitions, view | partitions
        elif notice.tell is Tell.REVOKE:
            known, view = known - partitions, view - partitions
        self._counts[notice.tell.counter] += len(partitions)
        # No calls from here on: nothing interrupts these assignments.
        if notice.tell is Tell.ASSIGNED:
            self._assigning = partitions
        self._is_losing = notice.tell is Tell.LOST
        notice.partitions, self._known, self._view, notice.is_announced = partitions, known, view, True

    def put_back(self) -> None:
        """Queue the notice in hand again, as its callback was not called; the lock must be held."""
        notice = self.in_hand
        if notice is None:
            return
        if notice.is_announced:
            counter, count = notice.tell.counter, len(notice.partitions)
            known, view, partitions = self._known, self._view, notice.partitions
            if notice.tell is Tell.ASSIGNED:
                known = known - partitions
                partitions = {tp for tp in partitions if self.buffer.holds({tp})}
            elif notice.tell is Tell.REVOKE:
                known, view = known | partitions, view | partitions
            assigning = set() if notice.tell is Tell.ASSIGNED else self._assigning
            # No calls from here on, as in `_announce`.
            self._counts[counter] -= count
            self._known, self._view, self._assigning, notice.partitions = known, view, assigning, partitions
            notice.is_announced = self._is_losing = False
        if not self._notices or self._notices[0] is not notice:
            self._notices.appendleft(notice)
        self.in_hand = None

    def called_back(self, notice: Notice) -> None:
        """Note that a notice's callback is over."""
        with self.changed.lock:
            self._is_losing = False
            if notice.tell is Tell.ASSIGNED:
                self._assigning = set()
            elif notice.tell is Tell.REVOKE:
                self.buffer.let_go(notice.partitions - given_back(self._notices))
            self.changed.notify()

    @property
    def unannounced(self) -> set[TopicPartition]:
        """Partitions whose `on_assign` is not over: it may still seek or pause them. The lock must be held."""
        return self._assigning | given_back(self._notices)

    @property
    def revoking(self) -> set[TopicPartition]:
        """The partitions of the next callback if that is an `on_revoke`; the lock must be held."""
        first = self._notices[0] if self._notices else None
        return first.partitions if first is not None and first.tell is Tell.REVOKE else set()

    def is_known(self, partition: TopicPartition) -> bool:
        """Whether the application knows of a partition, and still owns it; the lock must be held."""
        return partition in self._known and self.buffer.holds({partition})

    def was_known(self, partition: TopicPartition) -> bool:
        """Whether the application may believe that it owns a partition, which may be lost by now."""
        return partition in self._view

    def take_failure(self) -> RebalancerError | None:
        """Return an error to raise, one that can pass only once, none of a paused partition; the lock must be held."""
        failure, self._failure = self.breakdown or self._failure, None
        paused = set(self.buffer.paused()) if self._without_position and not self.buffer.settings.begins_paused else ()
        return failure or next((error for tp, error in self._without_position.items() if tp not in paused), None)

    def need_position(self, partition: TopicPartition, error: RebalancerError) -> None:
        """Raise this in every poll until the application seeks; the lock must be held."""
        self._without_position[partition] = error
        self.changed.notify()

    def reset(self, found: OutOfRange) -> None:
        """Continue after an offset that Kafka does not have; the lock must be held, and `report` has to follow."""
        self._counts["offsets_out_of_range_total"] += 1
        if found.goes_on_at is None:
            self.need_position(found.partition, found.error)
        else:
            self.buffer.reset(found.partition, found.goes_on_at)

    def report(self, resets: Iterable[OutOfRange]) -> None:
        """Record and log resets. The lock must not be held, as a log handler may ask for `metrics`."""
        for found in resets:
            self._record_reset(found)
            if found.goes_on_at is not None:
                _log.warning("%s", found)

    def got_position(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions have a position again; the lock must be held."""
        for partition in partitions:
            self._without_position.pop(partition, None)

    def has_commit(self, token: int) -> bool:
        """Whether a commit is over; the lock must be held."""
        return self._commits.has(token) or self.is_closed

    def take_commit(self, token: int) -> CommitFailedError | None:
        """Return the error of a commit that is over, or is no longer awaited."""
        with self.lock:
            return self._commits.take(token, self._left())

    def begin_commit(self, token: int, finished: Mapping[TopicPartition, Finished] | None, *, by_notice: bool) -> None:
        """Mark this as finished (None: all that was returned), and expect its commit.

        Raises:
            CommitFailedError, ConsumerStateError: see `RecordBuffer.finish_at`.
            TooManyCommitsError: MAX_ANNOUNCED_COMMITS are waiting.

        """
        with self.lock:
            if self.is_closed:
                raise self._left()
            if self._is_losing:  # the consumer may have joined again, with nothing to commit
                raise CommitFailedError("the partitions are lost; others read their records again")
            if by_notice and len(self._announced) + len(self._notices) >= MAX_ANNOUNCED_COMMITS:
                raise TooManyCommitsError(f"{MAX_ANNOUNCED_COMMITS} commits are waiting; poll, or commit less often")
            if finished is None:
                self.buffer.finish(self.taken or ())
            else:
                self.buffer.finish_at(finished)
            if by_notice:
                self._announced[token] = None
            else:
                self._commits.expect(token)

    def _left(self) -> CommitFailedError:
        """Return the error of a commit after the end, with the cause of the end."""
        why = "" if self.breakdown is None else f": {self.breakdown}"
        error = CommitFailedError(f"the consumer has left its group{why}")
        error.__cause__ = self.breakdown
        return error

    def has_stored(self, token: int) -> bool:
        """Whether a request for stored offsets is answered; the lock must be held."""
        return self.stored.has(token) or self.is_closed

    def take_stored(self, token: int) -> tuple[Mapping[TopicPartition, int | None], str | None]:
        """Return the stored offsets, or why they are unknown."""
        with self.lock:
            return self.stored.take(token, ({}, str(self._left())))

    def metrics(self) -> dict[str, float]:
        """Return numbers by name; the lock must be held."""
        now_ms = self.now_ms()
        return {
            **{name: count for name, count in self._counts.items() if name not in UNSHOWN},
            "assigned_partitions": len(self.buffer.emitting()),
            "paused_partitions": len(self.buffer.paused()),
            "unpositioned_partitions": len(self._without_position.keys() | self.buffer.unplaced()),
            "unreadable_partitions": len(self.unreadable.intersection(self.buffer.emitting())),
            "retained_records": self.buffer.retained_count,
            **self.ends.measure(self.buffer.emitting_positions(), now_ms)._asdict(),
            "lease_ms": min(max(0, self._emit_until_ms - now_ms), MAX_LEASE_MS),
            **self.presence.metrics(),
        }

    def count(self, metric: str) -> None:
        """Count something that happens rarely: one of COUNTERS."""
        with self.lock:
            self._counts[metric] += 1

    def finish(self) -> None:
        """Mark all returned records as finished; a poll of another thread may have taken some and not returned them."""
        with self.lock:
            self.buffer.finish(self.taken or ())

    def finish_below(self, finished: Mapping[TopicPartition, Finished]) -> None:
        """Mark the returned records below these offsets as finished."""
        with self.lock:
            self.buffer.finish_below(finished)
