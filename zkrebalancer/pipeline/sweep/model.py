"""What a change of a group costs, in a model: real strategies decide, and three protocols are charged for it.

A group of one topic settles, and then changes CHANGES times: new members join, as many others leave, others join, and
so on. The strategy is the project's own; what a protocol costs follows from what moves, by these rules alone:

- *eager* (client-side, one round): a member learns of the change at its next heartbeat, uniformly within HEARTBEAT_MS,
  and lets go of everything; when the last one has, one round trip starts everything anew.
- *cooperative* (client-side, two rounds): in the first round nobody lets go; at its end the partitions of those who
  left start, and those that move stop. Whoever gave up something begins the second round at once, the others at their
  next heartbeat; at its end what moves starts. No move, no second round.
- *incremental* (central): DEBOUNCE_MS after the change the coordinator stops what moves and starts what is free. A
  holder answers its stop within ANSWER_MS, uniformly; each command takes a round trip, and a move takes two.

Members that leave say so. All protocols and strategies see the same changes and the same heartbeats, drawn from the
seed and the shape of the group. It says how costs grow and who pays them; it is no measurement: `zkrebalancer
experiment` measures.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.transition import place
from zkrebalancer.pipeline.sweep.grid import Cell
from zkrebalancer.protocol.fields import TopicPartition

CHANGES = 6
HEARTBEAT_MS = 3_000.0  # Kafka's default
ROUND_TRIP_MS = 5.0
DEBOUNCE_MS = 50.0  # this project's default
ANSWER_MS = 10.0
RATE = 100.0  # records per second of an average partition
TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over the changes of a cell.

    `settled_ms`: from the change until everything is read again. `unowned_partition_s`: summed over the partitions,
    how long each had no consumer. `waiting_records`: what came in for them meanwhile. `moved`: partitions that left a
    member that stays. `stopped_needlessly`: partitions that stopped and have the same consumer afterwards. `peak`:
    highest load of a member over the least that could be: the mean, or that of the hottest partition.
    """

    settled_ms: float
    unowned_partition_s: float
    waiting_records: float
    moved: float
    stopped_needlessly: float
    peak: float


@dataclass(frozen=True, slots=True)
class Change:
    """Who had each partition before and has it afterwards, and what chance decides.

    `heartbeats_ms`: of every member that stays, how long it takes to learn of the first and of the second round.
    `answers_ms`: how long it takes to answer a stop.
    """

    before: Sequence[str]
    after: Sequence[str]
    gone: Collection[str]
    heartbeats_ms: Mapping[str, tuple[float, float]]
    answers_ms: Mapping[str, float]

    def is_orphan(self, partition: int) -> bool:
        """Whether its consumer has left."""
        return self.before[partition] in self.gone

    def moves(self, partition: int) -> bool:
        """Whether it leaves a consumer that stays."""
        return not self.is_orphan(partition) and self.before[partition] != self.after[partition]


# From a change to when all is settled, and how long each partition had no consumer; milliseconds.
Protocol = Callable[[Change], tuple[float, list[float]]]


def eager(change: Change) -> tuple[float, list[float]]:
    """Charge one round in which everybody stops."""
    end_ms = max((first for first, _second in change.heartbeats_ms.values()), default=0.0) + ROUND_TRIP_MS
    stopped_ms = {member: first for member, (first, _second) in change.heartbeats_ms.items()}
    return end_ms, [end_ms - stopped_ms.get(holder, 0.0) for holder in change.before]


def cooperative(change: Change) -> tuple[float, list[float]]:
    """Charge one round for what is free, and a second one for what moves."""
    first_ms = max((first for first, _second in change.heartbeats_ms.values()), default=0.0) + ROUND_TRIP_MS
    moving = [partition for partition in range(len(change.before)) if change.moves(partition)]
    if not moving:
        return first_ms, [first_ms * change.is_orphan(partition) for partition in range(len(change.before))]
    at_once = {change.before[partition] for partition in moving}
    waits_ms = [second for member, (_first, second) in change.heartbeats_ms.items() if member not in at_once]
    second_ms = max(waits_ms, default=0.0) + ROUND_TRIP_MS
    pauses_ms = [first_ms * change.is_orphan(partition) for partition in range(len(change.before))]
    for partition in moving:
        pauses_ms[partition] = second_ms
    return first_ms + second_ms, pauses_ms


