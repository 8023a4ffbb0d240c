"""Small random groups and their true optimum, found by trying every assignment.

Implements the formulas of the documentation; shares only the options with the code under test.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.model import Member, Problem, to_racks
from zkrebalancer.protocol.fields import TopicPartition

NOBODY = -1
MAX_ASSIGNMENTS = 20_000  # of one group; with more members, groups have fewer partitions


@dataclass(frozen=True, slots=True)
class Small:
    """A group that is small enough to try every assignment, and the options."""

    problem: Problem
    options: BalancedOptions


def small_group(seed: int) -> Small:
    """Draw a group of at most five members; most groups own partitions from a random earlier assignment."""
    chance = random.Random(seed)
    member_count = chance.randint(2, 5)
    partition_count = int(np.log(MAX_ASSIGNMENTS) / np.log(member_count + 1))
    names = [f"t{number}" for number in range(chance.randint(1, 3))]
    counts = Counter(chance.choice(names) for _ in range(chance.randint(1, partition_count)))
    topics = {name: counts[name] for name in names}
    everything = dict.fromkeys(names, 1)
    are_alike, have_racks = chance.random() < 0.6, chance.random() < 0.4
    capacities = chance.choice(((1.0,), (1.0, 2.0, 4.0), (1.0, 1.0, 0.0), (0.3, 1.7, 0.9)))
    subscriptions = [
        everything if are_alike else {name: 1 for name in names if chance.random() < 0.7} for _ in range(member_count)
    ]
    owned: list[dict[TopicPartition, int]] = [{} for _ in range(member_count)]
    if chance.random() < 0.7:
        for name in names:
            for partition in range(topics[name]):
                holder = chance.choice([*range(member_count), member_count])
                if holder < member_count and name in subscriptions[holder]:
                    owned[holder][name, partition] = 0
    members = {
        f"c{number}": Member(
            subscriptions[number],
            owned[number],
            rack=chance.choice(("r1", "r2", None)) if have_racks else None,
            capacity=chance.choice(capacities),
        )
        for number in range(member_count)
    }
    kind_of_lag = chance.choice(("equal", "uniform", "zipf", "some idle"))
    lag = {name: [_lag(kind_of_lag, chance) for _ in range(topics[name])] for name in names}
    racks = {name: [chance.sample(("r1", "r2", "r3"), 2) for _ in range(topics[name])] for name in names}
    return Small(Problem(topics, members, lag, racks=to_racks(racks if have_racks else {})), _options(chance, topics))


def _lag(kind: str, chance: random.Random) -> int:
    if kind == "zipf":
        return int(100 * chance.paretovariate(0.8))
    if kind == "equal" or (kind == "some idle" and chance.random() < 0.6):
        return 100 * (kind == "equal")
    return chance.randrange(1_000)


def _options(chance: random.Random, topics: dict[str, int]) -> BalancedOptions:
    limit = chance.choice(("none", "none", "moves", "partitions", "pinned"))
    pinned = {name: frozenset(range(0, count, 2)) for name, count in topics.items()}
    return BalancedOptions(
        max_moves_per_rebalance=chance.randint(0, 3) if limit == "moves" else None,
        max_partitions_per_member=chance.randint(1, 3) if limit == "partitions" else None,
        pinned=pinned if limit == "pinned" else {},
    )


@dataclass(frozen=True, slots=True)
class Optimum:
    """The minimum of (unassigned partitions, partitions left on drained members, cost), in this order of priority.

    The objective does not weigh which partitions are unassigned or left on drained members, so the cost is the minimum
    over assignments that agree with the plan in this respect.
    """

    unassigned: int
    stranded: int
    cost: float
    peak: float


def optimum(judge: Judge, target: npt.NDArray[np.int64]) -> Optimum:
    """Try every assignment; `target` is the plan to compare with."""
    choices = [judge.choices(row) for row in range(len(judge.rows))]
    targets = np.array(list(itertools.product(*choices)), np.int64).reshape(-1, len(choices))
    return judge.best(targets, target)


class Judge:
    """Judges assignments [N, P] of one small group; rows are (topic, partition), sorted; members sorted by name."""

    def __init__(self, small: Small) -> None:
        self.options, problem = small.options, small.problem
        self.problem = problem
        self.members = [problem.members[name] for name in sorted(problem.members)]
        self.rows = [(name, number) for name in sorted(problem.topics) for number in range(problem.topics[name])]
        self.capacity = np.array([member.capacity for member in self.members])
        self.active = self.capacity > 0
        self.owner = [self._owner(*row) for row in self.rows]
        self.readers = [
            [m for m, member in enumerate(self.members) if topic in member.threads and self.active[m]]
            for topic, _ in self.rows
        ]
        load = np.array([problem.lag[topic][number] for topic, number in self.rows], np.float64)
        load = np.ones(len(load)) if not load.any() else np.maximum(load, self.options.load_floor * load.mean())
        load *= [bool(readers) for readers in self.readers]
        active_count = self.active.sum()
        self.load = load * active_count / load.sum() if load.any() else load
        self.strength = self.capacity * active_count / self.capacity.sum() if active_count else self.capacity
        self.average = active_count / np.count_nonzero(load) if load.any() else 0.0

    def _owner(self, topic: str, number: int) -> int:
        holders = [m for m, member in enumerate(self.members) if (topic, number) in member.owned]
        return holders[0] if holders else NOBODY

    def is_pinned(self, row: int) -> bool:
        topic, number = self.rows[row]
        return number in self.options.pinned.get(topic, ()) and self.owner[row] != NOBODY

    def choices(self, row: int) -> list[int]:
        """Return the members that may have the row."""
        if self.is_pinned(row) or not self.readers[row]:
            return [self.owner[row]]
        allowed = list(self.readers[row])
        if self.owner[row] != NOBODY and self.owner[row] not in allowed:
            allowed.append(self.owner[row])
        if self.options.max_partitions_per_member is not None:
            allowed.append(NOBODY)
        return allowed

    def best(self, targets: npt.NDArray[np.int64], like: npt.NDArray[np.int64]) -> Optimum:
        """Return the best of these assignments."""
        owner = np.array(self.owner, np.int64)
        member_count = len(self.members)
        given = targets >= 0
        counts = np.stack([(targets == m).sum(axis=1) for m in range(member_count)], axis=1)
        moved = given & (owner >= 0) & (targets != owner)
        allowed = np.ones(len(targets), bool)
        if self.options.max_moves_per_rebalance is not None:
            allowed &= moved.sum(axis=1) <= self.options.max_moves_per_rebalance
        if self.options.max_partitions_per_member is not None:
            is_free = np.array([not self.is_pinned(r) and bool(self.readers[r]) for r in range(len(self.rows))])
            fixed = np.array([((owner == m) & ~is_free).sum() for m in range(member_count)])
            room = np.maximum(self.options.max_partitions_per_member, fixed)
            allowed &= (counts <= room).all(axis=1)
        targets, given, moved = targets[allowed], given[allowed], moved[allowed]
        unassigned = (~given).sum(axis=1)
        drained = np.append(~self.active, False)
        stranded = drained[targets].sum(axis=1)
        costs, peaks = self.costs(targets, moved)
        same_rows = (drained[targets] == drained[like]).all(axis=1) & (given == (like >= 0)).all(axis=1)
        best = np.lexsort((costs, ~same_rows, stranded, unassigned))[0]
        return Optimum(int(unassigned[best]), int(stranded[best]), float(costs[best]), float(peaks[best]))

    def costs(
        self, targets: npt.NDArray[np.int64], moved: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return cost and peak of each assignment."""
        options = self.options
        peak, uneven = np.zeros(len(targets)), np.zeros(len(targets))
        for m in np.flatnonzero(self.active):
            utilisation = (self.load * (targets == m)).sum(axis=1) / self.strength[m]
            peak = np.maximum(peak, utilisation)
            uneven += self.strength[m] * (utilisation - 1) ** 2
        prices = options.move_cost * self.load + options.min_gain * self.average
        cost = options.peak_cost * peak + options.uneven_cost * uneven + (moved * prices).sum(axis=1)
        cost += options.rack_cost * (self.load * self._across(targets)).sum(axis=1)
        return cost + options.spread_cost * self.average * self._crowded(targets), peak

    def _across(self, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        across = np.zeros((len(self.rows), len(self.members) + 1), bool)
        for row, (topic, number) in enumerate(self.rows):
            for m, member in enumerate(self.members):
                known = self.problem.racks.of_topic.get(topic)
                names = self.problem.racks.sets[known[number]] if known is not None else ()
                across[row, m] = bool(names) and member.rack is not None and member.rack not in names
        return across[np.arange(len(self.rows)), targets]

    def _crowded(self, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        crowded = np.zeros(len(targets))
        for topic, count in self.problem.topics.items():
            of_topic = [row for row, (name, _) in enumerate(self.rows) if name == topic]
            if of_topic and self.readers[of_topic[0]]:
                share = -(-count // len(self.readers[of_topic[0]]))
                for m in range(len(self.members)):
                    crowded += np.maximum((targets[:, of_topic] == m).sum(axis=1) - share, 0)
        return crowded
