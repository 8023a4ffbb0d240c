"""Measures the steps of an experiment from its events: duration, delays of records, moves and pauses of partitions.

A window runs from one `step` event to the next. `measure` is pure. Times are those of the monotonic clock that the
processes of one host share; delays are those that the receiver recorded. Percentiles are nearest-rank.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zkrebalancer.observe.costs import WORKLOAD, Costs
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.fields import TopicPartition

BEFORE = "before"
END = "end"
REST = "rest"  # a step that changes nothing
Figure = int | float | None
Owned = tuple[str | None, str, int]  # a group, its topic and partition
OWN_CPU = "cpu_without_producers_ms"
_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


@dataclass(slots=True)
class Window:
    """One step: everything until the next `step` event."""

    number: int
    name: str
    target: str
    began_us: int
    owners: dict[Owned, str]  # at its beginning
    changed_us: dict[str | None, int] = field(default_factory=dict)  # group -> when a partition last changed hands
    unsettled_ms: int | None = None  # the time that the group was given, if it did not settle
    unowned_us: int = 0  # summed over partitions
    unheld: int = 0  # records delivered to members that did not own the partition
    delays_us: list[int] = field(default_factory=list)
    stopped: set[tuple[Owned, str]] = field(default_factory=set)
    produced: Counter[TopicPartition] = field(default_factory=Counter)  # records
    first_us: dict[tuple[Owned, str], int] = field(default_factory=dict)  # of each partition to each member


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step did; None: not measured."""

    settled_ms: float
    first_record_ms: float | None
    moved: int
    moved_least: int
    stopped_needlessly: int


class Steps:
    """The steps of a run up to the last event that was applied; `window` is the current one."""

    def __init__(self) -> None:
        """Begin before the first step."""
        self.figures: list[dict[str, Figure | str]] = []
        self.delays_us: dict[bool, list[int]] = {False: [], True: []}  # key: whether the first change was made
        self.window: Window | None = None
        self._owners: dict[Owned, dict[str, None]] = {}  # members in order of their starts
        self._held: dict[tuple[str | None, str], dict[Owned, None]] = {}  # by group and member
        self._free_since_us: dict[Owned, int] = {}
        self.costs = Costs()

    def apply(self, event: Event) -> None:
        """Apply one event."""
        match event["kind"]:
            case "step":
                self._step(event)
            case "fetcher_started":
                self._started(event)
            case "fetcher_stopped":
                self._stopped(event)
            case "ownership_ended":
                for partition in list(self._held.get((event.get("group"), event["member"]), ())):
                    self._release(partition, event["member"], event["mono_us"])
            case "delivered":
                self._delivered(event)
            case "produced" if self.window is not None:
                count = event["last_offset"] - event["first_offset"] + 1
                self.window.produced[event["topic"], event["partition"]] += count
            case "counted":
                self.costs.counted(event, self.number)
            case "sampled":
                self.costs.sampled(event, self.number)

    @property
    def number(self) -> int | None:
        """The number of the current step."""
        return None if self.window is None else self.window.number

    def owners(self) -> dict[Owned, str]:
        """Return partition -> owner; of several owners, the last one that started."""
        return {partition: list(members)[-1] for partition, members in self._owners.items() if members}

    def _step(self, event: Event) -> None:
        now_us = event["mono_us"]
        if self.window is not None:
            for partition, since_us in self._free_since_us.items():
                self.window.unowned_us += now_us - max(since_us, self.window.began_us)
                self._free_since_us[partition] = now_us
            self.window.unsettled_ms = event.get("unsettled_ms")
            self.figures.append(_figures(self.window, now_us, self.owners(), self.costs))
            self.delays_us[self.window.name != BEFORE] += self.window.delays_us
        is_over = event["name"] == END
        new = Window(event["number"], event["name"], event["target"], now_us, self.owners())
        self.window = None if is_over else new

    def _started(self, event: Event) -> None:
        now_us, window = event["mono_us"], self.window
        for number in event["partitions"]:
            partition = (event.get("group"), event["topic"], number)
            is_new = partition not in self._owners
            owners = self._owners.setdefault(partition, {})
            owners.pop(event["member"], None)  # it may have started before
            owners[event["member"]] = None
            self._held.setdefault((partition[0], event["member"]), {})[partition] = None
            if window is not None:
                since_us = self._free_since_us.get(partition, window.began_us if is_new else now_us)
                window.unowned_us += now_us - max(since_us, window.began_us)
                window.changed_us[partition[0]] = now_us
            self._free_since_us.pop(partition, None)

    def _stopped(self, event: Event) -> None:
        for number in event["partitions"]:
            partition = (event.get("group"), event["topic"], number)
            if self._release(partition, event["member"], event["mono_us"]) and self.window is not None:
                self.window.stopped.add((partition, event["member"]))

    def _release(self, partition: Owned, member: str, now_us: int) -> bool:
        owners = self._owners.get(partition, {})
        if member not in owners:
            return False
        del owners[member]
        del self._held[partition[0], member][partition]
        if not owners:
            self._free_since_us[partition] = now_us
        if self.window is not None:
            self.window.changed_us[partition[0]] = now_us
        return True

    def _delivered(self, event: Event) -> None:
        if self.window is not None:
            self.window.delays_us += event.get("delays_us", ())
            partition = (event.get("group"), event["topic"], event["partition"])
            self.window.first_us.setdefault((partition, event["member"]), event["mono_us"])
            if event["member"] not in self._owners.get(partition, {}):
                self.window.unheld += event["count"]


