"""Runs an application in a child process, which gets records and answers with acknowledgements.

One thread works in rounds: poll the consumer for as many records as there is room for, exchange bytes with the child,
finish what it has acknowledged. A slow child therefore fills only bounded buffers and never keeps the agent from
polling. `ledger.py` decides which records to give, and to give again; `child.py` is the process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consumer_agent.consumer import CLOSE_TIMEOUT_S, Consumer
from consumer_agent.errors import ConsumerError
from consumer_agent.sidecar.child import Child, ChildEndedError, command_line
from consumer_agent.sidecar.dead_letters import DeadLetters
from consumer_agent.sidecar.frames import CODECS, Ack, Fail, Frame, Revoked
from consumer_agent.sidecar.ledger import Ledger, backoff_ms
from consumer_agent.sidecar.run_counts import RunCounts
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

IDLE_POLL_S = 0.2  # while nothing is open: signals and the child's end are noticed within this time
BUSY_POLL_S = 0.02  # while something is open: the same for acknowledgements if no records come
LOOK_INTERVAL_S = 0.05  # while waiting for the child: between polls of the consumer and checks for signals
END_TIMEOUT_S = 5.0  # in which a child without records should end after its input was closed

_log = logs.named(__name__)


class ChildError(ConsumerError):
    """The child fails too often, or a record does and there is no destination for dead letters."""


class StoppedInFlightError(ConsumerError):
    """The agent was stopped before the child had acknowledged all its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """How the child is run. Times are in milliseconds."""

    command: str
    """The command line of the child."""
    frames: str = "json"
    """Format of the frames: `json` lines, or length-prefixed `msgpack`."""
    max_in_flight_records: int = 500
    """Most records fetched for the child and not yet acknowledged."""
    max_in_flight_bytes: int = 16 * 1024 * 1024
    """Most bytes fetched for the child and not yet acknowledged, besides those of one poll."""
    max_failures: int = 3
    """Failures of one record before it goes to `dead_letter`. At most `max_restarts`."""
    max_restarts: int = 10
    """Children in a row that may end without a single answer."""
    revoke_timeout_ms: int = 20_000
    """Time for the child to answer a revoke; shorter than the coordinator's wait for a stop, and by default at most two
    thirds of it."""
    drain_timeout_ms: int = 5_000
    """Time for the child to acknowledge its records when the agent stops."""


