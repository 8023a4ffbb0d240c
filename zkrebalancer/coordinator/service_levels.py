"""Service levels of groups (`slo.lag_s`, `slo.pause_ms`) as metrics of the leader: what was measured and burned.

Only groups with such a setting are measured. What is unknown is not measured, and never counts as kept or burned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zkrebalancer.coordinator.asked_process import AskedProcess, ProcessFailedError
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.protocol.settings import LAG_S, PAUSE_MS
from zkrebalancer.protocol.shards import concerns
from zkrebalancer.rebalance.effects import Emit
from zkrebalancer.runtime import clock

PREFIX = "zkrebalancer_coordinator"
INTERVAL_S = 60.0
READ_TIMEOUT_S = 30.0  # for one group
MAX_SHARE_OF_TIME = 4  # after slow readings, the pause is this many times as long
MAX_PAUSE_S = 300.0  # readings are slow while Kafka is away, and the lag is highest when it is back
MAX_GROUPS = 1_000  # with a service level; further ones are not measured
MODULE = "zkrebalancer.coordinator.lag_process"
Read = Callable[[str], Mapping[str, Any]]  # group -> answer of `lag_process.lag`

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Burned:
    """One group: rebalances that paused partitions, seconds of which the lag is known, and how much broke a level."""

    pauses: int = 0
    long_pauses: int = 0
    lag_s: float | None = None  # at the last reading
    known_s: float = 0.0
    late_s: float = 0.0
    read_us: int = 0  # when the lag was read last, 0 if it was unknown then
    error: str = ""  # why it was unknown; logged once, not at each try

    def line(self, limit_s: float) -> str:
        """Return what is known of the lag, for people."""
        now = "the lag is not known now" if self.lag_s is None else f"the oldest unread record waits {self.lag_s:g} s"
        late = f"it was above for {self.late_s:.0f} of {self.known_s:.0f} s since this coordinator leads"
        return f"slo.lag_s={limit_s:g}: {now}; {late}"


class ServiceLevels(Collector):
    """The levels of all groups of a leader, since this process leads."""

    def __init__(self, monitor: Monitor) -> None:
        """Follow the coordinator from now on."""
        self._monitor = monitor
        self._groups: dict[str, Burned] = {}
        monitor.listeners.append(self.note)

    def note(self, effect: Emit, _cause: str) -> None:
        """Count a rebalance that has ended."""
        if effect.kind == "leader_elected":
            self._groups = {name: one for name, one in self._groups.items() if not concerns(effect.fields, name)}
        if effect.kind != "rebalance_finished" or effect.group is None or not effect.fields["moved_count"]:
            return
        limit_ms = self._limit(effect.group, PAUSE_MS)
        burned = None if limit_ms is None else self._of(effect.group)
        if burned is not None and limit_ms is not None:
            burned.pauses += 1
            burned.long_pauses += int(str(effect.fields["pause_us_max"])) / 1_000 > limit_ms

    def measure(self, read: Read, now_us: Callable[[], int] = clock.steady_us) -> None:
        """Read the lag of each group with a limit for it; the time since the last reading counts by this one."""
        groups = self._with(LAG_S)
        self.pause(set(groups))
        for group in groups:
            burned, limit_s = self._of(group), self._limit(group, LAG_S)
            if burned is None or limit_s is None:
                continue
            answer = read(group)
            self._complain(group, burned, answer.get("error") or "")
            lag_s, at_least_s, at_us = answer.get("lag_s"), answer.get("at_least_s"), now_us()
            if lag_s is None and at_least_s is not None and at_least_s > limit_s:
                lag_s = at_least_s  # it is above, whatever the partitions do that are not known
            if lag_s is not None and burned.read_us:
                elapsed_s = (at_us - burned.read_us) / 1e6
                burned.known_s += elapsed_s
                burned.late_s += elapsed_s if lag_s > limit_s else 0.0
            burned.lag_s, burned.read_us = lag_s, 0 if lag_s is None else at_us

    def pause(self, but: Collection[str] = ()) -> None:
        """Note that the lag of other groups is not read now: the time until their next readings is unknown."""
        for group, burned in self._groups.items():
            if group not in but:
                burned.lag_s, burned.read_us = None, 0

    def lag_line(self, group: str) -> str | None:
        """Return what was measured of a group's lag, None without a limit for it."""
        limit_s = self._limit(group, LAG_S)
        return None if limit_s is None else self._groups.get(group, Burned()).line(limit_s)

    def collect(self) -> Iterator[Metric]:
        """Return what was measured."""
        names = ["group"]
        pauses = _counter("slo_pauses", "Rebalances that moved partitions of a group with slo.pause_ms.", names)
        long = _counter("slo_pauses_breached", "Those of them with a pause longer than slo.pause_ms.", names)
        known = _counter("slo_lag_seconds", "Time in which the lag of a group with slo.lag_s was known.", names)
        late = _counter("slo_lag_breached_seconds", "That part of it in which the lag was above slo.lag_s.", names)
        lag = GaugeMetricFamily(
            f"{PREFIX}_group_lag_seconds", "How long the oldest unread record of the group waits.", labels=names
        )
        # A counter that begins above 0 has not grown, for Prometheus.
        groups = dict.fromkeys(self._with(PAUSE_MS)[:MAX_GROUPS], Burned()) | self._groups
        for group, burned in groups.items():
            if burned.pauses or self._limit(group, PAUSE_MS) is not None:
                pauses.add_metric([group], burned.pauses)
                long.add_metric([group], burned.long_pauses)
            if burned.read_us or burned.known_s:
                known.add_metric([group], burned.known_s)
                late.add_metric([group], burned.late_s)
            if burned.lag_s is not None and self._limit(group, LAG_S) is not None:
                lag.add_metric([group], burned.lag_s)
        yield from (pauses, long, known, late, lag)

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return ()

    def _of(self, group: str) -> Burned | None:
        if group not in self._groups and len(self._groups) >= MAX_GROUPS:
            self._groups = {name: one for name, one in self._groups.items() if self._monitor.group(name) is not None}
            if len(self._groups) >= MAX_GROUPS:
                return None
        return self._groups.setdefault(group, Burned())

    def _with(self, name: str) -> list[str]:
        """Return the groups that have a limit of this name."""
        return [group.name for group in self._monitor.served() if name in group.view.settings.slo]

    def _limit(self, group: str, name: str) -> float | None:
        known = self._monitor.group(group)
        return None if known is None else known.view.settings.slo.get(name)

    @staticmethod
    def _complain(group: str, burned: Burned, error: str) -> None:
        if error and error != burned.error:
            _log.warning("group %s: its lag is not known: %s", group, error)
        burned.error = error


def pause_after_s(elapsed_s: float) -> float:
    """Return how long to wait after readings that took so long."""
    return min(MAX_PAUSE_S, max(INTERVAL_S, MAX_SHARE_OF_TIME * elapsed_s))


def measuring(levels: ServiceLevels, monitor: Monitor, zookeeper: str, kafka: Mapping[str, str]) -> Callable[[], None]:
    """Read lag from now on, while this coordinator leads; return how to stop."""
    process = AskedProcess(MODULE)  # it lives, with its session, as long as this coordinator leads

    def read(group: str) -> Mapping[str, Any]:
        try:
            return process.ask({"zookeeper": zookeeper, "kafka": dict(kafka), "group": group}, READ_TIMEOUT_S)
        except ProcessFailedError as error:
            return {"error": str(error)}

    def work() -> None:
        pause_s = INTERVAL_S
        while True:
            gevent.sleep(pause_s)
            began_us = clock.steady_us()
            if monitor.leads:
                levels.measure(read)
            else:
                levels.pause()
                process.end()
            pause_s = pause_after_s((clock.steady_us() - began_us) / 1e6)

    worker = gevent.spawn(work)

    def stop() -> None:
        worker.kill()
        process.end()

    return stop


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
