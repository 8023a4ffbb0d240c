"""Replaces a fetcher whose librdkafka hangs, or stops fetching a partition.

When a broker goes away, librdkafka's threads may deadlock (its issues 5304 and 5476; killing brokers at random shows
it): then no call returns, whatever its timeout. Such a thread cannot be ended, so it is abandoned, and a new client
fetches its partitions from the application's positions. `stall_detector.py` finds stuck partitions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from confluent_kafka import KafkaException

from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka.client import CONNECT_TIMEOUT_S, aside
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.kafka.offset_queries import Offsets, Where
from consumer_agent.kafka.unreadable import Unreadable
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.threads import new_reentrant_lock
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

LOOK_INTERVAL_S = 4.0  # how often `look_after` has to be called
AWAY_S = 1.25 * LOOK_INTERVAL_S  # between two such calls: the process was suspended
STUCK_LIMIT_S = 2 * CONNECT_TIMEOUT_S  # longer than any call of librdkafka may take
REPLACEMENTS_PERIOD_S = 86_400.0  # older replacements do not count: a process may live for a year
MAX_REPLACEMENTS = 20  # within that period; each leaks some threads and what they had fetched
RECENT_S = 600.0  # the pause before a replacement doubles with each one within this time
PAUSE_S = 1.0
MAX_PAUSE_S = 30.0  # so that a shortage (of descriptors, threads) may last for minutes before the limit is reached

_log = logs.named(__name__)


class NewFetcher(Protocol):
    """Makes a fetcher; `reports`: its client makes statistics, which show that it moves."""

    def __call__(self, *, reports: bool) -> Fetcher: ...  # noqa: D102


class WatchedFetcher:
    """A fetcher that is replaced when it hangs. `current` is the present one."""

    def __init__(self, new_fetcher: NewFetcher, shared: SharedState, *, is_slow: bool = False) -> None:
        """Prepare the first fetcher; `is_slow`: that takes too long for the machine thread, because of a token.

        Raises:
            KafkaException: librdkafka refuses a setting, or there is no token.

        """
        self._new_fetcher = new_fetcher
        self._is_slow = is_slow
        self._is_replacing = False
        self._shared = shared
        self.current = new_fetcher(reports=False)
        self._replaced_at_s: deque[float] = deque()  # within the period
        self._unreadable = Unreadable()
        self._stopped = False
        self._lock = new_reentrant_lock()  # for signals' handlers
        self._seen: int | None = None  # the fetcher's progress, and since when it is the same
        self._seen_s = self._looked_s = self._awake_since_s = 0.0

    def stop(self) -> None:
        """Make the thread end; does not wait."""
        with self._lock:
            self._stopped = True
            self.current.stop()

    def change(self, decide: Callable[[], Mapping[TopicPartition, int | None]]) -> None:
        """Change what is fetched; see `Fetcher.change`. Waits while a replacement takes over."""
        with self._lock:
            self.current.change(decide)

    def look_after(self) -> None:
        """Replace the fetcher if it or its client has failed or hangs, or if a partition is stuck."""
        now_s, progress = time.monotonic(), self.current.progress
        was_away = now_s - self._looked_s > AWAY_S  # the process was suspended, and the fetcher with it
        self._looked_s = now_s
        if was_away:
            self._awake_since_s = now_s
        # First, as the list of stuck partitions also stands still while the thread hangs that makes it.
        if progress is None or progress != self._seen or was_away:
            self._seen, self._seen_s = progress, now_s
        if self.current.failure is not None:
            self._replace(f"has failed: {self.current.failure}", self.current.failure)
        elif self.current.queries.is_overdue(self._awake_since_s):
            self._replace("answers no queries")
        elif progress is not None and now_s - self._seen_s > STUCK_LIMIT_S:
            self._seen = None
            self._replace(f"has not returned from a call for {STUCK_LIMIT_S:.0f} s")
        elif self.current.stuck:
            self._look_after_stuck(self.current.stuck, now_s)
        self._ask_for_ends()

    def _look_after_stuck(self, stuck: Collection[TopicPartition], now_s: float) -> None:
        """Replace the fetcher, but rarely for a partition that another client could not read either."""
        with self._shared.lock:
            offsets = {partition: self._shared.buffer.next_offset(partition) for partition in stuck}
        due = self._unreadable.due(offsets, now_s)
        for topic, number in self._unreadable.new(offsets):
            offset = offsets[topic, number]
            self._shared.note_fetches(failing=[(topic, number)])
            _log.warning(
                "%s/%s: no client gets Kafka's records from offset %s on: is its log damaged?", topic, number, offset
            )
        if due and self._replace("no longer fetches {}/{}".format(*due[0])):
            self._unreadable.tried(offsets, now_s)

    def _ask_for_ends(self) -> None:
        """Ask Kafka for the ends of the assigned partitions, if the lag is wanted."""
        shared = self._shared

        def answer(found: Mapping[Where, Offsets]) -> None:
            with shared.lock:
                shared.ends.note(found["latest"], shared.buffer.emitting(), shared.now_ms())

        with shared.lock:
            partitions = shared.buffer.emitting() if shared.ends.is_due(shared.now_ms()) else []
        if partitions:
            self.current.queries.ask(partitions, ["latest"], answer)

    def _replace(self, reason: str, cause: BaseException | None = None) -> bool:
        """Begin to replace it, unless it is too early; return whether it has begun."""
        if self._is_replacing:
            return False
        now_s = time.monotonic()
        while self._replaced_at_s and now_s - self._replaced_at_s[0] >= REPLACEMENTS_PERIOD_S:
            self._replaced_at_s.popleft()
        recent = sum(now_s - at_s < RECENT_S for at_s in self._replaced_at_s)
        if recent and now_s - self._replaced_at_s[-1] < min(PAUSE_S * 2.0**recent, MAX_PAUSE_S):
            return False
        if len(self._replaced_at_s) >= MAX_REPLACEMENTS:
            often = f"{MAX_REPLACEMENTS + 1} times within {REPLACEMENTS_PERIOD_S / 3_600:g} h"
            text = f"the Kafka client has failed {often}; the last time it {reason}"
            error = KafkaUnavailableError(text)
            error.__cause__ = cause
            self._shared.break_down(error)
            return False
        _log.warning("the Kafka client %s; it is replaced", reason)
        self._replaced_at_s.append(now_s)
        if self._is_slow:
            self._is_replacing = True
            aside(self._make_another, "consumer-agent-replacing")
        else:
            self._make_another()
        return True

    def _make_another(self) -> None:
        try:
            self._put_in_place(self._new_fetcher(reports=True))
        except (KafkaException, RuntimeError) as error:  # no descriptors or threads are left; the next call retries
            _log.warning("the Kafka client cannot be replaced yet: %s", error)
        finally:
            self._is_replacing = False

    def _put_in_place(self, fetcher: Fetcher) -> None:
        with self._lock:
            if self._stopped:
                fetcher.discard()
                return
            former = self.current
            fetcher.take_over(former)
            self.current = fetcher
            if former.is_drawing:  # it may be the application's thread that hangs
                with self._shared.lock:
                    self._shared.presence.begin_hang(lambda: former.is_drawing)
        fetcher.start()