def incremental(change: Change) -> tuple[float, list[float]]:
    """Charge those that change, and nobody else."""
    settled_ms, pauses_ms = 0.0, [0.0] * len(change.before)
    for partition, holder in enumerate(change.before):
        if change.is_orphan(partition):
            pauses_ms[partition] = DEBOUNCE_MS + ROUND_TRIP_MS
            settled_ms = max(settled_ms, pauses_ms[partition])
        elif change.moves(partition):
            pauses_ms[partition] = change.answers_ms[holder] + ROUND_TRIP_MS
            settled_ms = max(settled_ms, DEBOUNCE_MS + pauses_ms[partition] + ROUND_TRIP_MS)
    return settled_ms, pauses_ms


PROTOCOLS: Mapping[str, Protocol] = {"eager": eager, "cooperative": cooperative, "incremental": incremental}


def simulate(cell: Cell, seed: int) -> dict[str, Cost]:
    """Return what the changes of one cell cost by each protocol; the same cell and seed give the same, anywhere."""
    shape = f"{cell.members}/{cell.partitions}/{cell.skew!r}/{cell.churn!r}/{cell.repeat}"
    chance = random.Random(f"{seed}/{shape}")  # noqa: S311  # and not of the strategy: all of them see the same changes
    rates = _rates(cell, chance)
    members = [f"member-{index:05}" for index in range(cell.members)]
    owners = _placed(cell.strategy, members, [], rates)
    costs: dict[str, list[Cost]] = {protocol: [] for protocol in PROTOCOLS}
    for number in range(CHANGES):
        count = max(1, round(cell.churn * cell.members))
        joining = [f"member-{number:02}-{index:05}" for index in range(count)] if number % 2 == 0 else []
        gone = set() if joining else set(chance.sample(members, count))
        staying = [member for member in members if member not in gone]
        heartbeats = {member: (_wait(chance, HEARTBEAT_MS), _wait(chance, HEARTBEAT_MS)) for member in staying}
        answers = {member: _wait(chance, ANSWER_MS) for member in staying}
        members = staying + joining
        after = _placed(cell.strategy, members, owners, rates)
        change = Change(owners, after, gone, heartbeats, answers)
        for protocol, of_protocol in costs.items():
            of_protocol.append(_cost(change, PROTOCOLS[protocol], rates, len(members)))
        owners = after
    return {protocol: _mean(of_protocol) for protocol, of_protocol in costs.items()}


def _wait(chance: random.Random, most_ms: float) -> float:
    return chance.uniform(0.0, most_ms)


def _rates(cell: Cell, chance: random.Random) -> list[float]:
    """Return records per second of each partition, RATE on average, in an order that chance decides."""
    weights = [(rank + 1) ** -cell.skew for rank in range(cell.partitions)]
    chance.shuffle(weights)
    scale = RATE * cell.partitions / sum(weights)
    return [weight * scale for weight in weights]


def _placed(strategy: str, members: Sequence[str], owners: Sequence[str], rates: Sequence[float]) -> list[str]:
    """Return the member that gets each partition."""
    owned: dict[str, dict[TopicPartition, int]] = {member: {} for member in members}
    for partition, holder in enumerate(owners):
        if holder in owned:
            owned[holder][TOPIC, partition] = 0
    problem = Problem(
        topics={TOPIC: len(rates)},
        members={member: Member({TOPIC: 1}, claims) for member, claims in owned.items()},
        rate={TOPIC: rates},
    )
    transition = place(STRATEGIES[strategy], problem)
    consumers = transition.columns.consumers
    return [consumers[index] for index in transition.member.tolist()]


def _cost(change: Change, protocol: Protocol, rates: Sequence[float], member_count: int) -> Cost:
    settled_ms, pauses_ms = protocol(change)
    loads: dict[str, float] = defaultdict(float)
    for holder, rate in zip(change.after, rates, strict=True):
        loads[holder] += rate
    pairs = list(zip(change.before, change.after, pauses_ms, strict=True))
    return Cost(
        settled_ms=settled_ms,
        unowned_partition_s=sum(pauses_ms) / 1_000,
        waiting_records=sum(pause * rate for pause, rate in zip(pauses_ms, rates, strict=True)) / 1_000,
        moved=sum(map(change.moves, range(len(change.before)))),
        stopped_needlessly=sum(pause > 0 and before == after for before, after, pause in pairs),
        peak=max(loads.values()) / max(sum(rates) / member_count, *rates),
    )


def _mean(costs: Sequence[Cost]) -> Cost:
    sums = [sum(asdict(cost)[field.name] for cost in costs) / len(costs) for field in fields(Cost)]
    return Cost(*sums)