class Sidecar:
    """Runs a consumer with a child until `signal_count` is no longer 0; a second signal ends the child at once."""

    def __init__(
        self,
        settings: SidecarSettings,
        consumer: Consumer,
        letters: DeadLetters | None,
        signal_count: Callable[[], int],
        run_counts: RunCounts,
        on_poll: Callable[[], None],
    ) -> None:
        """Prepare; `on_poll` is called after every poll, and while the child is waited for in one.

        Raises:
            ConfigurationError: the command does not exist.

        """
        self._settings = settings
        self._words = command_line(settings.command)
        self._consumer = consumer
        self._letters = letters
        self._signal_count = signal_count
        self._run_counts = run_counts
        self._on_poll = on_poll
        run_counts.has_child = True
        self._ledger = Ledger(settings.max_in_flight_records, settings.max_in_flight_bytes, settings.max_failures)
        self._child: Child | None = None
        self._has_failed = False
        self._silent_ends = 0  # children in a row that answered nothing
        self._start_at_ms = 0
        self._revoking: set[TopicPartition] = set()
        self._unanswered: Counter[TopicPartition] = Counter()  # revokes that the child has not answered with `revoked`
        self._lost: Counter[TopicPartition] = Counter()  # those of them that told of a loss; they are the oldest
        self._release_by_s = 0.0  # when the last one has to be answered
        self._give_up_s: float | None = None  # known once the agent has to stop
        self._left_behind = 0

    def run(self, subscribe: dict[str, Any]) -> None:
        """Read, until a signal or an error.

        Raises:
            ChildError, FrameError, DeadLetterError: only acknowledged records and dead letters are finished.
            StoppedInFlightError: the child was not done in time after a signal.

        """
        try:
            self._start()
            with self._consumer as consumer:
                consumer.subscribe(**subscribe, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)
                self._read()
                consumer.close(self._settings.drain_timeout_ms / 1_000 + CLOSE_TIMEOUT_S)
            self._left_behind += self._ledger.given_count
        finally:
            try:
                self._end()
            finally:  # also if a signal's exception comes before that has begun
                try:
                    self._kill()
                finally:
                    if self._letters is not None:
                        self._letters.close()
        if self._left_behind:
            raise StoppedInFlightError(
                f"stopped before the child had acknowledged {self._left_behind} records; they will be read again"
            )

    # ---- rounds

    def _read(self) -> None:
        try:
            while not self._signal_count():
                self._round()
        except BaseException:
            self._fail()
            raise

    def _round(self) -> None:
        ledger, room = self._ledger, self._ledger.room
        is_held_up = self._child is not None and (room == 0 or ledger.open_count > ledger.given_count)
        timeout_s = 0.0 if is_held_up else BUSY_POLL_S if ledger.open_count or self._child is None else IDLE_POLL_S
        batch = self._consumer.poll(timeout_s, max_records=room)
        self._run_counts.add(batch)
        self._on_poll()
        ledger.take(batch)
        self._exchange(LOOK_INTERVAL_S if is_held_up else 0.0)

    def _exchange(self, timeout_s: float) -> None:
        """Send the child its records, read its answers, and finish what is done."""
        now_ms = time.monotonic_ns() // 1_000_000
        if self._child is None and now_ms >= self._start_at_ms and not self._signal_count():
            self._start()
        child, ledger = self._child, self._ledger
        try:
            if child is not None:
                child.send(b"".join(map(child.codec.record, ledger.give(now_ms, self._lost))))
                self._listen(child, timeout_s, now_ms)
                self._require_release()
            self._bury()
        except ConsumerError:  # after any other exception, a record may be missing in the ledger
            self._consumer.finish(ledger.finished())
            raise
        self._consumer.finish(ledger.finished())
        self._run_counts.in_flight = ledger.given_count

    def _listen(self, child: Child, timeout_s: float, now_ms: int) -> None:
        try:
            for frame in child.exchange(timeout_s):
                self._handle(frame, now_ms)
        except ChildEndedError as error:
            self._child_ended(str(error))

    def _require_release(self) -> None:
        """Kill a child that does not answer the loss of partitions: until then, it gets no records of them."""
        if self._lost and time.monotonic() > self._release_by_s:
            timeout_s = self._settings.revoke_timeout_ms / 1_000
            self._child_ended(f"the child has not released lost partitions within {timeout_s:g} s")

    def _handle(self, frame: Frame, now_ms: int) -> None:
        if isinstance(frame, Revoked):
            answered = Counter(frame.partitions)
            self._unanswered -= answered
            self._lost -= answered
            self._revoking &= self._unanswered.keys()
            return
        count = 0
        if isinstance(frame, Ack):
            count = self._ledger.ack(frame.partition, frame.offset)
        elif isinstance(frame, Fail):
            count = self._ledger.fail(frame.partition, frame.offset, frame.reason, now_ms)
            self._run_counts.failures += count
        if count:
            self._silent_ends = 0

    def _bury(self) -> None:
        for letter in self._ledger.letters():
            record = letter.record
            place = f"{record.topic}/{record.partition} offset {record.offset}"
            if self._letters is None:
                raise ChildError(f"the child failed at {place} {letter.failures} times: {letter.reason}")
            _log.warning("%s failed %s times and becomes a dead letter: %s", place, letter.failures, letter.reason)
            self._letters.write(letter)
        if self._letters is not None:
            for partition, offset in self._letters.written():
                self._ledger.buried(partition, offset)
                self._run_counts.dead_letters += 1

    # ---- the child

    def _start(self) -> None:
        try:
            self._child = Child(self._words, CODECS[self._settings.frames]())
            self._run_counts.is_child_running = True
        except ChildEndedError as error:
            self._child_ended(str(error))

    def _child_ended(self, reason: str) -> None:
        """Reclaim the child's records; another child starts after a pause."""
        self._kill()
        held = self._ledger.child_ended(reason, had_others=bool(self._lost))
        self._revoking.clear()
        self._unanswered.clear()
        self._lost.clear()
        if self._signal_count():
            self._left_behind += held
            return
        self._silent_ends += 1
        if self._silent_ends > self._settings.max_restarts:
            raise ChildError(f"{reason}; {self._silent_ends} children in a row have ended without an answer")
        pause_ms = backoff_ms(self._silent_ends)
        self._start_at_ms = time.monotonic_ns() // 1_000_000 + pause_ms
        self._run_counts.restarts += 1
        _log.warning("%s, %s records in hand; another one starts in %s ms", reason, held, pause_ms)

    def _kill(self) -> None:
        self._run_counts.is_child_running = False
        if self._child is not None:
            self._child.kill()
        self._child = None  # last: `run` kills it after an exception

    def _fail(self) -> None:
        """Ask the child nothing more, and end its work before others get its partitions."""
        self._has_failed = True
        self._kill()

    def _end(self) -> None:
        deadline_s = time.monotonic() + (0.0 if self._has_failed else END_TIMEOUT_S)
        if self._child is not None:
            self._child.end(lambda: time.monotonic() > deadline_s or self._signal_count() > 1)
            self._child = None

    # ---- callbacks of the consumer

    def _assign(self, partitions: list[TopicPartition]) -> None:
        """Begin after the finished records, because a cancelled revoke has dropped the others."""
        finished, position = self._consumer.finished(), self._consumer.position()
        known = finished.keys() & position.keys() & set(partitions)  # one may be lost between the two calls
        again = {tp: finished[tp] for tp in known if finished[tp] != position[tp]}
        if again:
            self._consumer.seek(again)

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        """Let the child finish its records of these partitions; kill it if that takes too long.

        Otherwise it could process records of these partitions while their next consumer does. Their dead letters have
        the same time to be written.
        """
        ledger = self._ledger
        ledger.withhold(partitions)
        if not self._has_failed:
            try:
                self._let_finish(partitions)
            except BaseException:
                self._fail()
                raise
        ledger.drop(partitions)

    def _let_finish(self, partitions: list[TopicPartition]) -> None:
        if self._child is not None:
            self._revoking = set(partitions)
            self._tell_child(self._child, partitions)
        self._wait_released(partitions)
        self._consumer.finish(self._ledger.finished())

    def _wait_released(self, partitions: list[TopicPartition]) -> None:
        timeout_s = self._settings.revoke_timeout_ms / 1_000
        deadline_s = time.monotonic() + timeout_s
        while self._revoking or self._ledger.is_burying(partitions):
            self._exchange(LOOK_INTERVAL_S)
            self._on_poll()
            if self._is_over(deadline_s):
                if self._revoking:
                    self._child_ended(f"the child has not released revoked partitions within {timeout_s:g} s")
                if self._ledger.is_burying(partitions):
                    _log.warning("dead letters of revoked partitions are not written in time")
                break
            if self._child is None:
                time.sleep(LOOK_INTERVAL_S)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        """Drop these partitions and notify the child, which cannot save anything.

        It gets no more records of them until it has answered. They may come back before, at offsets that it has already
        had: a late acknowledgement would count for records that it never worked on.
        """
        self._ledger.drop(partitions)
        if self._child is not None:
            self._tell_child(self._child, partitions)
            self._lost.update(partitions)
            self._release_by_s = time.monotonic() + self._settings.revoke_timeout_ms / 1_000

    def _tell_child(self, child: Child, partitions: list[TopicPartition]) -> None:
        child.send(child.codec.revoke(partitions))
        self._unanswered.update(partitions)

    def _is_over(self, deadline_s: float) -> bool:
        now_s = time.monotonic()
        if self._signal_count() and self._give_up_s is None:
            self._give_up_s = now_s + self._settings.drain_timeout_ms / 1_000
        is_given_up = self._give_up_s is not None and now_s > self._give_up_s
        return now_s > deadline_s or is_given_up or self._signal_count() > 1
