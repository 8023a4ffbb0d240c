"""Plans: each member's next step follows from what it has and what it should have, whatever happened before.

A plan says what every consumer should have. It is not a list of commands: whenever a consumer may get a command,
`next_step` compares what it has with what it should have. So a command that was refused, cancelled or cut short needs
no bookkeeping, and neither does a new leader's plan.

Incremental: only what moves is stopped, and a partition starts at its new owner as soon as the old one has released it.
Eager (the legacy design): every consumer stops everything, and none starts before all have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol.command import INSTANCE_FENCED, Cause, Command, StopFetcher, fitting_start, fitting_stop
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import EAGER
from zkrebalancer.rebalance.effects import EventField
from zkrebalancer.rebalance.timing import Timing
from zkrebalancer.rebalance.view import GroupView, Member

MAX_VACANT = 10_000  # beyond this, pauses and moves are not counted
MAX_STARTS = 5_000  # partitions in one step of a consumer: other groups wait while they are examined and written

Share = Mapping[TopicPartition, int]  # partition -> consumer thread


@dataclass(frozen=True, slots=True)
class Difference:
    """The partitions that a consumer has to give up (`leaving`), and those that it has to get (`coming`)."""

    leaving: frozenset[TopicPartition]
    coming: Share

    def __len__(self) -> int:
        """Return the number of differing partitions."""
        return len(self.leaving) + len(self.coming)


@dataclass(frozen=True, slots=True)
class Stop:
    """The next command revokes partitions; None: all of them, before the consumer gets its share, or leaves."""

    partitions: frozenset[TopicPartition] | None


@dataclass(frozen=True, slots=True)
class Start:
    """The next command gives partitions; `lacking`: what the consumer also is to get, but may not be started yet."""

    partitions: Share
    lacking: tuple[TopicPartition, ...] = ()


@dataclass(slots=True)
class Plan:
    """The share of every consumer, and the consumers that do not have theirs yet."""

    generation: int
    mode: str
    cause: Cause
    requested_us: int
    transition: Transition
    shares: Mapping[str, Share]  # of the consumers to which the difference in `transition` does not apply
    fenced: frozenset[str]  # consumers that have to stop everything and leave
    unserved: set[str] = field(default_factory=set)  # consumers that do not have their share yet
    stopping: set[str] = field(default_factory=set)  # those of them that have to stop everything first
    moved_count: int = 0  # partitions that had another owner before
    stored: bool = False  # whether `generation` is stored in ZooKeeper
    made_us: int = 0  # when it was made
    pause_us_max: int = 0
    timing: Timing = field(default_factory=Timing)
    late_members: set[str] = field(default_factory=set)

    @property
    def barrier_is_up(self) -> bool:
        """Whether starts have to wait for every stop (eager only)."""
        return self.mode == EAGER and bool(self.stopping)

    def share(self, consumer: str) -> Share:
        """Return all that a consumer should have."""
        return self.shares[consumer] if consumer in self.shares else self.transition.share(consumer)

    def difference(self, consumer: str, has: Share) -> Difference:
        """Compare what a consumer has with what it should have.

        The cost is proportional to the changes: if the difference in the transition applies, only that is examined.
        """
        if consumer in self.shares:
            wanted = self.shares[consumer]
            leaving = frozenset(tp for tp, thread in has.items() if wanted.get(tp) != thread)
            return Difference(leaving, {tp: thread for tp, thread in wanted.items() if has.get(tp) != thread})
        gained = self.transition.starts.get(consumer, {})
        lost = self.transition.stops.get(consumer, frozenset())
        leaving = frozenset(tp for tp in lost if tp in has and has[tp] != gained.get(tp))
        return Difference(leaving, {tp: thread for tp, thread in gained.items() if has.get(tp) != thread})

    def waiting(self, partition: TopicPartition) -> str | None:
        """Return the consumer that waits for the partition, None if there is none."""
        consumer = self.transition.receiver(partition)
        return consumer if consumer in self.unserved else None

    def is_all_sent(self, members: Mapping[str, Member]) -> bool:
        """Whether every command was sent, acknowledged or not. Examines every consumer that is not served yet."""
        return not any(
            (consumer in self.stopping and not self._is_stopping(members[consumer]))
            or self.difference(consumer, members[consumer].expected())
            for consumer in self.unserved
        )

    def _is_stopping(self, member: Member) -> bool:
        return any(self._is_stop_of_everything(pending.command) for pending in member.pending)

    def _is_stop_of_everything(self, command: Command) -> bool:
        return isinstance(command, StopFetcher) and command.partitions is None and command.generation == self.generation

    # What happened ---------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: str, command: Command, now_us: int) -> bool:
        """Note an acknowledgement; return whether that lifts the barrier."""
        self.timing.acknowledged(consumer, command, now_us)
        was_up = self.barrier_is_up
        if self._is_stop_of_everything(command):
            self.stopping.discard(consumer)
        return was_up and not self.barrier_is_up

    def look_at(self, member: Member, is_withheld: Callable[[TopicPartition], bool]) -> None:
        """Note that a consumer is served if it has no pending command, and its share except what is withheld."""
        consumer = member.consumer
        if consumer not in self.unserved or consumer in self.stopping or member.pending or member.owners is None:
            return
        difference = self.difference(consumer, member.owners.partitions)
        if not difference.leaving and all(map(is_withheld, difference.coming)):
            self.unserved.discard(consumer)

    def summary(self, now_us: int) -> dict[str, EventField]:
        """Return what the event of the plan's end says."""
        return {
            "moved_count": self.moved_count,
            "late_members": sorted(self.late_members),
            "settled_us": now_us - self.requested_us,
            "pause_us_max": self.pause_us_max,
        }

    def waits_for(self, consumer: str) -> bool:
        """Whether a consumer lacks something of its share; one that has to leave gets none."""
        return consumer in self.unserved and consumer not in self.fenced

    def pass_over(self, consumer: str) -> bool:
        """Do not wait for a consumer's stop of everything; return whether that lifts the barrier."""
        was_up = self.barrier_is_up
        if self.mode == EAGER:
            self.stopping.discard(consumer)
        return was_up and not self.barrier_is_up

    def drop(self, consumer: str) -> bool:
        """Leave a consumer out of the plan; return whether that lifts the barrier."""
        was_up = self.barrier_is_up
        self.unserved.discard(consumer)
        self.stopping.discard(consumer)
        return was_up and not self.barrier_is_up


