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

from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.fields import TopicPartition

BEFORE = "before"
END = "end"
REST = "rest"  # a step that changes nothing
Figure = int | float | None
_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


@dataclass(slots=True)
class Window:
    """One step: everything until the next `step` event."""

    number: int
    name: str
    target: str
    began_us: int
    owners: dict[TopicPartition, str]  # at its beginning
    totals: dict[tuple[str, str], int]  # counters at its beginning, by (what, process)
    last_change_us: int = 0
    unsettled_ms: int | None = None  # the time that the group was given, if it did not settle
    unowned_us: int = 0  # summed over partitions
    unheld: int = 0  # records delivered to members that did not own the partition
    delays_us: list[int] = field(default_factory=list)
    stopped: set[tuple[TopicPartition, str]] = field(default_factory=set)
    produced: Counter[TopicPartition] = field(default_factory=Counter)  # records
    first_us: dict[tuple[TopicPartition, str], int] = field(default_factory=dict)  # of each partition to each member


class _Run:
    """A run up to the last event that was applied."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Figure | str]] = []
        self.delays_us: dict[bool, list[int]] = {False: [], True: []}  # key: whether the first change was made
        self._window: Window | None = None
        self._owners: dict[TopicPartition, dict[str, None]] = {}  # members in order of their starts
        self._free_since_us: dict[TopicPartition, int] = {}
        self._totals: dict[tuple[str, str], int] = {}

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
                for partition in list(self._owners):
                    self._release(partition, event["member"], event["mono_us"])
            case "delivered":
                self._delivered(event)
            case "produced" if self._window is not None:
                count = event["last_offset"] - event["first_offset"] + 1
                self._window.produced[event["topic"], event["partition"]] += count
            case "counted":
                self._count(event, "requests", event["requests"])
                self._count(event, "bytes", event["bytes_in"] + (event["bytes_out"] or 0))
            case "sampled":
                self._count(event, "cpu_us", event["cpu_us"])

    def owners(self) -> dict[TopicPartition, str]:
        """Return partition -> owner; of several owners, the last one that started."""
        return {partition: list(members)[-1] for partition, members in self._owners.items() if members}

    def _step(self, event: Event) -> None:
        now_us = event["mono_us"]
        if self._window is not None:
            for partition, since_us in self._free_since_us.items():
                self._window.unowned_us += now_us - max(since_us, self._window.began_us)
                self._free_since_us[partition] = now_us
            self._window.unsettled_ms = event.get("unsettled_ms")
            self.figures.append(_figures(self._window, self.owners(), self._totals))
            self.delays_us[self._window.name != BEFORE] += self._window.delays_us
        is_over = event["name"] == END
        new = Window(event["number"], event["name"], event["target"], now_us, self.owners(), dict(self._totals))
        self._window = None if is_over else new

    def _started(self, event: Event) -> None:
        now_us, window = event["mono_us"], self._window
        for number in event["partitions"]:
            partition = (event["topic"], number)
            is_new = partition not in self._owners
            self._owners.setdefault(partition, {})[event["member"]] = None
            if window is not None:
                since_us = self._free_since_us.get(partition, window.began_us if is_new else now_us)
                window.unowned_us += now_us - max(since_us, window.began_us)
                window.last_change_us = now_us
            self._free_since_us.pop(partition, None)

    def _stopped(self, event: Event) -> None:
        for number in event["partitions"]:
            partition = (event["topic"], number)
            if self._release(partition, event["member"], event["mono_us"]) and self._window is not None:
                self._window.stopped.add((partition, event["member"]))

    def _release(self, partition: TopicPartition, member: str, now_us: int) -> bool:
        owners = self._owners.get(partition, {})
        if member not in owners:
            return False
        del owners[member]
        if not owners:
            self._free_since_us[partition] = now_us
        if self._window is not None:
            self._window.last_change_us = now_us
        return True

    def _delivered(self, event: Event) -> None:
        if self._window is not None:
            self._window.delays_us += event.get("delays_us", ())
            came = ((event["topic"], event["partition"]), event["member"])
            self._window.first_us.setdefault(came, event["mono_us"])
            if event["member"] not in self._owners.get((event["topic"], event["partition"]), {}):
                self._window.unheld += event["count"]

    def _count(self, event: Event, what: str, value: int) -> None:
        self._totals[what, f"{event['role']} {event['target']}"] = value


def measure(events: Iterable[Event]) -> tuple[dict[str, Figure], list[dict[str, Figure | str]]]:
    """Return the figures of a run and of each of its steps; `events` must be sorted by `mono_us`.

    The run's `settled_ms` and `first_record_ms` are medians over the steps that change something, its `load_peak` the
    highest of all steps; most other figures are sums over steps. A step after which the group did not settle counts
    with the time that it was given. None: not measured.
    """
    run = _Run()
    for event in events:
        run.apply(event)
    changes = [step for step in run.figures if step["name"] not in {BEFORE, REST}]
    settled = [step["settled_ms"] for step in changes if isinstance(step["settled_ms"], int | float)]
    first = [step["first_record_ms"] for step in changes if isinstance(step["first_record_ms"], int | float)]
    figures: dict[str, Figure] = {
        "settled_ms": round(statistics.median(settled), 1) if settled else None,
        "settled_max_ms": max(settled, default=None),
        "first_record_ms": round(statistics.median(first), 1) if first else None,
        **_delays(run.delays_us[True]),
        **{f"before_{name}": value for name, value in _delays(run.delays_us[False]).items()},
    }
    for name in ("unowned_partition_ms", "moved", "moved_least", "stopped_needlessly", "unheld"):
        figures[name] = _sum(changes, name)
    later = [step for step in run.figures if step["name"] != BEFORE]
    for name in ("requests", "bytes", "cpu_ms"):
        figures[name] = _sum(later, name)
    figures["load_peak"] = max((peak for step in later if isinstance(peak := step["load_peak"], float)), default=None)
    return figures, run.figures


def least_moves(before: Mapping[TopicPartition, str], after: Iterable[str]) -> int:
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


def load_peak(produced: Mapping[TopicPartition, int], owners: Mapping[TopicPartition, str]) -> float | None:
    """Return the highest load of an owner divided by the mean; a load is the number of records produced."""
    loads = Counter(dict.fromkeys(owners.values(), 0))
    for partition, owner in owners.items():
        loads[owner] += produced.get(partition, 0)
    return max(loads.values()) * len(loads) / loads.total() if loads.total() else None


def _figures(
    window: Window, owners: Mapping[TopicPartition, str], totals: Mapping[tuple[str, str], int]
) -> dict[str, Figure | str]:
    still_there = {partition: owner for partition, owner in window.owners.items() if partition in owners}
    moved = sum(owners[partition] != owner for partition, owner in still_there.items())
    needless = sum(
        window.owners.get(partition) == owners.get(partition) == member != window.target
        for partition, member in window.stopped
    )
    went = [(partition, owner) for partition, owner in owners.items() if window.owners.get(partition) != owner]
    first_us = min((window.first_us[one] for one in went if one in window.first_us), default=None)
    first_ms = window.unsettled_ms if first_us is None else round((first_us - window.began_us) / 1_000, 1)
    settled_ms = round(max(0, window.last_change_us - window.began_us) / 1_000, 1)
    spent = Counter[str]()
    for (what, process), total in totals.items():
        spent[what] += total - window.totals.get((what, process), total)
    return {
        "number": window.number,
        "name": window.name,
        "target": window.target,
        "settled_ms": settled_ms if window.unsettled_ms is None else window.unsettled_ms,
        "first_record_ms": first_ms,
        "unowned_partition_ms": round(window.unowned_us / 1_000, 1),
        **_delays(window.delays_us),
        "moved": moved,
        "moved_least": least_moves(still_there, set(owners.values())),
        "stopped_needlessly": needless,
        "unheld": window.unheld,
        "load_peak": load_peak(window.produced, owners),
        "requests": spent.get("requests"),
        "bytes": spent.get("bytes"),
        "cpu_ms": round(spent["cpu_us"] / 1_000, 1) if "cpu_us" in spent else None,
    }


def _delays(delays_us: Sequence[int]) -> dict[str, Figure]:
    ordered = sorted(delays_us)
    return {f"delay_{name}_ms": _percentile_ms(ordered, share) for name, share in _SHARES.items()}


def _percentile_ms(ordered_us: Sequence[int], share: float) -> float | None:
    if not ordered_us:
        return None
    return round(ordered_us[max(0, math.ceil(share * len(ordered_us)) - 1)] / 1_000, 1)


def _sum(steps: Iterable[Mapping[str, Figure | str]], name: str) -> Figure:
    known = [value for step in steps if isinstance(value := step[name], int | float)]
    return round(sum(known), 1) if known else None
