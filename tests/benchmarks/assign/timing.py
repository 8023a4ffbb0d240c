"""One strategy or assignor on one group: its time, the balance of its result, and the partitions it keeps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tests.benchmarks.assign.kafka import KafkaAssignors
from tests.benchmarks.assign.points import Point, settled
from zkrebalancer.assignment.columns import Columns, Rows, to_columns
from zkrebalancer.assignment.cooperative_sticky import withheld
from zkrebalancer.assignment.range import cut_ranges
from zkrebalancer.assignment.round_robin import deal
from zkrebalancer.assignment.sticky import sticky

REPETITIONS = 15
WARM_UP_MS = 1_000
BUDGET_MS = 2_500  # no repetition starts after this time
DEADLINE_S = 20.0  # for one request to Kafka's assignors: settle, warm up and measure
OURS: Mapping[str, Callable[[Columns], Rows]] = {
    "sticky": sticky,
    "range": lambda columns: cut_ranges(columns)[0],
    "round_robin": lambda columns: deal(columns)[0],
    "cooperative_sticky": lambda columns: withheld(columns, sticky(columns)),
}
KAFKAS = ("uniform", "server range", "client cooperative-sticky", "client range")


@dataclass(frozen=True, slots=True)
class Result:
    """Wall time, best and median, and the least CPU time of the deciding thread.

    CPU time excludes garbage collection and compilation, but other load on the machine does not add to it. `squares`:
    sum of squared member sizes. `kept`: partitions that stay with their owner.
    """

    best_ms: float
    median_ms: float
    processor_ms: float
    squares: int
    kept: int


def columns_of(point: Point, strategy: Callable[[Columns], Rows]) -> Columns:
    """Return the strategy's input; a group with a joiner has settled by the same strategy."""
    columns = to_columns(point.problem())
    if not point.joins:
        return columns
    before = strategy(to_columns(replace(point, joins=False).problem()))
    # The joiner's name sorts after all others, so every member keeps its row.
    return settled(columns, before)


def measure_ours(point: Point, strategy: Callable[[Columns], Rows]) -> Result:
    columns = columns_of(point, strategy)
    strategy(columns)
    times_ms, processor_ms = [], []
    for _ in range(REPETITIONS):
        processor_started, started = time.thread_time_ns(), time.perf_counter_ns()
        target = strategy(columns)
        times_ms.append((time.perf_counter_ns() - started) / 1e6)
        processor_ms.append((time.thread_time_ns() - processor_started) / 1e6)
    sizes = np.bincount(target[target >= 0])
    kept = int(np.count_nonzero((target == columns.holder) & (target >= 0)))
    return Result(min(times_ms), statistics.median(times_ms), min(processor_ms), int(sizes @ sizes), kept)


@dataclass(slots=True)
class KafkasTimes:
    """Times Kafka's assignors; skips groups at least as large as one that exceeded the deadline."""

    kafka: KafkaAssignors
    warm_up_ms: int = WARM_UP_MS
    too_slow: list[tuple[str, Point]] = field(default_factory=list)

    def measure(self, point: Point, assignor: str) -> Result | None:
        """Return the result, None if it exceeded the deadline."""
        if any(assignor == slow and _is_larger(point, smaller) for slow, smaller in self.too_slow):
            return None
        limits = {"repetitions": REPETITIONS, "warm_up_ms": self.warm_up_ms, "budget_ms": BUDGET_MS}
        reply = self.kafka.ask(point.request() | limits | {"assignor": assignor}, DEADLINE_S)
        if reply is None:
            self.too_slow.append((assignor, point))
            return None
        times_ms, processor_ms = reply["times_ms"], reply["processor_ms"]
        return Result(min(times_ms), statistics.median(times_ms), min(processor_ms), reply["squares"], reply["kept"])


def _is_larger(point: Point, smaller: Point) -> bool:
    return (
        (point.subscribe, point.joins) == (smaller.subscribe, smaller.joins)
        and point.members >= smaller.members
        and point.partitions >= smaller.partitions
        and point.topic_count >= smaller.topic_count
    )
