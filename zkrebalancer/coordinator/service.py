"""The coordinator process: one loop takes events, feeds the pure machine, and performs the effects that it returns.

Watch callbacks, answers, deadlines and computed assignments only enqueue. Nothing blocks for a group, and assignment
runs in gevent's native thread pool: a starved hub would lose its ZooKeeper session.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import gevent
from gevent.queue import Empty, SimpleQueue

from zkrebalancer.assignment import WEIGHING
from zkrebalancer.assignment.columns import Strategy
from zkrebalancer.assignment.transition import Transition
from zkrebalancer.coordinator.failpoints import VARIABLE, Failpoint
from zkrebalancer.coordinator.load_reader import LoadReader
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.calls import Multi
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    Now,
    ReadLoads,
    Request,
    ShutDown,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.planning import answer
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import ZkClient

SHUT_DOWN_TIMEOUT_S = 5.0  # for resigning; a coordinator without ZooKeeper stops all the same
MAX_WAIT_S = 60.0
GIL_SWITCH_S = 0.000_5  # Python's own 5 ms is how long the loop would wait for a strategy that computes
COLLECT_INTERVAL_S = 3_600.0
NEVER = 2**31 - 1  # of younger collections

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
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to connect to `zookeeper` ("HOST:PORT[,…][/CHROOT]"), and to Kafka for strategies that weigh lag.

        `kafka`: librdkafka's settings, with `bootstrap.servers` among them.
        """
        self.coordinator = Coordinator(identity, WEIGHING if kafka is not None else frozenset())
        self._events: SimpleQueue[Event] = SimpleQueue()  # bounded by the calls in flight and the watches set
        self._zk = ZkClient(zookeeper, session_timeout_ms, self._events.put)
        self._load_reader = LoadReader(zookeeper, kafka, self._events.put) if kafka is not None else None
        self._strategies = strategies
        self._event_log = event_log
        self._failpoint = Failpoint(os.environ.get(VARIABLE))
        self._stopped = False

    def run(self) -> None:
        """Run until `stop` has been called and the leadership is given up."""
        sys.setswitchinterval(GIL_SWITCH_S)
        # A full collection looks at every partition of every group, for 0.2 s at half a million of them: it is done now
        # and then while nothing moves, and never in the middle of a rebalance.
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)
        collector = gevent.spawn(self._collect_garbage)
        self._zk.start()
        try:
            while not self._stopped:
                for effect in self.coordinator.step(self._next_event(), _now()):
                    self._perform(effect)
        finally:
            collector.kill()
            if self._load_reader is not None:
                self._load_reader.close()
            self._zk.close()
            self._event_log.close()

    def _collect_garbage(self) -> None:
        wait_s = COLLECT_INTERVAL_S
        while True:
            gevent.sleep(wait_s)
            is_moving = any(self.coordinator.groups_being_rebalanced.values())
            if not is_moving:
                gc.collect()
            wait_s = MAX_WAIT_S if is_moving else COLLECT_INTERVAL_S

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
            if isinstance(effect.call, Multi):
                self._event_log.flush()  # what was decided is written down before it has an effect
            self._zk.request(effect.call_id, effect.call)
            if self._failpoint.kind == "multi" and isinstance(effect.call, Multi):
                gevent.sleep(0)  # the client hands the request to the socket
                self._failpoint.passed("multi")
        elif isinstance(effect, Compute):
            # A strategy's bug is told to its group, which backs off; the other groups go on.
            gevent.spawn(self._compute, effect).link_exception(lambda failed: self._failed(effect, failed.exception))
        elif isinstance(effect, ReadLoads):
            if self._load_reader is not None:
                self._load_reader.read(effect)
        elif isinstance(effect, Emit):
            self._write_down(effect)
            self._failpoint.passed(effect.kind)
        elif isinstance(effect, Warn):
            _log.warning("%s", effect.text)
        elif isinstance(effect, Stopped):
            self._stopped = True

    def _write_down(self, effect: Emit) -> None:
        fields: dict[str, Any] = {**effect.fields}  # none of them is named as an argument of `write` is
        self._event_log.write(
            effect.kind, group=effect.group, generation=effect.generation, cause_id=effect.cause_id, **fields
        )
        if effect.kind == self._failpoint.kind:
            self._event_log.flush()

    def _compute(self, effect: Compute) -> None:
        began = time.monotonic_ns()
        result = gevent.get_hub().threadpool.apply(_answer, (effect, self._strategies))
        elapsed_us = (time.monotonic_ns() - began) // 1_000
        transition, error = (None, str(result)) if isinstance(result, RebalancerError) else (result, None)
        self._events.put(Computed(effect.group, effect.ticket, transition, elapsed_us, error))

    def _failed(self, effect: Compute, error: BaseException | None) -> None:
        text = f"strategy {effect.strategy} failed: {type(error).__name__}: {error}"
        self._events.put(Computed(effect.group, effect.ticket, None, 0, text))


def _answer(task: Compute, strategies: Mapping[str, Strategy]) -> Transition | RebalancerError:
    """Return an error that is a user's mistake: gevent writes the traceback of whatever is raised in its pool."""
    try:
        return answer(task, strategies)
    except RebalancerError as error:
        return error


def _now() -> Now:
    return Now(clock.steady_us(), clock.epoch_ms())
