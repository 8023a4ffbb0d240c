"""A coordinator's metrics, for Prometheus: totals, and labels per group only when they are switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

import gevent
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zkrebalancer.coordinator.monitor import REGION_ROUNDS, TURN_S, Monitor, Observed
from zkrebalancer.rebalance.census import Figures
from zkrebalancer.rebalance.effects import Emit
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.http_server import LAG_SECONDS

PREFIX = "zkrebalancer_coordinator"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CAUSES = (
    *("leader-elected", "group-created", "member-joined", "member-left", "member-evicted", "lease-over"),
    *("member-refused", "subscription-changed", "topic-created", "topic-deleted", "partitions-added"),
    *("topic-recreated", "topic-renamed", "settings-changed", "loads-known", "operator-request"),
    *("ownership-changed", "static-grace-over", "reconciliation", "reconnected", "outdated", "retry", "released"),
    "unknown",  # its request was another leader's
)
OUTCOMES = ("finished", "superseded", "failed")
MAX_ADDED = 200  # groups whose metrics are made before other greenlets have their turn
MAX_GAP_US = 150_000_000  # between two readings: after more, the state in between is unknown


class Recorded(Observed):
    """What has happened, in a registry."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._rebalances = Counter(
            f"{PREFIX}_rebalances",
            "Rebalances that have ended, by what caused them and how they ended.",
            ["cause", "outcome"],
            registry=registry,
        )
        for labels in product(CAUSES, OUTCOMES):  # a counter that begins at 1 has not grown, for Prometheus
            self._rebalances.labels(*labels)
        self._settle = Histogram(
            f"{PREFIX}_rebalance_settle_seconds",
            "Time from the request of a finished rebalance to its last acknowledgement.",
            buckets=SECONDS,
            registry=registry,
        )
        self._pause = Histogram(
            f"{PREFIX}_rebalance_pause_seconds",
            "Longest time that a partition had no consumer in a finished rebalance that moved some.",
            buckets=SECONDS,
            registry=registry,
        )
        self._rounds = Counter(
            f"{PREFIX}_region_rounds",
            "Checkpoints and resets of regions that have ended.",
            ["kind", "outcome"],
            registry=registry,
        )
        for labels in REGION_ROUNDS.values():
            self._rounds.labels(*labels)
        self._round = Histogram(
            f"{PREFIX}_region_round_seconds",
            "Time from the order of a completed checkpoint or reset to its end.",
            ["kind"],
            buckets=SECONDS,
            registry=registry,
        )
        self._lag = Histogram(
            f"{PREFIX}_loop_lag_seconds",
            "How late the loop handled an event, measured once a second.",
            buckets=LAG_SECONDS,
            registry=registry,
        )

    def lag(self, seconds: float) -> None:
        """Note how late the loop handled an event."""
        self._lag.observe(seconds)

    def region_round(self, kind: str, outcome: str, elapsed_s: float) -> None:
        """Count a checkpoint or a reset of a region."""
        self._rounds.labels(kind, outcome).inc()
        if outcome == "completed":
            self._round.labels(kind).observe(elapsed_s)

    def rebalance(self, cause: str, cause_id: str, effect: Emit) -> None:
        """Count a rebalance that has ended; the histograms keep its cause as an exemplar."""
        outcome = str(effect.fields["outcome"])
        self._rebalances.labels(cause, outcome).inc()
        if outcome == "finished":
            exemplar = {"cause": cause[:40], "cause_id": cause_id[:40]}
            self._settle.observe(_seconds(effect, "settled_us"), exemplar)
            if effect.fields["moved_count"]:
                self._pause.observe(_seconds(effect, "pause_us_max"), exemplar)


def _seconds(effect: Emit, name: str) -> float:
    return int(str(effect.fields[name])) / 1e6


@dataclass(slots=True)
class Totals:
    """Sums over groups."""

    groups: dict[GroupState, int] = field(default_factory=lambda: dict.fromkeys(GroupState, 0))
    oldest_s: dict[GroupState, float] = field(default_factory=lambda: dict.fromkeys(GroupState, 0.0))
    members: int = 0
    partitions: int = 0
    unowned: int = 0
    unowned_s: float = 0.0  # the longest time, see `Lasting`
    pending_commands: int = 0

    def add(self, one: Figures) -> None:
        """Add a group."""
        self.groups[one.state] += 1
        self.oldest_s[one.state] = max(self.oldest_s[one.state], one.age_s)
        self.members += one.members
        self.partitions += one.partitions
        self.unowned += one.unowned
        self.pending_commands += one.pending_commands


class Lasting:
    """Groups for which a condition was true at each of the last readings, none long after another, and since when."""

    def __init__(self) -> None:
        """Start with none."""
        self._since_us: dict[str, int] = {}
        self._read_us = 0

    def longest_us(self, groups: Iterable[str], now_us: int) -> int:
        """Note the groups for which it is true now; return the longest time for which it has been true of one."""
        if now_us > self._read_us + MAX_GAP_US:
            self._since_us.clear()
        self._read_us = now_us
        self._since_us = {name: self._since_us.get(name, now_us) for name in groups}
        return now_us - min(self._since_us.values(), default=now_us)


