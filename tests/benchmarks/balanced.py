"""Quality and cost of `balanced`: `python -m tests.benchmarks.balanced [gap] [skew] [speed]`, by default all three.

gap     distance from the true optimum of small random groups, found by brute force
skew    highest load and moves under unequal loads, against sticky, a greedy by lag and Kafka's uniform
speed   CPU time to assign a group and to let one member join a settled one; it runs on one core
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.benchmarks.assign.kafka import KafkaAssignors
from tests.unit.assignment.balanced_oracle import Judge, optimum, small_group
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.balanced.plan import Plan, plan_balanced
from zkrebalancer.assignment.columns import to_columns
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.protocol.fields import TopicPartition

GROUPS, QUICK_GROUPS = 5_000, 20  # for `gap`
MEMBERS, TOPICS = 20, 10  # for `skew`
PARTITIONS, QUICK_PARTITIONS = 100, 10  # for `skew`, of each topic
RUNS, QUICK_RUNS = 15, 2  # for `speed`
SIZES = ((1_000, 10_000), (1_000, 50_000), (10_000, 500_000))  # for `speed`: members, partitions
QUICK_SIZES = ((10, 100),)
KAFKA_DEADLINE_S = 60.0
Owners = dict[TopicPartition, str]
Decide = Callable[[Problem], Owners]


def print_gaps(groups: int) -> None:
    """Print the distribution of the distance from the optimum."""
    gaps, peaks, bounds, elapsed_s = [], [], [], 0.0
    for seed in range(groups):
        small = small_group(seed)
        columns = to_columns(small.problem)
        began_s = time.perf_counter()
        plan = plan_balanced(columns, small.options)
        elapsed_s += time.perf_counter() - began_s
        best = optimum(Judge(small), plan.target.astype(np.int64))
        if best.cost > 0:
            gaps.append(plan.cost.total / best.cost - 1)
            bounds.append(1 - plan.bound.total / best.cost)
            peaks.append(plan.cost.peak / best.peak - 1 if best.peak else 0.0)
    print(f"{groups} random groups, {elapsed_s / groups * 1_000:.1f} ms each")
    for what, values in (("cost", gaps), ("highest load", peaks), ("optimum above the lower bound", bounds)):
        found = np.maximum(np.array(values), 0.0)
        percentiles = ", ".join(f"{p} %: {np.percentile(found, p):.2%}" for p in (50, 90, 95, 99, 100))
        print(f"  {what}: zero {np.mean(found < 1e-9):.2%}, mean {found.mean():.3%}, {percentiles}")


@dataclass(frozen=True, slots=True)
class Skew:
    """Unequal loads: the lag of every partition, its lag later, and the capacity of every member."""

    name: str
    lag: list[int]
    later: list[int]
    capacities: list[float]

    def problem(self, members: int, owners: Mapping[TopicPartition, str], lag: list[int]) -> Problem:
        """Return the group of the first `members` members, which own what `owners` says."""
        names = [f"t{number}" for number in range(TOPICS)]
        owned: dict[str, dict[TopicPartition, int]] = {}
        for (topic, partition), consumer in owners.items():
            owned.setdefault(consumer, {})[topic, partition] = 0
        reads = dict.fromkeys(names, 1)
        group = {
            f"c{n:02}": Member(reads, owned.get(f"c{n:02}", {}), capacity=self.capacities[n]) for n in range(members)
        }
        size = len(lag) // TOPICS
        lags = {name: lag[number * size : (number + 1) * size] for number, name in enumerate(names)}
        return Problem(dict.fromkeys(names, size), group, lags)


def skews(partitions: int) -> list[Skew]:
    """Return the loads to compare, for this many partitions of each topic."""
    chance = random.Random(1)
    count = TOPICS * partitions
    alike = [1.0] * (MEMBERS + 1)
    zipf = [int(1e6 / rank**0.8) for rank in range(1, count + 1)]
    one_hot = [5_000] + [100] * (count - 1)
    return [
        Skew("Zipf", chance.sample(zipf, count), chance.sample(zipf, count), alike),
        Skew("one hot partition", chance.sample(one_hot, count), chance.sample(one_hot, count), alike),
        Skew("capacities 1, 2, 4", [100] * count, [100] * count, [(1.0, 2.0, 4.0)[n % 3] for n in range(MEMBERS + 1)]),
    ]


def greedy_by_lag(problem: Problem) -> Owners:
    """Give each partition, by falling lag, to the member with the least lag so far; owners are ignored."""
    lag_of = {(topic, number): lag for topic, lags in problem.lag.items() for number, lag in enumerate(lags)}
    carried = dict.fromkeys(sorted(problem.members), 0)
    owners = {}
    for partition in sorted(lag_of, key=lambda partition: (-lag_of[partition], partition)):
        owners[partition] = min(carried, key=lambda consumer: carried[consumer])
        carried[owners[partition]] += lag_of[partition]
    return owners


def ours(name: str) -> Decide:
    """Return one of this project's strategies."""

    def answer(problem: Problem) -> Owners:
        return {
            (topic, partition): consumer
            for consumer, threads in decide(name, problem).items()
            for topics in threads.values()
            for topic, partitions in topics.items()
            for partition in partitions
        }

    return answer


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def kafkas(assignors: KafkaAssignors, name: str) -> Decide:
    """Return one of Kafka's assignors."""

    def answer(problem: Problem) -> Owners:
        members: dict[str, dict[str, Any]] = {
            consumer: {
                "subscription": 0,
                "owned": _by_topic(member.owned),
                "generation": 1,
                "instance_id": None,
            }
            for consumer, member in problem.members.items()
        }
        request = {"assignor": name, "topics": problem.topics, "subscriptions": [list(problem.topics)]}
        reply = assignors.ask(request | {"members": members, "repetitions": 0}, KAFKA_DEADLINE_S)
        if reply is None:
            raise TimeoutError(f"{name} gave no answer in {KAFKA_DEADLINE_S} s")
        return {
            (topic, partition): consumer
            for consumer, topics in reply["assignment"].items()
            for topic, partitions in topics.items()
            for partition in partitions
        }

    return answer


