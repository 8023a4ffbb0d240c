"""The machine thread: performs the state machine's effects, on its own gevent hub with its own ZooKeeper session.

A blocked application therefore loses neither session nor lease. All events pass through one queue, to which other
threads add with `send`. Nothing is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

import gevent
from gevent.event import Event as Flag

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import ConsumerError, NoOffsetError, has_stopped
from consumer_agent.kafka.elsewhere import LookAtKafka
from consumer_agent.kafka.offset_store import KafkaOffsetStore
from consumer_agent.kafka.watchdog import LOOK_INTERVAL_S, WatchedFetcher
from consumer_agent.membership import effects, events
from consumer_agent.membership.effects import Effect
from consumer_agent.membership.events import Event
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.membership.state_machine import StateMachine
from consumer_agent.runtime import failpoints
from consumer_agent.runtime.clock import now_ms
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Finished
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from consumer_agent.runtime.threads import Condition, Thread, new_reentrant_lock, require_descriptors
from zkrebalancer.protocol.calls import CHANGED, Multi, Refusal, Refused, Replied, ZooKeeperEvent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk import ZkClient

MAX_EVENTS = 100_000  # in the queue; more means that the machine thread has stopped
EVENTS_PER_ROUND = 1_000  # between two readings of the clock
LOOK_INTERVAL_MS = round(LOOK_INTERVAL_S * 1_000)
LOOK_PAUSE_MS = 1_000  # at least, between two looks after the fetcher
SESSION_CLOSE_TIMEOUT_S = 1.0
START_TIMEOUT_S = 10.0
EXPECTED = CHANGED | {Refusal.NOT_EMPTY, Refusal.CONNECTION_LOST, Refusal.SESSION_EXPIRED}  # no faults
MIN_ORIGINS = 1_000  # so many, and twice those in use, may be known at once
DROPPED_TIMEOUT_MS = 10_000  # for leaving the group of a dropped consumer

_log = logs.named(__name__)


class MachineThread:
    """Runs one machine in a thread of its own."""

    def __init__(
        self,
        config: ConsumerConfig,
        machine: StateMachine,
        shared: SharedState,
        fetcher: WatchedFetcher,
        telemetry: Telemetry,
        store: KafkaOffsetStore | None = None,
        look: LookAtKafka | None = None,
    ) -> None:
        """Prepare; nothing runs before `start`."""
        self._config = config
        self._machine = machine
        self._shared = shared
        self._fetcher = fetcher
        self._telemetry = telemetry
        self._event_log = telemetry.event_log
        self._store = store  # where offsets are kept in Kafka
        self._look = look  # for offsets and members of Kafka's own protocol, before partitions begin
        self._events: deque[Event] = deque()
        self._client: ZkClient | None = None
        self._many_origins = MIN_ORIGINS
        self._unread: set[TopicPartition] = set()  # it is not known yet whether offsets of these are stored
        self._stepped_ms = 0  # when the last step began
        self._looked_ms = 0  # when the fetcher was looked after last
        self._closing: list[gevent.Greenlet[..., None]] = []
        self._running = True
        self._is_over = False
        self._is_started = False
        self._failure: BaseException | None = None  # ended the thread
        self._leave_until_ms: int | None = None  # known after giving up
        self.dropped = ""  # why to leave alone: nothing refers to the consumer, or it was closed in a thread of its own
        self._wake_lock = Condition(new_reentrant_lock())  # for signals' handlers
        self.thread = Thread(self._run, "consumer-agent-machine")
        self._performers: Mapping[type[Effect], Callable[..., None]] = self._table()

    def start(self) -> None:
        """Start the thread; `send` may be called afterwards.

        Raises:
            ConsumerError: the thread cannot work, for example because no descriptors are left.
            RuntimeError: the operating system starts no more threads.

        """
        try:
            self.thread.start()
            self._wait_for_begin()
        except BaseException:  # also a signal's exception
            self._running = False  # in case it begins to work later
            raise
        if not self._is_started:
            raise ConsumerError(f"the machine thread cannot work: {self._failure}") from self._failure

    def _wait_for_begin(self) -> None:
        has_begun = self._wake_lock.wait_until(lambda: self._is_started or self._failure is not None, START_TIMEOUT_S)
        if not has_begun:
            raise ConsumerError(f"the machine thread did not begin to work within {START_TIMEOUT_S:g} s")

    def send(self, event: Event) -> None:
        """Send the state machine an event, from any thread; events after its end are dropped."""
        if len(self._events) >= MAX_EVENTS:
            raise has_stopped("machine thread", self._failure)
        with self._wake_lock.lock:
            if self._is_started and not self._is_over:
                self._events.append(event)
                self._wake.send()

    @property
    def is_looking(self) -> bool:
        """Whether Kafka is being asked who else uses the group: what is read meanwhile, others may read, too."""
        return self._look is not None and self._look.is_asking

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self.thread.join(timeout_s)

    # ---- the machine's own thread

    def _run(self) -> None:
        if not self._open_loop():
            return
        try:
            if self._look is not None:
                self._look.check({}, self._shared.break_down, lambda: None)  # begins now, answers during the join
            while self._running:
                self._round()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._shared.emit_until(0)
            self._shared.presence.looped_ms = None
            if self._running:
                self._shared.break_down(has_stopped("machine thread", self._failure))
            self._shared.become_closed()
            self._fetcher.stop()
            self._close_session()
            for asking in (self._store, self._look):
                if asking is not None:
                    asking.close()
            gevent.joinall(self._closing, timeout=SESSION_CLOSE_TIMEOUT_S)
            is_left_alone = bool(self.dropped) or self._shared.breakdown is not None
            if is_left_alone and self._event_log is not None:
                self._event_log.close()  # the application may never close the consumer
            with self._wake_lock.lock:
                self._is_over = True
                self._wake.close()
            gevent.get_hub().destroy(destroy_loop=True)

    def _open_loop(self) -> bool:
        """Open the thread's event loop; return whether that succeeded."""
        try:
            require_descriptors()
            self._flag = Flag()
            self._wake = gevent.get_hub().loop.async_()
            self._wake.start(self._flag.set)
        except (OSError, RuntimeError, SystemError, MemoryError) as error:
            self._has_begun(error)
            return False
        except BaseException as error:
            self._has_begun(error)
            raise
        self._has_begun(None)
        return True

    def _has_begun(self, failure: BaseException | None) -> None:
        with self._wake_lock.lock:
            self._failure = failure
            self._is_started = failure is None
            self._wake_lock.notify()

    def _round(self) -> None:
        """Wait until something is to be done, then do it: one wake of an idle agent is one round."""
        wake_at_ms, now, look_at_ms = self._machine.wake_at_ms, now_ms(), self._looked_ms + LOOK_INTERVAL_MS
        until_ms = look_at_ms if wake_at_ms is None else min(wake_at_ms, look_at_ms)
        if not self._events and now < until_ms:
            self._wait((until_ms - now) / 1_000)
        self._flag.clear()
        for _ in range(min(len(self._events), EVENTS_PER_ROUND)):
            self._step(self._events.popleft())
        self._shared.presence.looped_ms = now = now_ms()
        if wake_at_ms is not None and now >= wake_at_ms:
            self._step(events.Tick())
        if now - self._looked_ms >= LOOK_PAUSE_MS:
            self._looked_ms = now
            self._fetcher.look_after()
            if self._look is not None:
                self._look.look_after(self._shared.break_down)
        if self.dropped or self._shared.breakdown is not None:
            self._leave_by_itself()

    def _wait(self, timeout_s: float) -> None:
        """Wait for the flag; a timer that sets it is cheaper than a timeout, which is an exception."""
        timer = gevent.get_hub().loop.timer(timeout_s)
        timer.start(self._flag.set)
        try:
            self._flag.wait()
        finally:
            timer.stop()
            timer.close()

    def _leave_by_itself(self) -> None:
        """Leave the group of a consumer that was dropped or cannot recover, for others to read its partitions."""
        now, breakdown = now_ms(), self._shared.breakdown
        if self._leave_until_ms is None:
            self._leave_until_ms = now + DROPPED_TIMEOUT_MS
            self._step(events.GaveUp(str(breakdown or f"the consumer {self.dropped}")))
        elif self.dropped and now >= self._leave_until_ms:
            self._step(events.Abandoned())

    def _step(self, event: Event) -> None:
        if isinstance(event, Replied) and isinstance(event.reply, Refused) and event.reply.refusal not in EXPECTED:
            self._shared.count("zookeeper_refusals_total")
        self._stepped_ms = self._shared.presence.looped_ms = now_ms()
        for effect in self._machine.step(event, self._stepped_ms):
            self._performers[type(effect)](effect)

    def _table(self) -> dict[type[Effect], Callable[..., None]]:
        shared = self._shared
        return {
            effects.OpenSession: lambda _: self._open_session(),
            effects.CloseSession: lambda effect: self._close_session(effect.not_before_ms),
            effects.Request: self._request,
            effects.EmitUntil: lambda effect: shared.emit_until(effect.until_ms),
            effects.ReadProgress: lambda effect: self._answer_progress(effect.token),
            effects.StopEmitting: self._stop_emitting,
            effects.LookAtApplication: self._look_at_application,
            effects.ResolveOffsets: self._resolve,
            effects.ReadKafkaOffsets: self._read_kafka_offsets,
            effects.CommitToKafka: self._commit_to_kafka,
            effects.StartFetching: self._start_fetching,
            effects.PlacePartitions: self._place,
            effects.ResumeFetching: self._resume_fetching,
            effects.Forget: self._forget,
            effects.TellAssigned: lambda effect: shared.tell(Tell.ASSIGNED, effect.partitions),
            effects.AskRevoke: lambda effect: shared.tell(Tell.REVOKE, effect.partitions, effect.token),
            effects.TellOrigins: self._tell_origins,
            effects.TellLost: lambda _: shared.tell(Tell.LOST),
            effects.CommitFinished: lambda effect: shared.commit_finished(effect.tokens, effect.error),
            effects.TellStored: lambda effect: shared.answer(effect.token, effect.offsets, effect.error),
            effects.BecameOut: lambda _: shared.become_out(),
            effects.Failed: lambda effect: (shared.break_down if effect.for_good else shared.fail)(effect.error),
            effects.Closed: lambda _: self._end(),
            effects.RecordFetcher: lambda effect: self._telemetry.fetcher(
                effect.as_of_step(self._stepped_ms, now_ms())
            ),
            effects.RecordCommitted: lambda effect: self._telemetry.committed(
                effect.member, effect.generation, effect.offsets
            ),
            effects.RecordLost: self._record_lost,
            effects.RecordPollLate: self._telemetry.poll_late,
            effects.RecordQuarantined: self._telemetry.quarantined,
            effects.Warn: lambda effect: _log.warning("%s", effect.text),
            effects.Failpoint: lambda effect: failpoints.reach(effect.name),
        }

    def _end(self) -> None:
        self._running = False

    # ---- session

    def _open_session(self) -> None:
        def take(event: ZooKeeperEvent) -> None:
            if self._client is client:
                self._events.append(event)
                self._flag.set()

        config = self._config
        try:
            security = config.zookeeper_security
            client = ZkClient(config.zookeeper, config.session_timeout_ms, take, security, reads_together=True)
            self._client = client
            client.start()
        except (RebalancerError, OSError, RuntimeError) as error:  # may be over when the application polls again
            self._client = None
            text = f"no ZooKeeper session can be opened: {error}"
            failure = ConsumerError(text)
            failure.__cause__ = error
            self._events.appendleft(events.NotOpened(failure))

    def _close_session(self, not_before_ms: int = 0) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._closing = [greenlet for greenlet in self._closing if not greenlet.dead]
            self._closing.append(gevent.spawn_later(max(0, not_before_ms - now_ms()) / 1_000, client.close))

    def _request(self, effect: effects.Request) -> None:
        if isinstance(effect.call, Multi):
            self._telemetry.flush()  # events precede the ack or commit that this may be
        if self._client is not None:
            self._client.request(effect.call_id, effect.call)

    # ---- partitions

    def _stop_emitting(self, effect: effects.StopEmitting) -> None:
        self._shared.stop(effect.partitions)
        self._answer_progress(effect.token)
        self._fetcher.current.unassign(effect.partitions)

    def _answer_progress(self, token: int) -> None:
        self._events.appendleft(events.Progress(token, self._shared.positions()))

    def _look_at_application(self, effect: effects.LookAtApplication) -> None:
        with self._shared.lock:
            away_since_ms = self._shared.presence.away_since_ms
        positions = self._shared.positions()
        self._events.appendleft(events.ApplicationSeen(effect.token, away_since_ms, positions))

    def _start_fetching(self, effect: effects.StartFetching) -> None:
        self._unread = self._unread - effect.positions.keys() | effect.unread
        with self._shared.lock:
            for partition, position in effect.positions.items():
                self._shared.admit(partition, effect.generation, position, effect.threads.get(partition, 0))
            self._shared.buffer.finish_at(dict.fromkeys(effect.copyless, Finished(NO_OFFSET)))
        begin = partial(self._begin_to_fetch, effect.positions.keys())
        if self._look is None:
            begin()
        else:
            stored = {tp: position for tp, position in effect.positions.items() if position != NO_OFFSET}
            self._look.check(stored, self._shared.break_down, begin)

    def _place(self, effect: effects.PlacePartitions) -> None:
        """Let partitions begin whose beginnings were not known when they were started."""
        self._unread -= effect.positions.keys()
        self._fail_without_position([tp for tp, at in effect.positions.items() if at == NO_OFFSET])
        known = {tp: at for tp, at in effect.positions.items() if at != NO_OFFSET}
        with self._shared.lock:
            placed = self._shared.buffer.place(known)
        if not placed:
            return
        self._telemetry.repositioned(placed, "begin")
        begin = partial(self._begin_to_fetch, placed.keys())
        if self._look is None:
            begin()
        else:
            self._look.check(placed, self._shared.break_down, begin)

    def _tell_origins(self, effect: effects.TellOrigins) -> None:
        """Note where partitions begin; forget those that the application cannot ask about any more."""
        shared = self._shared
        if len(shared.origins) >= self._many_origins:
            with shared.lock:
                held = shared.buffer.generations().keys()
                shared.origins = {tp: one for tp, one in shared.origins.items() if tp in held or shared.was_known(tp)}
            self._many_origins = MIN_ORIGINS + 2 * len(shared.origins)
        shared.origins.update(effect.origins)

    def _resume_fetching(self, effect: effects.ResumeFetching) -> None:
        self._shared.resume(effect.partitions)
        self._begin_to_fetch(effect.partitions)

    def _begin_to_fetch(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from the application's present positions: its `on_assign` may have sought already."""
        fetched = self._shared.buffer.fetched
        self._fetcher.change(lambda: {tp: offset for tp, offset in fetched().items() if tp in partitions})
        self._fail_without_position(partitions)

    def _fail_without_position(self, partitions: Collection[TopicPartition]) -> None:
        if self._config.auto_offset_reset != "none":  # then they wait for Kafka's answer
            return
        why = f"no offset of group {self._config.group} is stored, and auto_offset_reset is none"
        with self._shared.lock:
            for partition in self._shared.buffer.unplaced():
                if partition in partitions and partition not in self._unread:
                    text = f"{partition[0]}/{partition[1]}: {why}"
                    self._shared.need_position(partition, NoOffsetError(text, partition))

    def _forget(self, effect: effects.Forget) -> None:
        self._unread -= effect.partitions
        self._shared.forget(effect.partitions)
        self._fetcher.current.unassign(effect.partitions)

    def _resolve(self, effect: effects.ResolveOffsets) -> None:
        def resolve(*, is_clear: bool) -> None:
            if is_clear:
                self._fetcher.current.resolve(effect.partitions, answer)
            else:
                answer(dict.fromkeys(effect.partitions))  # unknown: the machine asks again

        def answer(offsets: Mapping[TopicPartition, int | None]) -> None:
            self.send(events.OffsetsResolved(effect.token, offsets))

        self._look_first(effect.partitions, resolve)

    def _read_kafka_offsets(self, effect: effects.ReadKafkaOffsets) -> None:
        def read(*, is_clear: bool) -> None:
            if self._store is not None and is_clear:
                self._store.read(effect.partitions, answer)
            else:
                answer(None)  # unknown: the machine asks again

        def answer(found: Mapping[TopicPartition, tuple[int, str] | None] | None) -> None:
            self.send(events.KafkaOffsetsRead(effect.token, found))

        self._look_first(effect.partitions, read)

    def _look_first(self, partitions: Collection[TopicPartition], go_on: Callable[..., None]) -> None:
        """Go on if Kafka knows nothing that forbids to begin; otherwise the consumer gives up, for good."""

        def looked(error: ConsumerError | None, is_known: bool) -> None:  # the answer of a look
            if error is not None:
                self._shared.break_down(error)
            else:
                go_on(is_clear=is_known)

        if self._look is None:
            go_on(is_clear=True)
        else:
            self._look.ask(dict.fromkeys(partitions), looked)

    def _commit_to_kafka(self, effect: effects.CommitToKafka) -> None:
        """Commit if there is time: after `until_ms` another consumer may own the partitions."""
        left_ms = effect.until_ms - self._shared.now_ms()

        def answer(failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None:
            self.send(events.KafkaCommitted(effect.token, failed, is_hopeless))

        if self._store is not None and left_ms > 0:
            self._store.commit(effect.offsets, left_ms / 1_000, answer)
        else:
            answer(dict.fromkeys(effect.offsets, "too late"), is_hopeless=False)

    def _record_lost(self, effect: effects.RecordLost) -> None:
        positions = self._shared.positions()
        held = {partition: positions[partition].returned for partition in effect.partitions if partition in positions}
        self._telemetry.fetcher(
            effects.RecordFetcher("fetcher_stopped", effect.member, effect.generation, None, held, "lost")
        )
