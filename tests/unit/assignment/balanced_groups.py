"""Random groups in which a part of the search of `balanced` matters: small, crowded and large ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.unit.assignment.balanced_oracle import small_group
from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.balanced.plan import Plan, plan_balanced
from zkrebalancer.assignment.columns import to_columns
from zkrebalancer.assignment.model import Member, Problem, to_racks
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class _Shape:
    members: tuple[int, int]
    partitions: tuple[int, int]  # of each topic


CROWDED = _Shape((17, 24), (6, 22))  # more members than one step examines
LARGE = _Shape((20, 30), (240, 330))  # more partitions than are tried from each start


def _group(seed: int, shape: _Shape) -> tuple[Problem, BalancedOptions]:
    chance = random.Random(seed)
    names = [f"c{number:02}" for number in range(chance.randint(*shape.members))]
    topics = {f"t{number}": chance.randint(*shape.partitions) for number in range(chance.randint(2, 5))}
    are_alike, have_racks = chance.random() < 0.4, chance.random() < 0.5
    capacities = chance.choice(((1.0,), (1.0, 2.0), (0.5, 1.0, 1.0, 4.0), (1.0, 1.0, 1.0, 0.0)))
    reading = {
        name: list(topics) if are_alike else [topic for topic in topics if chance.random() < 0.7] for name in names
    }
    owned: dict[str, dict[TopicPartition, int]] = {name: {} for name in names}
    joined = set(chance.sample(names, chance.randint(0, len(names) // 3)))
    if chance.random() < 0.8:
        for topic, count in topics.items():
            holders = [name for name in names if name not in joined and topic in reading[name]]
            for number in range(count):
                if holders and chance.random() < 0.9:
                    owned[chance.choice(holders)][topic, number] = 0
    members = {
        name: Member(
            dict.fromkeys(reading[name], 1),
            owned[name],
            rack=chance.choice(("r1", "r2", "r3", None)) if have_racks else None,
            capacity=chance.choice(capacities),
        )
        for name in names
    }
    skew = chance.choice((0.8, 1.5, 9.0))
    lag = {topic: [int(100 * chance.paretovariate(skew)) for _ in range(count)] for topic, count in topics.items()}
    racks = {topic: [chance.sample(("r1", "r2", "r3"), 2) for _ in range(count)] for topic, count in topics.items()}
    total = sum(topics.values())
    limit = chance.choice(("none", "none", "moves", "partitions", "both"))
    options = BalancedOptions(
        max_moves_per_rebalance=chance.randint(0, total // 4) if limit in {"moves", "both"} else None,
        max_partitions_per_member=total // len(names) + chance.randint(0, 4)
        if limit in {"partitions", "both"}
        else None,
        pinned={topic: frozenset(range(0, count, 7)) for topic, count in topics.items()}
        if chance.random() < 0.2
        else {},
    )
    return Problem(topics, members, lag, racks=to_racks(racks if have_racks else {})), options


def _small(seed: int) -> tuple[Problem, BalancedOptions]:
    small = small_group(seed)
    return small.problem, small.options


GROUPS: Mapping[str, Callable[[int], tuple[Problem, BalancedOptions]]] = {
    "small": _small,
    "crowded": lambda seed: _group(seed, CROWDED),
    "large": lambda seed: _group(seed, LARGE),
}


def plan_of(kind: str, seed: int) -> Plan:
    """Return the plan of a group of `GROUPS`."""
    problem, options = GROUPS[kind](seed)
    return plan_balanced(to_columns(problem), options)