def next_step(
    plan: Plan, consumer: str, has: Share, may_start: Callable[[TopicPartition], bool]
) -> tuple[Stop | Start | None, int]:
    """Return the next step of a consumer that has nothing to answer, and how many partitions were examined.

    `has`: what it owns. `may_start`: whether a partition is free for it.
    """
    if consumer not in plan.unserved:
        return None, 0
    if consumer in plan.stopping:
        return Stop(None), 0
    difference = plan.difference(consumer, has)
    if difference.leaving:
        return Stop(None if consumer in plan.fenced else difference.leaving), len(difference)
    if plan.barrier_is_up:
        return None, len(difference)
    ready: dict[TopicPartition, int] = {}
    lacking: list[TopicPartition] = []
    for partition, thread in difference.coming.items():
        if not may_start(partition):
            lacking.append(partition)
        elif len(ready) < MAX_STARTS:
            ready[partition] = thread
        else:
            return Start(ready), len(difference)  # nothing more would fit
    return (Start(ready, tuple(lacking)) if ready else None), len(difference)


def to_command(plan: Plan, consumer: str, step: Stop | Start, command_id: str, epoch: int) -> Command:
    """Return as much of the step as fits into one command."""
    identity = command_id, epoch, plan.generation
    if isinstance(step, Start):
        return fitting_start(*identity, plan.cause, step.partitions)
    if step.partitions is None:
        cause = Cause(plan.cause.id, INSTANCE_FENCED) if consumer in plan.fenced else plan.cause
        return StopFetcher(*identity, cause, None)
    return fitting_stop(*identity, plan.cause, step.partitions)


# Making a plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vacancy:
    """The last holder of a free partition, and since when it is free."""

    consumer: str
    since_us: int


class Vacancies:
    """Partitions without a holder, for telemetry: no event says which partitions a command moved."""

    def __init__(self) -> None:
        """Start without vacancies."""
        self.by_partition: dict[TopicPartition, Vacancy] = {}  # at most MAX_VACANT

    def note(self, consumer: str, partitions: Iterable[TopicPartition], now_us: int) -> None:
        """Note that the consumer has released these partitions, and that they are free."""
        room = max(0, MAX_VACANT - len(self.by_partition))
        self.by_partition.update(dict.fromkeys(islice(partitions, room), Vacancy(consumer, now_us)))

    def follow(self, view: GroupView, new: GroupView, gone: Iterable[Member], now_us: int) -> None:
        """After the group was read again, keep what exists and is unheld, and note what members had that are gone."""
        kept = {tp: vacancy for tp, vacancy in self.by_partition.items() if new.exists(tp) and not new.holders(tp)}
        self.by_partition = kept
        for member in gone:
            free = [tp for tp in view.held_by(member.consumer) if new.exists(tp) and not new.holders(tp)]
            self.note(member.consumer, free, now_us)

    def fill(self, partitions: Iterable[TopicPartition], now_us: int) -> int:
        """Note that these were started; return the longest time, in microseconds, that one of them was free."""
        filled = (self.by_partition.pop(partition, None) for partition in partitions)
        return max((now_us - vacancy.since_us for vacancy in filled if vacancy is not None), default=0)


