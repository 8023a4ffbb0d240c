"""From what is held to what shall be held: the difference, as commands that are safe to send in any order of answers.

Incremental: only what moves is stopped, and a partition starts at its new owner as soon as the old one has let go.
Eager (the legacy design): everybody stops everything, and nobody starts before all have stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol.command import INSTANCE_FENCED, Cause
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import EAGER
from zkrebalancer.rebalance.view import GroupView, Member, Vacancy

Share = Mapping[TopicPartition, int]  # partition -> consumer thread


@dataclass(slots=True)
class Plan:
    """What is still to be sent until everybody has what the strategy gave it."""

    generation: int
    mode: str
    cause: Cause
    requested_us: int
    transition: Transition
    shares: dict[str, Share]  # what those shall have for whom `transition` does not tell
    stops: dict[str, frozenset[TopicPartition] | None]  # to send; None: everything (the eager form)
    starts: dict[str, dict[TopicPartition, int]]  # to send once nobody else holds them
    fenced: frozenset[str]  # told to stop everything and leave
    moved_count: int = 0  # partitions that had another owner before
    stopping: set[str] = field(default_factory=set)  # eager: stops sent and not acknowledged
    stored: bool = False  # whether `generation` stands in ZooKeeper
    pause_us_max: int = 0
    late_members: set[str] = field(default_factory=set)

    @property
    def barrier_is_up(self) -> bool:
        """Whether starts have to wait for every stop (eager only)."""
        return self.mode == EAGER and bool(self.stops or self.stopping)

    @property
    def everything_sent(self) -> bool:
        """Whether no command is left to send."""
        return not self.stops and not self.starts

    def share(self, consumer: str) -> Share:
        """Return all that a consumer shall have."""
        return self.shares[consumer] if consumer in self.shares else self.transition.share(consumer)

    def waiting(self, partition: TopicPartition) -> str | None:
        """Return the consumer that is to be sent a start of the partition once it is free."""
        consumer = self.transition.receiver(partition)
        return consumer if consumer is not None and partition in self.starts.get(consumer, {}) else None

    def drop_member(self, consumer: str) -> None:
        """Leave out a consumer that is gone: what it held counts as stopped, what it was to get is not started."""
        self.stops.pop(consumer, None)
        self.stopping.discard(consumer)
        self.starts.pop(consumer, None)
        self.shares[consumer] = {}

    def withdraw_starts(self, consumer: str, partitions: Mapping[TopicPartition, int]) -> None:
        """Take off the list what is being sent."""
        rest = {tp: thread for tp, thread in self.starts[consumer].items() if tp not in partitions}
        if rest:
            self.starts[consumer] = rest
        else:
            del self.starts[consumer]

    def give_back_starts(self, consumer: str, partitions: Mapping[TopicPartition, int]) -> None:
        """Put back what was not sent after all, or was cancelled."""
        wanted = self.share(consumer)
        again = {tp: thread for tp, thread in partitions.items() if wanted.get(tp) == thread}
        if again:
            self.starts[consumer] = {**self.starts.get(consumer, {}), **again}


@dataclass(frozen=True, slots=True)
class Deviations:
    """Where a plan is not simply what the strategy's transition says.

    `shares`: what those shall have for whom the transition does not tell. `fenced`: who is told to stop everything and
    leave. `former_names`: consumers that are gone -> those that have come back in their place, to which nothing moves.
    """

    mode: str
    shares: dict[str, Share]
    fenced: frozenset[str]
    former_names: Mapping[str, str]


def make_plan(
    view: GroupView,
    vacant: Mapping[TopicPartition, Vacancy],
    transition: Transition,
    deviations: Deviations,
    cause: Cause,
    requested_us: int,
    generation: int,
) -> Plan | None:
    """Return what has to be sent, None if everybody has what it shall have; takes over what is in the transition.

    Costs what changes: where the plan deviates, what is held is compared with what shall be, for all others the
    strategy's transition says it. `vacant` names who had what nobody holds, so that what a dead consumer had counts as
    moved too.
    """
    mode, shares = deviations.mode, deviations.shares
    plan = Plan(
        generation=generation,
        mode=mode,
        cause=cause,
        requested_us=requested_us,
        transition=transition,
        shares=shares,
        stops={},
        starts=transition.starts if transition.everything == (mode == EAGER) else {},
        fenced=deviations.fenced,
    )
    told = view.members.keys() - shares.keys()
    for consumer in [consumer for consumer in plan.starts if consumer not in told]:
        del plan.starts[consumer]
    plan.stops |= {consumer: partitions for consumer, partitions in transition.stops.items() if consumer in told}
    is_needed = not told.isdisjoint(transition.changing)
    for consumer, wanted in shares.items():
        is_needed = _add(plan, view.members[consumer], wanted) or is_needed
    if mode == EAGER:
        is_leaving = {consumer for consumer, partitions in plan.stops.items() if partitions is None}
        plan.stops = {c: None for c in view.members if view.held_by(c) or c in is_leaving}
    plan.moved_count = _taken_over(view, plan, vacant, deviations.former_names)
    if not view.settings.frozen:
        plan.moved_count += transition.moved_count
    return plan if is_needed else None


def _add(plan: Plan, member: Member, wanted: Share) -> bool:
    """Compare what one consumer holds with what it shall have; tell whether that differs.

    Who is fenced is told to stop everything, also when that is nothing.
    """
    # A stop that is pending will be obeyed, also when the partition is to stay after all.
    consumer, expected = member.consumer, member.expected()
    leaving = {tp for tp, thread in expected.items() if wanted.get(tp) != thread}
    coming = {tp: thread for tp, thread in wanted.items() if plan.mode == EAGER or expected.get(tp) != thread}
    if coming:
        plan.starts[consumer] = coming
    if consumer not in plan.fenced:
        if leaving:
            plan.stops[consumer] = frozenset(leaving)
        return expected != wanted
    is_told = any(pending.command.cause.kind == INSTANCE_FENCED for pending in member.pending)
    if not is_told:
        plan.stops[consumer] = None
    return expected != wanted or not is_told


def _taken_over(
    view: GroupView, plan: Plan, vacant: Mapping[TopicPartition, Vacancy], former_names: Mapping[str, str]
) -> int:
    """Count what is started for another consumer than the one that had it and takes no part any more."""
    former = {partition: vacancy.consumer for partition, vacancy in vacant.items()}
    for consumer in {*view.tombstones, *plan.shares}:
        if not plan.transition.knows(consumer):
            former.update(dict.fromkeys(view.held_by(consumer), consumer))
    return sum(
        plan.waiting(partition) not in {consumer, former_names.get(consumer), None}
        for partition, consumer in former.items()
    )