def highest_to_mean(problem: Problem, owners: Owners) -> float:
    """Return the highest load per capacity of a member, over the mean."""
    carried = dict.fromkeys(problem.members, 0)
    for (topic, partition), consumer in owners.items():
        carried[consumer] += problem.lag[topic][partition]
    capacity = {consumer: member.capacity for consumer, member in problem.members.items()}
    mean = sum(carried.values()) / sum(capacity.values())
    return max(carried[consumer] / capacity[consumer] for consumer in carried) / mean


def print_skews(partitions: int) -> None:
    """Print highest load and moves of every strategy: for a new group, after a join, and after lags change."""
    print("| load | strategy | new group | one joins | moved | lags change | moved |\n|---|---|---|---|---|---|---|")
    with KafkaAssignors() as assignors:
        strategies = {
            "balanced": ours("balanced"),
            "sticky": ours("sticky"),
            "greedy by lag": greedy_by_lag,
            "Kafka's uniform": kafkas(assignors, "uniform"),
        }
        for skew in skews(partitions):
            for name, decide in strategies.items():
                print(f"| {skew.name} | {name} | {' | '.join(_skew_figures(skew, decide))} |")


def _skew_figures(skew: Skew, decide: Decide) -> list[str]:
    new = skew.problem(MEMBERS, {}, skew.lag)
    settled = decide(new)
    figures = [f"{highest_to_mean(new, settled):.3f}"]
    for problem in (skew.problem(MEMBERS + 1, settled, skew.lag), skew.problem(MEMBERS, settled, skew.later)):
        after = decide(problem)
        moved = sum(after[partition] != consumer for partition, consumer in settled.items())
        figures += [f"{highest_to_mean(problem, after):.3f}", str(moved)]
    return figures


def print_speeds(sizes: Iterable[tuple[int, int]], runs: int) -> None:
    """Print the CPU milliseconds of a new group and of one member that joins it."""
    print("| members | partitions | lag | new group, best | median | one joins, best | median | moved |")
    print("|---|---|---|---|---|---|---|---|")
    for members, partitions in sizes:
        chance = np.random.default_rng(1)
        lags = {"equal": np.ones(partitions, np.int64), "uniform": chance.integers(0, 1_000, partitions)}
        lags["Zipf"] = (1e6 / (chance.permutation(partitions) + 1) ** 0.8).astype(np.int64)
        for name, lag in lags.items():
            figures = " | ".join(_speed_figures(members, partitions, lag, runs))
            print(f"| {members:,} | {partitions:,} | {name} | {figures} |")


def _speed_figures(members: int, partitions: int, lag: np.ndarray[Any, np.dtype[np.int64]], runs: int) -> list[str]:
    topics = {f"t{number:03}": partitions // 100 for number in range(100)}
    reads = dict.fromkeys(topics, 1)
    names = [f"c{number:05}" for number in range(members + 1)]
    first = replace(to_columns(Problem(topics, {name: Member(reads, {}) for name in names[:-1]})), lag=lag)
    new, new_ms = _timed(lambda: plan_balanced(first, BalancedOptions()), runs)
    grown = to_columns(Problem(topics, {name: Member(reads, {}) for name in names}))
    grown = replace(grown, lag=lag, owner=new.target, holder=new.target)
    joined, joined_ms = _timed(lambda: plan_balanced(grown, BalancedOptions()), runs)
    times = [f"{value:.1f}" for ms in (new_ms, joined_ms) for value in (min(ms), statistics.median(ms))]
    return [*times, str(np.count_nonzero(joined.case.is_moved(joined.target)))]


def _timed(decide: Callable[[], Plan], runs: int) -> tuple[Plan, list[float]]:
    times_ms = []
    for _ in range(runs):
        began_s = time.process_time()
        plan = decide()
        times_ms.append((time.process_time() - began_s) * 1_000)
    return plan, times_ms


def main() -> None:
    """Run the parts named on the command line."""
    parts: dict[str, Callable[[bool], None]] = {
        "gap": lambda is_quick: print_gaps(QUICK_GROUPS if is_quick else GROUPS),
        "skew": lambda is_quick: print_skews(QUICK_PARTITIONS if is_quick else PARTITIONS),
        "speed": lambda is_quick: print_speeds(*(QUICK_SIZES, QUICK_RUNS) if is_quick else (SIZES, RUNS)),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="gap|skew|speed")
    parser.add_argument("--quick", action="store_true", help="few and small groups, as a test")
    arguments = parser.parse_args()
    for name in arguments.parts or parts:
        parts[name](arguments.quick)


if __name__ == "__main__":
    main()
