"""An agent process: the real machine thread, state machine, shared state, buffer and fetcher, in virtual time.

Only parts that wait are replaced: the loops of the machine thread and the fetcher, librdkafka, the ZooKeeper client,
and the lock, at which threads switch (`threads.py`). The application is `application.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.membership import effects, events
from consumer_agent.membership.events import Event
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.registered_member import MemberSettings
from consumer_agent.membership.state_machine import MachineSettings, StateMachine
from consumer_agent.runtime.machine_thread import MachineThread
from consumer_agent.runtime.record_buffer import BufferSettings, Fairness, Prefetch, RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from tests.simulation.conservation import check_books
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.kafka import Admin, Brokers, Client
from tests.simulation.network import Connection
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.schedule import Schedule
from tests.simulation.store import SimulatedStore
from tests.simulation.threads import SwitchingLock
from zkrebalancer.protocol.calls import Call, Check, Create, Multi
from zkrebalancer.protocol.registration import Registration

MACHINE_DELAY_US = 150
FETCH_US = (200, 8_000)
STARVED_US = (20_000, 400_000)  # the fetcher's thread does not run
STARVED_PROBABILITY = 0.1
QUESTION_US = (500, 20_000)
SWITCH_PROBABILITY = 0.08
MAX_POLL_RECORDS = 20
MAX_BUFFERED_RECORDS = 60
MAX_BUFFERED_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The configuration of an agent and the behaviour of its application."""

    group: str
    subscription: dict[str, int]
    session_timeout_ms: int
    pattern: str = "static"
    instance_id: str | None = None
    static_grace_ms: int | None = None
    auto_commit_ms: int | None = 300  # None: the application commits by itself
    has_on_revoke: bool = False
    fairness: Fairness = Fairness.GREEDY
    prefetch: Prefetch = Prefetch.TOTAL
    max_poll_interval_ms: int = 300_000
    stop_timeout_ms: int | None = None
    storage: Storage = Storage.ZOOKEEPER
    has_reliable_kafka: bool = False
    slowness: int = 1  # factor for the application's time per batch