def measure(events: Iterable[Event]) -> tuple[dict[str, Figure], list[dict[str, Figure | str]]]:
    """Return the figures of a run and of each of its steps; `events` must be sorted by `mono_us`.

    The run's `settled_ms` and `first_record_ms` are medians over the steps that change something, those with `max` the
    longest of them, its `load_peak` the highest of all steps; most other figures are sums over steps. `rest_…` and
    `rss_…` are what the steps `rest` cost, or without any the one before all changes; producers count only where they
    are named. A step after which the group did not settle counts with the time that it was given. Where several groups
    change in a step, it has `group_settled_p50_ms`, and `settled_ms` is the time of the last group. None, or missing:
    not measured.
    """
    run = Steps()
    for event in events:
        run.apply(event)
    changes = [step for step in run.figures if step["name"] not in {BEFORE, REST}]
    settled = [step["settled_ms"] for step in changes if isinstance(step["settled_ms"], int | float)]
    first = [step["first_record_ms"] for step in changes if isinstance(step["first_record_ms"], int | float)]
    figures: dict[str, Figure] = {
        "settled_ms": round(statistics.median(settled), 1) if settled else None,
        "settled_max_ms": max(settled, default=None),
        "first_record_ms": round(statistics.median(first), 1) if first else None,
        "first_record_max_ms": max(first, default=None),
        **_delays(run.delays_us[True]),
        **{f"before_{name}": value for name, value in _delays(run.delays_us[False]).items()},
    }
    for name in ("unowned_partition_ms", "moved", "moved_least", "stopped_needlessly", "unheld"):
        figures[name] = _sum(changes, name)
    later = [step for step in run.figures if step["name"] != BEFORE]
    cpu = sorted({"cpu_ms", OWN_CPU, *(name for step in run.figures for name in step if name.startswith("cpu_"))})
    for name in ("requests", "bytes", "zookeeper_bytes", *cpu):
        figures[name] = _sum(later, name)
    # Soon after the start, JVMs still compile: where a run has rest later, what comes before does not count.
    rest = [[step for step in run.figures if step["name"] == name] for name in (REST, BEFORE)]
    figures |= _at_rest(rest[0] or rest[1], cpu, run.costs)
    figures["load_peak"] = max((peak for step in later if isinstance(peak := step["load_peak"], float)), default=None)
    return figures, run.figures


def _at_rest(steps: Sequence[Mapping[str, Figure | str]], cpu: Iterable[str], costs: Costs) -> dict[str, Figure]:
    """Return what a second at rest costs, `cpu` being the names of processor times, and the memory of all processes."""
    seconds = (_sum(steps, "length_ms") or 0) / 1_000
    names = [name for name in ("requests", "zookeeper_bytes", *cpu) if name != "cpu_ms"]
    spent = {"cpu_ms" if name == OWN_CPU else name: _sum(steps, name) for name in names}
    rates = {name: total / seconds for name, total in spent.items() if seconds and total is not None}
    found: dict[str, Figure] = {f"rest_{name}_per_s": round(rate, 1) for name, rate in rates.items()}
    memory = costs.memory([int(step["number"] or 0) for step in steps])
    found |= {f"rss_{role}_mb": round(size / 1_000_000, 1) for role, size in sorted(memory.items())}
    return {**found, "rss_mb": round(sum(memory.values()) / 1_000_000, 1) if memory else None}


def least_moves(before: Mapping[Any, str], after: Iterable[str]) -> int:
    """Return how many partitions must move so that the counts of the members `after` differ by at most one."""
    kept: Counter[str] = Counter(dict.fromkeys(after, 0))
    orphans = 0
    for member in before.values():
        if member in kept:
            kept[member] += 1
        else:
            orphans += 1
    if not kept:
        return 0
    share, larger = divmod(len(before), len(kept))
    counts = sorted(kept.values(), reverse=True)
    return orphans + sum(max(0, count - share - (rank < larger)) for rank, count in enumerate(counts))


