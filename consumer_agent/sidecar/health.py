"""Whether an agent works, and what it reports about itself while it runs: to its user, its log, and systemd."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from consumer_agent.config import ConsumerConfig
from consumer_agent.consumer import Consumer
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import STATE_LOG, Vitals

MAX_IDLE_MS = 30_000  # of the loop that keeps the session, which moves every few seconds, also without ZooKeeper
MAX_SINCE_POLL_MS = 60_000  # an agent that has not polled for longer is not ready


def faults_of(metrics: Mapping[str, float]) -> list[str]:
    """Check that an agent has its lease and polls, and that its child, if any, runs."""
    faults = []
    if metrics["lease_ms"] <= 0:
        faults.append("it has no lease: it is not registered, or cannot reach ZooKeeper")
    if metrics["since_poll_ms"] > MAX_SINCE_POLL_MS:
        faults.append(f"it has not polled for {metrics['since_poll_ms'] / 1_000:.0f} s")
    if not metrics.get("child_running", 1):
        faults.append("its child is not running")
    return faults


def stalled(metrics: Mapping[str, float]) -> str | None:
    """Return why an agent should be restarted although it polls."""
    idle_ms = metrics["loop_idle_ms"]
    return f"the loop of the session has not moved for {idle_ms / 1_000:.0f} s" if idle_ms > MAX_IDLE_MS else None


def vitals_of(consumer: Consumer, config: ConsumerConfig, notifier: Notifier) -> Vitals:
    """Return what tells whether an agent lives: it polls, and keeps trying to reach ZooKeeper, silent or not."""
    poll_limit_s = config.max_poll_interval_ms / 1_000
    return Vitals(config.session_timeout_ms, notifier, poll_limit_s, stalled=lambda: stalled(consumer.metrics()))


class Watch:
    """Called after each poll, and within long ones. Calls `joined` once the consumer is a member."""

    def __init__(self, consumer: Consumer, vitals: Vitals, joined: Callable[[], None]) -> None:
        """Start before the first poll."""
        self._consumer = consumer
        self._vitals = vitals
        self._joined = joined
        self._has_joined = False
        self._next_s = 0.0

    def __call__(self) -> None:
        """Note a poll; check the consumer's state once a beat, and after every poll until the consumer is a member."""
        now_s = time.monotonic()
        if self._has_joined and now_s < self._next_s:
            return
        self._next_s = now_s + self._vitals.beat_s
        self._vitals.looped()
        found = self._consumer.metrics()
        if found["lease_ms"] > 0 and not self._has_joined:
            self._has_joined = True
            self._joined()
        faults = faults_of(found)
        status = "; ".join(faults) or f"{found['assigned_partitions']:.0f} partitions"
        self._vitals.report(is_ready=self._has_joined, status=status)

    def log_state(self) -> None:
        """Write the state of this agent to the log."""
        found = self._consumer.metrics()
        STATE_LOG.info("agent: faults: %s; %s", "; ".join(faults_of(found)) or "none", found)
        for (topic, number), position in sorted(self._consumer.position().items()):
            STATE_LOG.info("partition %s/%d: next offset %s", topic, number, position)
