"""The engine thread: performs what the machine decides, on its own gevent hub with its own ZooKeeper session.

A blocked application therefore never costs the session or the lease. Every event goes through one queue; other threads
add to it with `send`. Nothing is decided here.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import gevent
from gevent.event import Event as Flag

from consumer_agent import failpoints, signals
from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import ConsumerError, NoOffsetError
from consumer_agent.handover import Handover, Tell
from consumer_agent.kafka_store import KafkaStore
from consumer_agent.keeper import LOOK_INTERVAL_S, FetcherKeeper
from consumer_agent.machine import Machine
from consumer_agent.native import Condition, Thread, new_lock
from consumer_agent.signals import Effect, Event
from consumer_agent.storage import NO_OFFSET
from consumer_agent.telemetry import Telemetry
from zkrebalancer.protocol.calls import ZooKeeperEvent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import ZkClient

MAX_EVENTS = 100_000  # waiting; more means that the engine has stopped
EVENTS_PER_ROUND = 1_000  # between two looks at the clock
SESSION_CLOSE_TIMEOUT_S = 1.0

_log = logging.getLogger(__name__)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # runs while the machine sleeps, as the lease does


def now_ms() -> int:
    """Read the clock of leases, in milliseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


class Engine:
    """Runs one machine in a thread of its own."""

    def __init__(
        self,
        config: ConsumerConfig,
        machine: Machine,
        handover: Handover,
        fetcher: FetcherKeeper,
        telemetry: Telemetry,
        store: KafkaStore | None = None,
    ) -> None:
        """Prepare; nothing runs before `start`."""
        self._config = config
        self._machine = machine
        self._handover = handover
        self._fetcher = fetcher
        self._telemetry = telemetry
        self._store = store  # where offsets are kept in Kafka
        self._events: deque[Event] = deque()
        self._client: ZkClient | None = None
        self._closing: list[gevent.Greenlet[..., None]] = []
        self._running = True
        self._is_over = False
        self._is_started = False
        self._wake_lock = Condition(new_lock())
        self._thread = Thread(self._run, "consumer-agent-engine")
        self._performers: Mapping[type[Effect], Callable[..., None]] = self._table()

    def start(self) -> None:
        """Start the thread; `send` may be called afterwards."""
        self._thread.start()
        with self._wake_lock:
            while not self._is_started:
                self._wake_lock.wait()

    def send(self, event: Event) -> None:
        """Give the machine an event, from any thread; after the end it is dropped."""
        if len(self._events) >= MAX_EVENTS:
            raise ConsumerError("the consumer's engine has stopped")
        with self._wake_lock:
            if not self._is_over:
                self._events.append(event)
                self._wake.send()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    # ---- the engine's own thread

    def _run(self) -> None:
        self._flag = Flag()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._flag.set)
        with self._wake_lock:
            self._is_started = True
            self._wake_lock.notify()
        try:
            while self._running:
                self._round()
        finally:
            self._handover.emit_until(0)
            if self._running:
                self._handover.break_down(ConsumerError("the consumer's engine has stopped"))
            self._handover.become_closed()
            self._close_session()
            if self._store is not None:
                self._store.close()
            gevent.joinall(self._closing, timeout=SESSION_CLOSE_TIMEOUT_S)
            with self._wake_lock:
                self._is_over = True
                self._wake.close()
            gevent.get_hub().destroy(destroy_loop=True)

    def _round(self) -> None:
        self._flag.clear()
        for _ in range(min(len(self._events), EVENTS_PER_ROUND)):
            self._step(self._events.popleft())
        wake_at_ms, now = self._machine.wake_at_ms, now_ms()
        if wake_at_ms is not None and now >= wake_at_ms:
            self._step(signals.Tick())
        elif not self._events and self._running:
            wait_s = LOOK_INTERVAL_S if wake_at_ms is None else (wake_at_ms - now) / 1_000
            self._flag.wait(min(wait_s, LOOK_INTERVAL_S))
        self._fetcher.look_after()

    def _step(self, event: Event) -> None:
        for effect in self._machine.step(event, now_ms()):
            self._performers[type(effect)](effect)

    def _table(self) -> dict[type[Effect], Callable[..., None]]:
        handover = self._handover
        return {
            signals.OpenSession: lambda _: self._open_session(),
            signals.CloseSession: lambda effect: self._close_session(effect.not_before_ms),
            signals.Request: self._request,
            signals.EmitUntil: lambda effect: handover.emit_until(effect.until_ms),
            signals.ReadProgress: lambda effect: self._answer_progress(effect.token),
            signals.StopEmitting: self._stop_emitting,
            signals.LookAtApplication: self._look_at_application,
            signals.ResolveOffsets: self._resolve,
            signals.ReadKafkaOffsets: self._read_kafka_offsets,
            signals.CommitToKafka: self._commit_to_kafka,
            signals.StartFetching: self._start_fetching,
            signals.ResumeFetching: self._resume_fetching,
            signals.Forget: self._forget,
            signals.TellAssigned: lambda effect: handover.tell(Tell.ASSIGNED, effect.partitions),
            signals.AskRevoke: lambda effect: handover.tell(Tell.REVOKE, effect.partitions, effect.token),
            signals.TellLost: lambda _: handover.tell(Tell.LOST),
            signals.CommitFinished: lambda effect: handover.commit_finished(effect.tokens, effect.error),
            signals.TellStored: lambda effect: handover.answer(effect.token, effect.offsets, effect.error),
            signals.BecameOut: lambda _: handover.become_out(),
            signals.Failed: lambda effect: (handover.break_down if effect.for_good else handover.fail)(effect.error),
            signals.Closed: lambda _: self._end(),
            signals.RecordFetcher: self._telemetry.fetcher,
            signals.RecordCommitted: lambda effect: self._telemetry.committed(
                effect.member, effect.generation, effect.offsets
            ),
            signals.RecordLost: self._record_lost,
            signals.RecordPollLate: self._telemetry.poll_late,
            signals.RecordQuarantined: self._telemetry.quarantined,
            signals.Warn: lambda effect: _log.warning("%s", effect.text),
            signals.Failpoint: lambda effect: failpoints.reach(effect.name),
        }

    def _end(self) -> None:
        self._running = False

    # ---- session

    def _open_session(self) -> None:
        def take(event: ZooKeeperEvent) -> None:
            if self._client is client:
                self._events.append(event)
                self._flag.set()

        client = ZkClient(self._config.zookeeper, self._config.session_timeout_ms, take)
        self._client = client
        client.start()

    def _close_session(self, not_before_ms: int = 0) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._closing = [greenlet for greenlet in self._closing if not greenlet.dead]
            self._closing.append(gevent.spawn_later(max(0, not_before_ms - now_ms()) / 1_000, client.close))

    def _request(self, effect: signals.Request) -> None:
        if self._client is not None:
            self._client.request(effect.call_id, effect.call)

    # ---- partitions

    def _stop_emitting(self, effect: signals.StopEmitting) -> None:
        self._handover.stop(effect.partitions)
        self._answer_progress(effect.token)
        self._fetcher.unassign(effect.partitions)

    def _answer_progress(self, token: int) -> None:
        self._events.appendleft(signals.Progress(token, self._handover.positions()))

    def _look_at_application(self, effect: signals.LookAtApplication) -> None:
        with self._handover.lock:
            away_since_ms = self._handover.away_since_ms
        positions = self._handover.positions()
        self._events.appendleft(signals.ApplicationSeen(effect.token, away_since_ms, positions))

    def _start_fetching(self, effect: signals.StartFetching) -> None:
        for partition, position in effect.positions.items():
            self._handover.admit(partition, effect.generation, position, effect.threads.get(partition, 0))
        self._begin_to_fetch(effect.positions.keys())

    def _resume_fetching(self, effect: signals.ResumeFetching) -> None:
        self._handover.resume(effect.partitions)
        self._begin_to_fetch(effect.partitions)

    def _begin_to_fetch(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from where the application is at that moment: its `on_assign` may be seeking already."""
        fetched = self._handover.buffer.fetched
        self._fetcher.change(lambda: {tp: offset for tp, offset in fetched().items() if tp in partitions})
        self._tell_placeless(partitions)

    def _tell_placeless(self, partitions: Collection[TopicPartition]) -> None:
        why = f"no offset of group {self._config.group} is stored, and auto_offset_reset is none"
        with self._handover.lock:
            for partition, mark in self._handover.buffer.positions().items():
                if partition in partitions and mark.returned == NO_OFFSET:
                    text = f"{partition[0]}/{partition[1]}: {why}"
                    self._handover.misplace(partition, NoOffsetError(text, partition))

    def _forget(self, effect: signals.Forget) -> None:
        self._handover.forget(effect.partitions)
        self._fetcher.unassign(effect.partitions)

    def _resolve(self, effect: signals.ResolveOffsets) -> None:
        self._fetcher.resolve(
            effect.partitions, lambda offsets: self.send(signals.OffsetsResolved(effect.token, offsets))
        )

    def _read_kafka_offsets(self, effect: signals.ReadKafkaOffsets) -> None:
        if self._store is not None:
            self._store.read(effect.partitions, lambda found: self.send(signals.KafkaOffsetsRead(effect.token, found)))

    def _commit_to_kafka(self, effect: signals.CommitToKafka) -> None:
        """Send a commit if it can be over in time: later than `until_ms` somebody else may own the partitions."""
        left_ms = effect.until_ms - self._handover.now_ms()

        def answer(failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None:
            self.send(signals.KafkaCommitted(effect.token, failed, is_hopeless))

        if self._store is not None and left_ms > 0:
            self._store.commit(effect.offsets, left_ms / 1_000, answer)
        else:
            answer(dict.fromkeys(effect.offsets, "too late"), is_hopeless=False)

    def _record_lost(self, effect: signals.RecordLost) -> None:
        positions = self._handover.positions()
        held = {partition: positions[partition].returned for partition in effect.partitions if partition in positions}
        self._telemetry.fetcher(
            signals.RecordFetcher("fetcher_stopped", effect.member, effect.generation, None, held, "lost")
        )