class Present(Collector):
    """The present state of a coordinator, read when it is asked for."""

    def __init__(self, monitor: Monitor, queued_calls: Callable[[], int], queued_events: Callable[[], int]) -> None:
        """`queued_calls` wait for others in flight, `queued_events` for the loop."""
        self._monitor = monitor
        self._queued_calls = queued_calls
        self._queued_events = queued_events
        self._without_owner = Lasting()

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: that would read the state."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the coordinator, then its groups."""
        yield from self._of_the_process()
        totals = Totals()
        kept: list[Figures] = []
        without_owner: list[str] = []
        for found in self._monitor.figures():
            totals.add(found)
            if found.unowned:
                without_owner.append(found.group)
            if self._monitor.is_per_group:
                kept.append(found)
        totals.unowned_s = self._without_owner.longest_us(without_owner, clock.steady_us()) / 1e6
        yield from _of_all(totals)
        if self._monitor.is_per_group:
            yield from _of_each(kept)

    def _of_the_process(self) -> Iterator[Metric]:
        monitor, machines = self._monitor, self._monitor.shards.machines
        observed = monitor.observed
        yield _gauge("leader", "1 if this coordinator leads, some shard of groups at least.", monitor.leads)
        yield _gauge("shards", "Shards of groups.", len(machines))
        yield _gauge("shards_led", "Shards of groups that this coordinator leads.", len(monitor.led))
        is_damaged = self._monitor.shards.damage is not None
        yield _gauge("shards_damaged", "1 if the number of shards cannot be read, see the log.", is_damaged)
        is_partial = monitor.unfinished_restore is not None
        yield _gauge(
            "restore_unfinished", "1 if no coordinator can lead because a restore is not complete.", is_partial
        )
        yield _gauge("epoch", "Highest epoch in which this coordinator has led.", monitor.epoch)
        yield _gauge("ready", "1 if /readiness answers 200.", not monitor.health().faults)
        yield _gauge("session_connected", "1 if ZooKeeper answers in this session.", monitor.is_connected)
        yield _counter("sessions", "ZooKeeper sessions that were opened.", observed.sessions)
        yield _counter("session_losses", "ZooKeeper sessions that were lost.", observed.session_losses)
        yield _gauge("zookeeper_silence_seconds", "Time since ZooKeeper answered last.", monitor.vitals.silence_s())
        yield _gauge("zookeeper_round_trip_seconds", "Time of the last call that only asked.", observed.round_trip_s)
        awaited = sum(len(one.scheduler.awaited) for one in machines)
        yield _gauge("calls_under_way", "Calls to ZooKeeper that are not answered yet.", awaited)
        yield _gauge("calls_queued", "Those of them that wait until fewer are in flight.", self._queued_calls())
        yield _gauge("events_queued", "Events that wait for the loop.", self._queued_events())
        queued = sum(len(one.rebalance_request_queue) for one in machines)
        yield _gauge("groups_queued", "Groups that wait to be planned.", queued)
        to_load = sum(len(one.groups_to_load) for one in machines)
        yield _gauge("groups_to_load", "Groups that wait to be read from ZooKeeper.", to_load)
        quarantined = sum(len(one.quarantine.out) for one in machines)
        yield _gauge("groups_quarantined", "Groups that are not served because of a bug, see the log.", quarantined)
        # One that is planned again counts as backing off until it is at rest.
        known = [one.groups[name] for one in machines for name in one.scheduler.backing_off if name in one.groups]
        backing_off = sum(group.state is not GroupState.MOVING for group in known)
        yield _gauge("groups_backing_off", "Groups that cannot be planned, and are tried again.", backing_off)
        refused = sum(len(one.scheduler.refusals.known) for one in machines)
        yield _gauge("refusals", "Paths that ZooKeeper refuses, see the log.", refused)


def _of_all(totals: Totals) -> Iterator[Metric]:
    groups = _labelled("groups", "Groups by state.", ["state"])
    oldest = _labelled("group_state_age_seconds_max", "Longest time that a group is in this state.", ["state"])
    for state in GroupState:
        groups.add_metric([state.value], totals.groups[state])
        oldest.add_metric([state.value], totals.oldest_s[state])
    yield groups
    yield oldest
    yield _gauge("members", "Members of all groups.", totals.members)
    yield _gauge("partitions", "Partitions of the topics that members read, once for each group.", totals.partitions)
    yield _gauge("partitions_unowned", "Those of them that no member holds.", totals.unowned)
    text = "Longest time for which each reading has found such partitions in one group; others just move."
    yield _gauge("partitions_unowned_seconds_max", text, totals.unowned_s)
    yield _gauge("commands_pending", "Commands that members have not acknowledged.", totals.pending_commands)


def _of_each(groups: Iterable[Figures]) -> Iterator[Metric]:
    ages = _labelled("group_state_age_seconds", "Time that the group is in its state.", ["group", "state"])
    numbers = [
        _labelled("group_members", "Members of the group.", ["group"]),
        _labelled("group_partitions", "Partitions of the topics that its members read.", ["group"]),
        _labelled("group_partitions_unowned", "Those of them that no member holds.", ["group"]),
        _labelled("group_commands_pending", "Commands that its members have not acknowledged.", ["group"]),
        _labelled("group_generation", "The group's generation.", ["group"]),
    ]
    for number, one in enumerate(groups, start=1):
        ages.add_metric([one.group, one.state.value], one.age_s)
        values = (one.members, one.partitions, one.unowned, one.pending_commands, one.generation)
        for family, value in zip(numbers, values, strict=True):
            family.add_metric([one.group], value)
        if number % MAX_ADDED == 0:
            gevent.sleep(TURN_S)
    yield ages
    yield from numbers


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))


def _labelled(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=float(value))
