"""A model of the cost of a group change: real strategies place partitions, four protocols are charged for the moves.

A group of one topic settles, then changes CHANGES times: members join, as many others leave, others join, and so on.
The strategies are the project's own code. The moves determine what a protocol costs, by these rules:

- *eager* (client-side, one round): at their next heartbeat, uniformly within HEARTBEAT_MS, all members learn of the
  change and revoke all their partitions; one round trip starts everything again. They send it at the same moment,
  because they got their last assignment at the same moment.
- *cooperative* (client-side, two rounds): nothing is revoked in the first round, which begins as the eager one; at its
  end, the partitions of members that left start, and partitions that move stop. Members that gave up partitions begin
  the second round at once, the others at their next heartbeat, an interval later; at its end, moved partitions start.
  Without moves there is no second round.
- *kip848* (the broker assigns): a member learns at its next heartbeat, uniformly within CONSUMER_HEARTBEAT_MS, what it
  has to give up, does so within ANSWER_MS, and says so at once. A free partition starts with the answer to the next
  heartbeat of the member that gets it. To join is a heartbeat, too.
- *incremental* (central): the coordinator stops what moves and starts what is free, at once if one member joined or
  left, as after any quiet time, and DEBOUNCE_MS later if several did. An owner answers its stop within ANSWER_MS,
  uniformly; each command takes one round trip, and a move takes two.

Members announce that they leave. All protocols and strategies see the same changes and heartbeats, drawn from the seed
and the shape of the group. The model shows how costs grow and who pays them; `zkrebalancer experiment` measures them.
It knows waits and round trips, not work, which is most of the time of *incremental* and *eager*: so it is too
favourable to these two. By measurement, KIP-848 with heartbeats of 50 ms leaves partitions without an owner for a
shorter time than *incremental*.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import ceil

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.transition import place
from zkrebalancer.pipeline.sweep.grid import Cell
from zkrebalancer.protocol.fields import TopicPartition

CHANGES = 6
HEARTBEAT_MS = 3_000.0  # Kafka's default, of classic groups
CONSUMER_HEARTBEAT_MS = 5_000.0  # the same of KIP-848
ROUND_TRIP_MS = 5.0
DEBOUNCE_MS = 50.0  # this project's default
ANSWER_MS = 10.0
RATE = 100.0  # mean records per second of a partition
TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over the changes of a cell.

    `settled_ms`: from the change until every partition is read again. `unowned_partition_s`: time without an owner,
    summed over the partitions. `waiting_records`: records that arrived in that time. `moved`: partitions that left a
    member that stays. `stopped_needlessly`: partitions that stopped and returned to the same member. `peak`: highest
    load of a member over the lowest possible peak, which is the mean load or that of the hottest partition.
    """

    settled_ms: float
    unowned_partition_s: float
    waiting_records: float
    moved: float
    stopped_needlessly: float
    peak: float


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the owner of each partition before and after it, and the random delays.

    `heartbeats_ms`: of each member that stays, until its next heartbeat. `answers_ms`: until it has answered a stop.
    `debounce_ms`: how long a coordinator waits for further changes. `interval_ms`: the time between two heartbeats.
    """

    before: Sequence[str]
    after: Sequence[str]
    gone: Collection[str]
    heartbeats_ms: Mapping[str, float]
    answers_ms: Mapping[str, float]
    debounce_ms: float = DEBOUNCE_MS
    interval_ms: float = HEARTBEAT_MS

    def is_orphan(self, partition: int) -> bool:
        """Whether the partition's owner has left."""
        return self.before[partition] in self.gone

    def moves(self, partition: int) -> bool:
        """Whether the partition leaves a member that stays."""
        return not self.is_orphan(partition) and self.before[partition] != self.after[partition]

    @property
    def round_ms(self) -> float:
        """When the members of a classic group send their next heartbeat, all of them: any one of those drawn."""
        return next(iter(self.heartbeats_ms.values()), 0.0)

    def heartbeat_ms(self, member: str, from_ms: float) -> float:
        """Return when a member that is there after the change sends its first heartbeat at this time or later."""
        is_new = member not in self.heartbeats_ms
        if is_new and not from_ms:
            return 0.0
        first_ms = ROUND_TRIP_MS + self.interval_ms if is_new else self.heartbeats_ms[member]
        return first_ms + max(0, ceil((from_ms - first_ms) / self.interval_ms)) * self.interval_ms

    def with_interval(self, interval_ms: float) -> Change:
        """Return the same with other heartbeats, each at the same part of its interval."""
        part = interval_ms / self.interval_ms
        beats_ms = {member: beat_ms * part for member, beat_ms in self.heartbeats_ms.items()}
        return replace(self, heartbeats_ms=beats_ms, interval_ms=interval_ms)


# Returns the time from a change until all is settled, and how long each partition had no owner; milliseconds.
Protocol = Callable[[Change], tuple[float, list[float]]]


def eager(change: Change) -> tuple[float, list[float]]:
    """Charge one round in which every member stops."""
    end_ms = change.round_ms + ROUND_TRIP_MS
    return end_ms, [end_ms if holder in change.gone else ROUND_TRIP_MS for holder in change.before]