class SimulatedMachineThread(MachineThread):
    """The real machine thread without its loop: the schedule decides when it handles events."""

    def __init__(self, agent: AgentHost, config: ConsumerConfig, machine: StateMachine, telemetry: Telemetry) -> None:
        fetcher: Any = agent.fetcher  # has the methods of WatchedFetcher that a machine thread uses
        store: Any = agent.store
        super().__init__(config, machine, agent.shared, fetcher, telemetry, store)
        self._agent = agent
        self.closing: list[Connection] = []  # sessions to be closed a little later

    def send(self, event: Event) -> None:
        self._events.append(event)
        self._agent.wake_machine()

    def pump(self) -> None:
        """Handle all waiting events."""
        while self._events and self._agent.alive:
            self._step(self._events.popleft())

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def _step(self, event: Event) -> None:
        agent = self._agent
        if agent.schedule.tells:
            agent.tell(f"<- {event}")
        for effect in self._machine.step(event, agent.clock_us() // 1_000):
            if agent.schedule.tells and not isinstance(effect, effects.Failpoint):
                agent.tell(f"-> {effect}")
            self._performers[type(effect)](effect)
        check_books(self._machine)

    def _end(self) -> None:
        super()._end()
        self._shared.become_closed()
        self._agent.end()

    def _open_session(self) -> None:
        agent = self._agent

        def handle(event: events.Event) -> None:
            if self.connection is client:
                self.send(event)

        agent.true_lease_us = 0
        client = Connection(agent.ensemble, agent, agent.settings.session_timeout_ms, handle, agent.note_performed)
        self._client = client  # type: ignore[assignment]  # it has the methods of ZkClient that a machine thread uses

    def _close_session(self, not_before_ms: int = 0) -> None:
        client, self._client = self._client, None
        wait_us = 1_000 * not_before_ms - self._agent.clock_us()
        if client is not None and wait_us > 0:
            self.closing.append(client)  # type: ignore[arg-type]  # as above
            self._agent.after(wait_us, client.close)
        elif client is not None:
            client.close()

    @property
    def connection(self) -> Connection | None:
        return self._client  # type: ignore[return-value]


class SimulatedFetcher(Fetcher):
    """The real fetcher without its loop: the schedule begins a round, and ends it a moment later."""

    def begin_round(self) -> int:
        """Execute requests of other threads; return how many records there is room for."""
        is_busy = self.has_requests or (self._assigned and self._shared.buffer.room)
        return self._begin_round() if is_busy else 0

    @property
    def has_requests(self) -> bool:
        return bool(self._changes or self._answered)

    @property
    def current(self) -> SimulatedFetcher:
        """This fetcher, because no watchdog replaces it."""
        return self

    @property
    def client(self) -> Client:
        return self._consumer  # type: ignore[return-value]

    def end_round(self, room: int) -> None:
        self._fetch(room)


class AgentHost(Host):
    """One process of an agent; `name` is its client id."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        seed: int,
        ensemble: Ensemble,
        brokers: Brokers,
        settings: AgentSettings,
    ) -> None:
        super().__init__(name, schedule, seed)
        self.ensemble = ensemble
        self.settings = settings
        self.brokers = brokers
        buffer_settings = BufferSettings(
            MAX_POLL_RECORDS, MAX_BUFFERED_RECORDS, MAX_BUFFERED_BYTES, settings.fairness, settings.prefetch
        )
        self.shared = SharedState(RecordBuffer(buffer_settings), self._clock_ms)
        self.shared.lock = SwitchingLock(self._maybe_switch)  # type: ignore[assignment]
        self.shared.changed = SwitchingLock(self._maybe_switch, self._ring)  # type: ignore[assignment]
        self.shared.fetcher_wake = SwitchingLock(self._maybe_switch, self.wake_fetcher)  # type: ignore[assignment]
        self.on_ring: Callable[[], None] | None = None  # the application's
        config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group=settings.group, client_id=name)
        admin = Admin(brokers, lambda answer: self.after(self.random.randrange(*QUESTION_US), answer))
        with (
            mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer", return_value=Client(brokers)),
            mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=admin),
        ):
            self.fetcher = SimulatedFetcher(config, (), self.shared)
        self.machine = StateMachine(_machine_settings(name, settings))
        self.store = SimulatedStore(
            brokers, self, settings.group, lambda: self.consumer, is_reliable=settings.has_reliable_kafka
        )
        self.machine_thread = SimulatedMachineThread(self, config, self.machine, Telemetry(None, settings.group))
        self.true_lease_us = 0  # end of the lease that this session's writes prove, by this host's clock
        self.room = 0  # of the fetcher's current round
        self._machine_woken = False
        self._starved_until_us = 0
        self._fetch_at_us: int | None = None
        self._running = ""
        self._switching = False

    def _clock_ms(self) -> int:
        return self.clock_us() // 1_000

    @property
    def consumer(self) -> str | None:
        """The name of its registration."""
        return self.machine.member.name if self.machine.member is not None else None

    @property
    def connection(self) -> Connection | None:
        return self.machine_thread.connection

    def note_performed(self, call: Call, sent_us: int) -> None:
        """Note a successful write of the session; if it renews the lease, the lease runs from the moment of sending."""
        if isinstance(call, Multi) and any(isinstance(op, Check | Create) for op in call.operations):
            session = self.connection.session if self.connection is not None else None
            granted_ms = session.timeout_ms if session is not None else self.settings.session_timeout_ms
            until_us = sent_us + granted_ms * 1_000 * 2 // 3
            self.true_lease_us = max(self.true_lease_us, until_us + 1_000)

    def emits_until_us(self) -> int:
        """The end of its lease as the agent sees it, by its clock."""
        return self.shared._emit_until_ms * 1_000

    def resubscribe(self, topics: dict[str, int]) -> None:
        """Change the application's subscription."""
        registration = _machine_settings(self.name, replace(self.settings, subscription=topics)).registration
        self.machine_thread.send(events.Resubscribed(registration, self.settings.has_on_revoke))

    def end(self) -> None:
        """End the process cleanly, with the sessions that it was about to close."""
        self.tell("ends")
        self.kill()

    def kill(self) -> None:
        super().kill()
        closing = [connection for connection in self.machine_thread.closing if not connection.closed]
        for connection in (self.machine_thread.connection, *closing):
            if connection is not None:
                connection.drop()

    # The three threads ----------------------------------------------------------------------------------------------

    def wake_machine(self) -> None:
        if not self._machine_woken:
            self._machine_woken = True
            delay_us = self.random.randrange(MACHINE_DELAY_US)
            self.after(max(delay_us, self._starved_until_us - self.schedule.now_us), self._run_machine)

    def starve(self, duration_us: int) -> None:
        """Give the machine thread no time for a while; its ZooKeeper client and the application go on."""
        self._starved_until_us = self.schedule.now_us + duration_us

    @property
    def _is_starved(self) -> bool:
        return self.schedule.now_us < self._starved_until_us

    def _run_machine(self) -> None:
        self._machine_woken = False
        self._as_thread("machine", self.machine_thread.pump)
        if self.emits_until_us() > self.true_lease_us:
            raise BrokenPromiseError("lease", f"{self.name} assumes a lease that no write has renewed")
        self.plan_tick()

    def deadline_us(self) -> int | None:
        wake_at_ms = self.machine.wake_at_ms
        return None if wake_at_ms is None else wake_at_ms * 1_000

    def tick(self) -> None:
        self.machine_thread.send(events.Tick())

    def wake_fetcher(self) -> None:
        """Wake the fetcher, which has work or room."""
        self._plan_fetch(self.schedule.now_us)

    def _plan_fetch(self, at_us: int) -> None:
        at_us += self.random.randrange(*FETCH_US)
        if self._fetch_at_us is None or at_us < self._fetch_at_us:
            self._fetch_at_us = at_us
            self.schedule.at(at_us, self.run, self._begin_fetch, at_us)

    def _begin_fetch(self, at_us: int) -> None:
        if at_us != self._fetch_at_us:
            return
        self._fetch_at_us = None
        if self.room:  # the current round checks again when it ends
            return
        self._as_thread("fetcher", self._fetch)

    def _fetch(self) -> None:
        room = self.fetcher.begin_round()
        if room and self.fetcher.client.fetch(room):
            self.room = room
            is_starved = self.random.random() < STARVED_PROBABILITY
            self.after(self.random.randrange(*(STARVED_US if is_starved else FETCH_US)), self._end_fetch)
        elif room:
            self._plan_next_fetch()

    def _end_fetch(self) -> None:
        if self.room:
            self._as_thread("fetcher", self._put)

    def _put(self) -> None:
        room, self.room = self.room, 0
        self.fetcher.end_round(room)
        self._plan_next_fetch()

    def _plan_next_fetch(self) -> None:
        at_us = self.schedule.now_us if self.fetcher.has_requests else self.fetcher.client.next_fetch_us()
        if at_us is not None:
            self._plan_fetch(at_us)

    def _ring(self) -> None:
        if self.on_ring is not None:
            self.on_ring()

    def _as_thread(self, thread: str, action: Callable[[], None]) -> None:
        before, self._running = self._running, thread
        try:
            action()
        finally:
            self._running = before

    def _maybe_switch(self) -> None:
        """Perhaps run another thread before the one that is about to take the lock."""
        if self._switching or self._running not in {"machine", "fetcher"} or self.random.random() >= SWITCH_PROBABILITY:
            return
        self._switching = True
        if self._running == "machine" and self.room:
            self._as_thread("fetcher", self._put)
        elif self._running == "fetcher" and self.machine_thread.has_events and not self._is_starved:
            self._as_thread("machine", self.machine_thread.pump)
        self._switching = False


def _machine_settings(name: str, settings: AgentSettings) -> MachineSettings:
    fields: dict[str, Any] = {
        "pattern": settings.pattern,
        "subscription": settings.subscription,
        "timestamp": "",
        "client_id": name,
        "host": name,
        "session_timeout_ms": settings.session_timeout_ms,
        "instance_id": settings.instance_id,
        "static_grace_ms": settings.static_grace_ms,
        "stop_timeout_ms": settings.stop_timeout_ms,
    }
    member = MemberSettings(
        settings.group,
        settings.auto_commit_ms,
        settings.has_on_revoke,
        storage=settings.storage,
        max_poll_interval_ms=settings.max_poll_interval_ms,
    )
    return MachineSettings(member, Registration(**fields))
