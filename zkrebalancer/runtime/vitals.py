"""Whether a process makes progress: its loop, and ZooKeeper. `/liveness` and systemd's watchdog show it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zkrebalancer.runtime import clock, logs
from zkrebalancer.runtime.notify import Notifier

LOOP_LIMIT_S = 10.0
MIN_ZOOKEEPER_LIMIT_S = 30.0  # an election of ZooKeeper's own servers takes less; at most half of systemd's limit
SESSIONS = 3  # or as many session timeouts, if that is longer
STATE_LOG = logs.named("zkrebalancer.state")  # for what an operator asks for by a signal
STATE_LOG.setLevel(logging.INFO)  # it is written at any --log-level
BEAT_S = 1.0  # how often progress is checked, and at least a third of systemd's limit


@dataclass(frozen=True, slots=True)
class Health:
    """`death`: why the process should be restarted. `faults`: why it does not do its work now.

    `leads`: whether it decides about groups. `facts`: shown with every answer.
    """

    death: str | None
    faults: list[str]
    leads: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


class Vitals:
    """When the loop and ZooKeeper made progress last. Any thread may read it."""

    def __init__(
        self,
        session_timeout_ms: int,
        notifier: Notifier,
        loop_limit_s: float = LOOP_LIMIT_S,
        now_us: Callable[[], int] = clock.steady_us,
        stalled: Callable[[], str | None] | None = None,
    ) -> None:
        """Count from now on.

        `stalled`: for a process that has work without ZooKeeper, whose silence is no reason to restart it then: why
        what keeps its session no longer moves, which is one.
        """
        self._now_us = now_us
        self._notifier = notifier
        self._loop_limit_s = loop_limit_s
        self._stalled = stalled
        watchdog_s = notifier.watchdog_s
        least_s = min(MIN_ZOOKEEPER_LIMIT_S, watchdog_s / 2 if watchdog_s else MIN_ZOOKEEPER_LIMIT_S)
        self._zookeeper_limit_s = max(least_s, SESSIONS * session_timeout_ms / 1_000)
        self._looped_us = self._answered_us = now_us()
        self._is_ready = False
        self.beat_s = BEAT_S if watchdog_s is None else min(BEAT_S, watchdog_s / 3)

    def looped(self) -> None:
        """Note that the loop has handled something."""
        self._looped_us = self._now_us()

    def answered(self) -> None:
        """Note that ZooKeeper has answered in this session."""
        self._answered_us = self._now_us()

    def silence_s(self) -> float:
        """Return for how long ZooKeeper has not answered."""
        return (self._now_us() - self._answered_us) / 1e6

    def death(self) -> str | None:
        """Return why the process should be restarted, None if it makes progress."""
        idle_s = (self._now_us() - self._looped_us) / 1e6
        if idle_s > self._loop_limit_s:
            return f"the loop has not moved for {idle_s:.0f} s"
        if self._stalled is not None:
            return self._stalled()
        if self.silence_s() > self._zookeeper_limit_s:
            return f"ZooKeeper has not answered for {self.silence_s():.0f} s"
        return None

    def report(self, *, is_ready: bool, status: str) -> None:
        """Tell systemd, once, that the process is ready; feed its watchdog, unless there is no progress."""
        if not self._notifier.is_used:
            return
        becomes_ready = is_ready and not self._is_ready
        states = [f"STATUS={status}", *(["READY=1"] if becomes_ready else [])]
        if self.death() is None:
            states.append("WATCHDOG=1")
        if self._notifier.send(*states) and becomes_ready:  # again next time: without it, systemd ends the process
            self._is_ready = True

    def stopping(self) -> None:
        """Tell systemd that the process ends by itself."""
        self._notifier.send("STOPPING=1")
