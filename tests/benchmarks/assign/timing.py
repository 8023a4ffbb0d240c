"""One strategy or assignor on one point: how long it takes, how even its result is, how much stays."""

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
BUDGET_MS = 2_500  # after that no further repetition is begun
DEADLINE_S = 20.0  # of one request to Kafka's assignors: settling, warming up and measuring
OURS: Mapping[str, Callable[[Columns], Rows]] = {
    "sticky": sticky,
    "range": lambda columns: cut_ranges(columns)[0],
    "round_robin": lambda columns: deal(columns)[0],
    "cooperative_sticky": lambda columns: withheld(columns, sticky(columns)),
}
KAFKAS = ("uniform", "server range", "client cooperative-sticky", "client range")


@dataclass(frozen=True, slots=True)
class Result:
    """What passes on the clock, best and median, and the least processor time of the deciding thread.

    The latter leaves out collecting garbage and compiling, but does not grow with what else runs on the machine.
    `squares`: sum of squared member sizes. `kept`: partitions that stay with their owner.
    """

    best_ms: float
    median_ms: float
    processor_ms: float
    squares: int
    kept: int


def columns_of(point: Point, strategy: Callable[[Columns], Rows]) -> Columns:
    """Return what the strategy is asked; a group that has settled has done so by the same strategy."""
    columns = to_columns(point.problem())
    if not point.joins:
        return columns
    before = strategy(to_columns(replace(point, joins=False).problem()))
    # The joiner's name sorts behind all others, so everybody has the same row as before.
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
    """Asks Kafka's assignors, but not for a larger group of a kind for which one has already taken too long."""

    kafka: KafkaAssignors
    warm_up_ms: int = WARM_UP_MS
    too_slow: list[tuple[str, Point]] = field(default_factory=list)

    def measure(self, point: Point, assignor: str) -> Result | None:
        """Return None if it takes longer than the deadline."""
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