@dataclass(frozen=True, slots=True)
class Deviations:
    """How a plan differs from the strategy's transition.

    `shares`: the whole shares of the consumers to which the transition's difference does not apply. `fenced`: the
    consumers that have to stop everything and leave. `former_names`: former consumers of static members -> those under
    which they returned; a partition that goes from one to the other does not count as moved.
    `keeps_held`: no held partition moves.
    """

    mode: str
    shares: dict[str, Share]
    fenced: frozenset[str]
    former_names: Mapping[str, str]
    keeps_held: bool


def make_plan(
    view: GroupView,
    vacancies: Vacancies,
    transition: Transition,
    deviations: Deviations,
    cause: Cause,
    requested_us: int,
    generation: int,
) -> Plan | None:
    """Return a plan, None if every consumer has its share.

    The cost is proportional to the changes: only where the plan deviates is the share compared with what is held; for
    all others the strategy's transition has the difference. `vacancies` names the last holders of free partitions,
    because partitions of a dead consumer also count as moved.
    """
    mode, shares = deviations.mode, deviations.shares
    plan = Plan(generation, mode, cause, requested_us, transition, shares, deviations.fenced)
    described = view.members.keys() - shares.keys()
    changing = {*transition.starts, *transition.stops} if mode == EAGER else transition.changing
    plan.unserved |= changing & described
    is_needed = not described.isdisjoint(transition.changing)
    for consumer, wanted in shares.items():
        member = view.members[consumer]
        is_fencing = consumer in plan.fenced and not _is_leaving(member)
        is_different = is_fencing or member.expected() != wanted
        if is_fencing:
            plan.stopping.add(consumer)
        # A pending command may be cancelled, and then more is missing than now.
        if is_different or member.pending or (mode == EAGER and wanted):
            plan.unserved.add(consumer)
        is_needed = is_needed or is_different
    if mode == EAGER:
        plan.stopping |= {consumer for consumer in view.members if view.held_by(consumer)}
        plan.stopping -= {name for name, member in view.members.items() if is_out_of_reach(view, member)}
    plan.unserved |= plan.stopping
    plan.unserved -= {name for name in plan.unserved - plan.fenced if keeps_its_share(view, view.members[name])}
    plan.moved_count = _inherited(view, plan, vacancies, deviations.former_names)
    if not deviations.keeps_held:
        plan.moved_count += transition.moved_count
    return plan if is_needed else None


def is_out_of_reach(view: GroupView, member: Member) -> bool:
    """Whether ZooKeeper hides something of a member, or refuses its commands or eviction: nobody knows for how long."""
    is_refused = member.is_refused or member.is_eviction_refused
    return bool(member.refused) or member.is_given_hidden or is_refused or view.cannot_be_recorded(member)


def keeps_its_share(view: GroupView, member: Member) -> bool:
    """Whether a member is out of reach and stays: it keeps what it holds, others get the rest, nothing waits for it."""
    return member.takes_part and is_out_of_reach(view, member)


def _is_leaving(member: Member) -> bool:
    return any(pending.command.cause.kind == INSTANCE_FENCED for pending in member.pending)


def _inherited(view: GroupView, plan: Plan, vacancies: Vacancies, former_names: Mapping[str, str]) -> int:
    """Count the partitions of departed consumers that start at another consumer."""
    former = {partition: vacancy.consumer for partition, vacancy in vacancies.by_partition.items()}
    for consumer in {*view.evicted, *plan.shares}:
        if not plan.transition.knows(consumer):
            former.update(dict.fromkeys(view.held_by(consumer), consumer))
    coming: dict[str, Share] = {}  # of each receiver; what is already being started does not count again
    count = 0
    for partition, consumer in former.items():
        receiver = plan.waiting(partition)
        if receiver is None or receiver in {consumer, former_names.get(consumer)}:
            continue
        if receiver not in coming:
            has = {} if plan.mode == EAGER else view.members[receiver].expected()
            coming[receiver] = plan.difference(receiver, has).coming
        count += partition in coming[receiver]
    return count
