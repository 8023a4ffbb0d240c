"""Plans that are not carried out yet, for the pages: one process at a time, and a plan is kept for a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gevent.lock import Semaphore

from zkrebalancer.coordinator.asked_process import AskedProcess, ProcessFailedError
from zkrebalancer.runtime import clock

PLAN_TIMEOUT_S = 60.0
KEPT_S = 3.0  # for which readers of the same group share a plan
MODULE = "zkrebalancer.coordinator.pages.plan_process"


class Foresight:
    """Asks for plans, one after another."""

    def __init__(self, zookeeper: str, kafka: Mapping[str, str] | None) -> None:
        """Start no process before the first plan; `kafka`: librdkafka's settings, None if lag is not read."""
        self._servers = {"zookeeper": zookeeper, "kafka": None if kafka is None else dict(kafka)}
        self._turn = Semaphore()
        self._process = AskedProcess(MODULE)
        self._kept: tuple[str, int, dict[str, Any]] | None = None  # group, when, plan

    def plan(self, group: str) -> dict[str, Any]:
        """Return the plan (see `plan_process.plan`), or `{"error": why}`; blocks this greenlet only."""
        with self._turn:
            now_us = clock.steady_us()
            if self._kept is not None and self._kept[0] == group and now_us < self._kept[1] + KEPT_S * 1e6:
                return self._kept[2]
            try:
                found = self._process.ask({**self._servers, "group": group}, PLAN_TIMEOUT_S)
            except ProcessFailedError as error:
                return {"error": f"no plan: {error}"}
            finally:
                self._process.end()  # nobody may ask again for days
            self._kept = group, clock.steady_us(), found
            return found

    def close(self) -> None:
        """End the process."""
        self._process.end()
