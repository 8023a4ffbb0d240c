"""The coordinator process: one loop feeds events to the pure machine and performs the effects that it returns.

Watch callbacks, answers, deadlines and computed assignments only enqueue. Nothing blocks for a group, and assignment
runs in gevent's native thread pool: a starved hub would lose its ZooKeeper session.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.queue import Empty, SimpleQueue

from zkrebalancer.assignment import WEIGHING
from zkrebalancer.assignment.columns import Strategy
from zkrebalancer.coordinator.failpoints import VARIABLE, Failpoint
from zkrebalancer.coordinator.garbage import Garbage
from zkrebalancer.coordinator.load_reader import LoadReader
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.operator_log import OperatorLog
from zkrebalancer.coordinator.planner import PLAN_TIMEOUT_S, Planner
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.calls import Multi
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.effects import (
    Compute,
    Effect,
    Emit,
    Event,
    Now,
    ReadLoads,
    Request,
    RequestEach,
    ShutDown,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import Vitals
from zkrebalancer.runtime.zk import ZkClient, request_limit

SHUT_DOWN_TIMEOUT_S = 5.0  # for resigning; then a coordinator stops even without an answer of ZooKeeper
MAX_WAIT_S = 60.0
GIL_SWITCH_S = 0.000_5  # with Python's default, the loop would wait 5 ms at a time for a computing strategy
COLLECT_INTERVAL_S = 3_600.0
MAX_COLLECT_DELAY_S = 600.0  # some group may back off for ever

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a coordinator shows of itself: where (None: no HTTP), to systemd or not, each group or only totals."""

    http: tuple[str, int] | None = None
    notifier: Notifier = field(default_factory=lambda: Notifier({}))
    is_per_group: bool = False
    traces_url: str | None = None  # of an OTLP collector