def cooperative(change: Change) -> tuple[float, list[float]]:
    """Charge one round for free partitions, and a second one for those that move."""
    first_ms = change.round_ms + ROUND_TRIP_MS
    moving = [partition for partition in range(len(change.before)) if change.moves(partition)]
    if not moving:
        return first_ms, [first_ms * change.is_orphan(partition) for partition in range(len(change.before))]
    at_once = {change.before[partition] for partition in moving}
    is_awaited = not {*change.after, *change.heartbeats_ms} <= at_once
    second_ms = change.interval_ms * is_awaited + ROUND_TRIP_MS
    pauses_ms = [first_ms * change.is_orphan(partition) for partition in range(len(change.before))]
    for partition in moving:
        pauses_ms[partition] = second_ms
    return first_ms + second_ms, pauses_ms


def kip848(change: Change) -> tuple[float, list[float]]:
    """Charge the partitions that change owners with the wait for a heartbeat of the member that gets them."""
    settled_ms, pauses_ms = 0.0, [0.0] * len(change.before)
    for partition, (holder, heir) in enumerate(zip(change.before, change.after, strict=True)):
        stopped_ms = free_ms = 0.0
        if change.moves(partition):
            stopped_ms = change.heartbeat_ms(holder, 0.0) + change.answers_ms[holder]
            free_ms = stopped_ms + ROUND_TRIP_MS
        elif not change.is_orphan(partition):
            continue
        started_ms = change.heartbeat_ms(heir, free_ms) + ROUND_TRIP_MS
        settled_ms, pauses_ms[partition] = max(settled_ms, started_ms), started_ms - stopped_ms
    return settled_ms, pauses_ms


def with_defaults(change: Change) -> tuple[float, list[float]]:
    """Charge the same with the heartbeats that are its default."""
    return kip848(change.with_interval(CONSUMER_HEARTBEAT_MS))


def incremental(change: Change) -> tuple[float, list[float]]:
    """Charge only the partitions that change owners."""
    settled_ms, pauses_ms = 0.0, [0.0] * len(change.before)
    for partition, holder in enumerate(change.before):
        if change.is_orphan(partition):
            pauses_ms[partition] = change.debounce_ms + ROUND_TRIP_MS
            settled_ms = max(settled_ms, pauses_ms[partition])
        elif change.moves(partition):
            pauses_ms[partition] = change.answers_ms[holder] + ROUND_TRIP_MS
            settled_ms = max(settled_ms, change.debounce_ms + pauses_ms[partition] + ROUND_TRIP_MS)
    return settled_ms, pauses_ms


PROTOCOLS: Mapping[str, Protocol] = {
    "eager": eager,
    "cooperative": cooperative,
    "kip848": with_defaults,
    "incremental": incremental,
}


def simulate(cell: Cell, seed: int) -> dict[str, Cost]:
    """Return what the changes of one cell cost under each protocol; deterministic for the same cell and seed."""
    shape = f"{cell.members}/{cell.partitions}/{cell.skew!r}/{cell.churn!r}/{cell.repeat}"
    chance = random.Random(f"{seed}/{shape}")  # noqa: S311  # without the strategy: all see the same changes
    rates = _rates(cell, chance)
    members = [f"member-{index:05}" for index in range(cell.members)]
    owners = placed(cell.strategy, members, [], rates)
    costs: dict[str, list[Cost]] = {protocol: [] for protocol in PROTOCOLS}
    for number in range(CHANGES):
        count = max(1, round(cell.churn * cell.members))
        joining = [f"member-{number:02}-{index:05}" for index in range(count)] if number % 2 == 0 else []
        gone = set() if joining else set(chance.sample(members, count))
        staying = [member for member in members if member not in gone]
        heartbeats = {member: wait_ms(chance, HEARTBEAT_MS) for member in staying}
        answers = {member: wait_ms(chance, ANSWER_MS) for member in staying}
        members = staying + joining
        after = placed(cell.strategy, members, owners, rates)
        change = Change(owners, after, gone, heartbeats, answers, DEBOUNCE_MS if count > 1 else 0.0)
        for protocol, of_protocol in costs.items():
            of_protocol.append(_cost(change, PROTOCOLS[protocol], rates, len(members)))
        owners = after
    return {protocol: _mean(of_protocol) for protocol, of_protocol in costs.items()}


def wait_ms(chance: random.Random, most_ms: float) -> float:
    """Return a random delay, uniform from 0."""
    return chance.uniform(0.0, most_ms)


def _rates(cell: Cell, chance: random.Random) -> list[float]:
    """Return records per second of each partition, RATE on average, in random order."""
    weights = [(rank + 1) ** -cell.skew for rank in range(cell.partitions)]
    chance.shuffle(weights)
    scale = RATE * cell.partitions / sum(weights)
    return [weight * scale for weight in weights]


def placed(strategy: str, members: Sequence[str], owners: Sequence[str], rates: Sequence[float]) -> list[str]:
    """Return the member that gets each partition. `owners`: so far, one for each partition, or none at all."""
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