def _least_moves_of_groups(before: Mapping[Owned, str], after: Mapping[Owned, str]) -> int:
    total = 0
    for group in {partition[0] for partition in after}:
        of_group = {partition: owner for partition, owner in before.items() if partition[0] == group}
        total += least_moves(of_group, {owner for partition, owner in after.items() if partition[0] == group})
    return total


def load_peak(produced: Mapping[TopicPartition, int], owners: Mapping[Owned, str]) -> float | None:
    """Return the highest load of an owner divided by the mean; a load is the number of records produced."""
    loads = Counter(dict.fromkeys(owners.values(), 0))
    for (_group, topic, number), owner in owners.items():
        loads[owner] += produced.get((topic, number), 0)
    return max(loads.values()) * len(loads) / loads.total() if loads.total() else None


def effect(window: Window, owners: Mapping[Owned, str]) -> Effect:
    """Return what a step did; `owners` are those at its end."""
    still_there = {partition: owner for partition, owner in window.owners.items() if partition in owners}
    needless = sum(
        window.owners.get(partition) == owners.get(partition) == member != window.target
        for partition, member in window.stopped
    )
    went = [(partition, owner) for partition, owner in owners.items() if window.owners.get(partition) != owner]
    first_us = min((window.first_us[one] for one in went if one in window.first_us), default=None)
    settled_ms = max(0, max(window.changed_us.values(), default=0) - window.began_us) / 1_000
    return Effect(
        settled_ms=settled_ms if window.unsettled_ms is None else window.unsettled_ms,
        first_record_ms=window.unsettled_ms if first_us is None else (first_us - window.began_us) / 1_000,
        moved=sum(owners[partition] != owner for partition, owner in still_there.items()),
        moved_least=_least_moves_of_groups(still_there, owners),
        stopped_needlessly=needless,
    )


def _figures(window: Window, now_us: int, owners: Mapping[Owned, str], costs: Costs) -> dict[str, Figure | str]:
    found = effect(window, owners)
    return {
        "number": window.number,
        "name": window.name,
        "target": window.target,
        "length_ms": round((now_us - window.began_us) / 1_000, 1),
        "settled_ms": round(found.settled_ms, 1),
        **_of_groups(window),
        "first_record_ms": None if found.first_record_ms is None else round(found.first_record_ms, 1),
        "unowned_partition_ms": round(window.unowned_us / 1_000, 1),
        **_delays(window.delays_us),
        "moved": found.moved,
        "moved_least": found.moved_least,
        "stopped_needlessly": found.stopped_needlessly,
        "unheld": window.unheld,
        "load_peak": load_peak(window.produced, owners),
        **_spent(costs, window.number),
    }


def _spent(costs: Costs, step: int) -> dict[str, Figure]:
    """Return what all processes spent in a step, processor time also without the producers and by role."""
    requests, size = costs.spent(step, "requests"), costs.spent(step, "bytes")
    cpu_ms = {role: round(us / 1_000, 1) for role, us in sorted(costs.spent(step, "cpu_us").items())}
    own_ms = [ms for role, ms in cpu_ms.items() if role != WORKLOAD]
    return {
        "requests": sum(requests.values()) if requests else None,
        "bytes": sum(size.values()) if size else None,
        "zookeeper_bytes": size.get("zookeeper"),
        "cpu_ms": round(sum(cpu_ms.values()), 1) if cpu_ms else None,
        OWN_CPU: round(sum(own_ms), 1) if own_ms else None,
        **{f"cpu_{role}_ms": ms for role, ms in cpu_ms.items()},
    }


def _of_groups(window: Window) -> dict[str, Figure]:
    """Return the median time to settled of the groups that changed, if there are several."""
    times_ms = [(changed_us - window.began_us) / 1_000 for changed_us in window.changed_us.values()]
    return {"group_settled_p50_ms": round(statistics.median(times_ms), 1)} if len(times_ms) > 1 else {}


def _delays(delays_us: Sequence[int]) -> dict[str, Figure]:
    ordered = sorted(delays_us)
    return {f"delay_{name}_ms": _percentile_ms(ordered, share) for name, share in _SHARES.items()}


def _percentile_ms(ordered_us: Sequence[int], share: float) -> float | None:
    if not ordered_us:
        return None
    return round(ordered_us[max(0, math.ceil(share * len(ordered_us)) - 1)] / 1_000, 1)


def _sum(steps: Iterable[Mapping[str, Figure | str]], name: str) -> Figure:
    known = [value for step in steps if isinstance(value := step.get(name), int | float)]
    return round(sum(known), 1) if known else None