class CoordinatorService:
    """Runs one coordinator until it is asked to stop."""

    def __init__(
        self,
        zookeeper: str,
        identity: Identity,
        session_timeout_ms: int,
        strategies: Mapping[str, Strategy],
        event_log: EventLog,
        kafka: Mapping[str, str] | None = None,
        plan_timeout_s: float = PLAN_TIMEOUT_S,
        shown: Shown | None = None,
        capacity: int = 1,
    ) -> None:
        """Prepare to connect to `zookeeper` ("HOST:PORT[,…][/CHROOT]"), and to Kafka for strategies that weigh lag.

        `kafka`: librdkafka's settings, with `bootstrap.servers` among them; `capacity`: share of the shards.
        """
        shown = shown or Shown()
        self._zookeeper, self._kafka = zookeeper, kafka
        weighing = WEIGHING if kafka is not None else frozenset[str]()
        self.coordinator = AllShards(identity, weighing, request_limit(zookeeper), capacity)
        self._garbage = Garbage(self.coordinator)
        self._events: SimpleQueue[Event] = SimpleQueue()  # bounded by the calls in flight and the watches set
        put = self._events.put
        self._zk = ZkClient(zookeeper, session_timeout_ms, put, reads_together=True, on_replies=put)
        self._load_reader = LoadReader(zookeeper, kafka, self._events.put) if kafka is not None else None
        self._planner = Planner(strategies, self._events.put, plan_timeout_s)
        self._event_log = event_log
        self._operator_log = OperatorLog()
        self._failpoint = Failpoint(os.environ.get(VARIABLE))
        self._stopped = False
        self._shown = shown
        vitals = Vitals(session_timeout_ms, shown.notifier)
        self.monitor = Monitor(self.coordinator, vitals)
        self.monitor.is_per_group = shown.is_per_group

    def run(self) -> None:
        """Run until `stop` has been called and the leadership is given up."""
        sys.setswitchinterval(GIL_SWITCH_S)
        self._garbage.begin()
        http = self._shown.http
        stop_serving = None if http is None else self._serve(http)
        stop_tracing = None if self._shown.traces_url is None else self._trace(self._shown.traces_url)
        workers = [gevent.spawn(self._collect_garbage)]
        if http is not None or self._shown.notifier.is_used:
            workers.append(gevent.spawn(self._beat))
        self._zk.start()
        try:
            while not self._stopped:
                event = self._next_event()
                self.monitor.handling(event)
                for effect in self.coordinator.step(event, _now()):
                    self._perform(effect)
                self._garbage.look(event)
                _log_all(self._operator_log.summary(clock.steady_us()))
        finally:
            gevent.killall(workers)
            if stop_serving is not None:
                stop_serving()
            if self._load_reader is not None:
                self._load_reader.close()
            self._zk.close()
            self._event_log.close()
            if stop_tracing is not None:
                stop_tracing()

    def _serve(self, http: tuple[str, int]) -> Callable[[], None]:
        from zkrebalancer.coordinator.exposure import Servers, serve  # noqa: PLC0415  # only --http needs them

        uses = self._zookeeper, self._kafka, self._zk.request
        return serve(http, self.monitor, Servers(*uses, lambda: self._zk.queued_count, self._events.qsize))

    def _trace(self, url: str) -> Callable[[], None]:
        from zkrebalancer.coordinator.traces import follow  # noqa: PLC0415  # of an extra

        return follow(self.monitor, url)

    def _beat(self) -> None:
        self.monitor.beat(self._events.put, self._zk.request)

    def _collect_garbage(self) -> None:
        """Collect everything from time to time, and soon after a leadership, while nothing moves."""
        while True:
            self._garbage.due.wait(COLLECT_INTERVAL_S)
            postponed_s = 0.0
            while postponed_s < MAX_COLLECT_DELAY_S and (self._garbage.has_rubbish or self._is_rebalancing()):
                gevent.sleep(MAX_WAIT_S)
                postponed_s += MAX_WAIT_S
            self._garbage.all()

    def _is_rebalancing(self) -> bool:
        return any(any(one.groups_being_rebalanced.values()) for one in self.coordinator.machines)

    def limit_plans(self, plan_timeout_s: float) -> None:
        """Change the longest time to compute a plan."""
        self._planner.limit_s = plan_timeout_s

    def stop(self) -> None:
        """Resign and end; callable from a signal handler of gevent."""
        self.monitor.vitals.stopping()
        self._events.put(ShutDown())
        gevent.spawn_later(SHUT_DOWN_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self._stopped = True
        self._events.put(Tick())

    def _next_event(self) -> Event:
        deadline_us = self.coordinator.next_deadline_us()
        wait_s = MAX_WAIT_S if deadline_us is None else max(0.0, (deadline_us - clock.steady_us()) / 1e6)
        try:
            return self._events.get(timeout=min(wait_s, MAX_WAIT_S))
        except Empty:
            return Tick()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Request):
            self._request(effect)
        elif isinstance(effect, RequestEach):
            self._zk.request_each(*effect)
        elif isinstance(effect, Compute):
            self._planner.compute(effect)
        elif isinstance(effect, ReadLoads):
            if self._load_reader is not None:
                self._load_reader.read(effect)
        elif isinstance(effect, Emit):
            if effect.kind == "leader_resigned":
                self._garbage.resigned()
            cause = self.monitor.emitted(effect)
            self._write_down(effect)
            _log_all(self._operator_log.lines(effect, cause, clock.steady_us()))
            self._failpoint.passed(effect.kind)
        elif isinstance(effect, Warn):
            _log.warning("%s", effect.text)
        elif isinstance(effect, Stopped):
            self._stopped = True

    def _request(self, effect: Request) -> None:
        if not isinstance(effect.call, Multi):
            self._zk.request(*effect)
            return
        self._event_log.flush()  # a decision is recorded before it has an effect
        self._zk.request(*effect)
        if self._failpoint.is_sent_with(effect.call):
            gevent.sleep(0)  # lets the client write the request to the socket
            self._failpoint.passed(self._failpoint.kind)

    def _write_down(self, effect: Emit) -> None:
        fields: dict[str, Any] = {**effect.fields}  # none of them is named as an argument of `write` is
        if "asked_us" in fields:
            fields["asked_us"] = clock.monotonic_us(fields["asked_us"])
        self._event_log.write(
            effect.kind, group=effect.group, generation=effect.generation, cause_id=effect.cause_id, **fields
        )
        if effect.kind == self._failpoint.kind:
            self._event_log.flush()


def _log_all(lines: list[str]) -> None:
    for line in lines:
        _log.info("%s", line)


def _now() -> Now:
    return Now(clock.steady_us(), clock.epoch_ms())
