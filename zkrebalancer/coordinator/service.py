"""The coordinator process: one loop takes events, feeds the pure machine, and performs the effects that it returns.

Watch callbacks, answers, deadlines and computed assignments only enqueue. Nothing blocks for a group, and assignment
runs in gevent's native thread pool: a starved hub would lose its ZooKeeper session.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import gevent
from gevent.queue import Empty, SimpleQueue

from zkrebalancer.assignment.model import Strategy
from zkrebalancer.coordinator.failpoints import VARIABLE, Failpoint
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.calls import Multi
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    Now,
    Request,
    ShutDown,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import ZkClient

SHUT_DOWN_TIMEOUT_S = 5.0  # for resigning; a coordinator without ZooKeeper stops all the same
MAX_WAIT_S = 60.0

_log = logging.getLogger(__name__)


class CoordinatorService:
    """Runs one coordinator until it is asked to stop."""

    def __init__(
        self,
        zookeeper: str,
        identity: Identity,
        session_timeout_ms: int,
        strategies: Mapping[str, Strategy],
        event_log: EventLog,
    ) -> None:
        """Prepare to connect to `zookeeper` ("HOST:PORT[,…][/CHROOT]")."""
        self.coordinator = Coordinator(identity)
        self._events: SimpleQueue[Event] = SimpleQueue()  # bounded by the calls in flight and the watches set
        self._zk = ZkClient(zookeeper, session_timeout_ms, self._events.put)
        self._strategies = strategies
        self._event_log = event_log
        self._failpoint = Failpoint(os.environ.get(VARIABLE))
        self._stopped = False

    def run(self) -> None:
        """Run until `stop` has been called and the leadership is given up."""
        self._zk.start()
        try:
            while not self._stopped:
                for effect in self.coordinator.step(self._next_event(), _now()):
                    self._perform(effect)
        finally:
            self._zk.close()
            self._event_log.close()

    def stop(self) -> None:
        """Resign and end; callable from a signal handler of gevent."""
        self._events.put(ShutDown())
        gevent.spawn_later(SHUT_DOWN_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self._stopped = True
        self._events.put(Tick())

    def _next_event(self) -> Event:
        deadline_us = self.coordinator.desk.next_deadline_us()
        wait_s = MAX_WAIT_S if deadline_us is None else max(0.0, (deadline_us - clock.steady_us()) / 1e6)
        try:
            return self._events.get(timeout=min(wait_s, MAX_WAIT_S))
        except Empty:
            return Tick()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Request):
            self._zk.request(effect.call_id, effect.call)
            if self._failpoint.kind == "multi" and isinstance(effect.call, Multi):
                gevent.sleep(0)  # the client hands the request to the socket
                self._failpoint.passed("multi")
        elif isinstance(effect, Compute):
            # A strategy's bug is told to its group, which backs off; the other groups go on.
            gevent.spawn(self._compute, effect).link_exception(lambda failed: self._failed(effect, failed.exception))
        elif isinstance(effect, Emit):
            self._write_down(effect)
            self._failpoint.passed(effect.kind)
        elif isinstance(effect, Warn):
            _log.warning("%s", effect.text)
        elif isinstance(effect, Stopped):
            self._stopped = True

    def _write_down(self, effect: Emit) -> None:
        """Write an event; if that fails (a full disk), say so once and go on without: groups matter more."""
        fields: dict[str, Any] = {**effect.fields}  # none of them is named as an argument of `write` is
        try:
            self._event_log.write(
                effect.kind, group=effect.group, generation=effect.generation, cause_id=effect.cause_id, **fields
            )
        except OSError as error:
            _log.warning("telemetry ends: %s", error)
            self._event_log.close()

    def _compute(self, effect: Compute) -> None:
        strategy = self._strategies.get(effect.strategy)
        if strategy is None:
            error = f"unknown strategy {effect.strategy!r}, known are {', '.join(sorted(self._strategies))}"
            self._events.put(Computed(effect.group, effect.ticket, None, 0, error))
            return
        began = time.monotonic_ns()
        assignment = gevent.get_hub().threadpool.apply(strategy, (effect.problem,))
        elapsed_us = (time.monotonic_ns() - began) // 1_000
        self._events.put(Computed(effect.group, effect.ticket, assignment, elapsed_us))

    def _failed(self, effect: Compute, error: BaseException | None) -> None:
        text = f"strategy {effect.strategy} failed: {type(error).__name__}: {error}"
        self._events.put(Computed(effect.group, effect.ticket, None, 0, text))


def _now() -> Now:
    return Now(clock.steady_us(), clock.epoch_ms())
