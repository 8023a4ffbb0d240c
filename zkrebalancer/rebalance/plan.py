"""From what is held to what shall be held: the difference, as commands that are safe to send in any order of answers.

Incremental: only what moves is stopped, and a partition starts at its new owner as soon as the old one has let go.
Eager (the legacy design): everybody stops everything, and nobody starts before all have stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkrebalancer.assignment.model import Assignment
from zkrebalancer.protocol.command import INSTANCE_FENCED, Cause
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import EAGER
from zkrebalancer.rebalance.view import GroupView, Member

Target = dict[str, dict[TopicPartition, int]]  # consumer -> partition -> consumer thread


class Reason(Enum):
    """Why a rebalance is needed (section D 3 of the legacy design)."""

    NOTHING_RECORDED = "no ownership is recorded"
    WITHOUT_OWNER = "a partition has no owner"
    MISSING_PARTITION = "an owner holds a partition that no longer exists"
    DIFFERS = "the held map differs from the computed one"
    FENCED = "a consumer whose instance id a younger one has taken over was not told to leave"


@dataclass(slots=True)
class Plan:
    """A target and what is still to be sent to reach it."""

    generation: int
    mode: str
    cause: Cause
    requested_us: int
    target: Target
    stops: dict[str, frozenset[TopicPartition] | None]  # to send; None: everything (the eager form)
    starts: dict[str, dict[TopicPartition, int]]  # to send once nobody else holds them
    waiting: dict[TopicPartition, str]  # partition of `starts` -> its consumer
    moved: frozenset[TopicPartition]  # had another owner before
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

    def drop_member(self, consumer: str) -> None:
        """Leave out a consumer that is gone: what it held counts as stopped, what it was to get is not started."""
        self.stops.pop(consumer, None)
        self.stopping.discard(consumer)
        for partition in self.starts.pop(consumer, {}):
            self.waiting.pop(partition, None)
        self.target.pop(consumer, None)

    def withdraw_starts(self, consumer: str, partitions: Mapping[TopicPartition, int]) -> None:
        """Take off the list what is being sent."""
        rest = {tp: thread for tp, thread in self.starts[consumer].items() if tp not in partitions}
        if rest:
            self.starts[consumer] = rest
        else:
            del self.starts[consumer]

    def give_back_starts(self, consumer: str, partitions: Mapping[TopicPartition, int]) -> None:
        """Put back what was not sent after all, or was cancelled."""
        wanted = self.target.get(consumer, {})
        again = {tp: thread for tp, thread in partitions.items() if wanted.get(tp) == thread}
        if again:
            self.starts[consumer] = {**self.starts.get(consumer, {}), **again}
            self.waiting.update(dict.fromkeys(again, consumer))


def to_target(assignment: Assignment) -> Target:
    """Turn a strategy's answer (consumer -> thread -> topic -> partitions) into partition -> thread per consumer."""
    return {
        consumer: {
            (topic, partition): thread
            for thread, topics in threads.items()
            for topic, partitions in topics.items()
            for partition in partitions
        }
        for consumer, threads in assignment.items()
    }


def reasons_to_rebalance(
    view: GroupView, target: Target, existing: Mapping[str, frozenset[int]], fenced: Collection[str]
) -> set[Reason]:
    """Return why what is held is not the target; empty means that nothing has to be sent."""
    reasons = set()
    wanted = [partition for partitions in target.values() for partition in partitions]
    if wanted and not any(True for _ in view.held_partitions()):
        reasons.add(Reason.NOTHING_RECORDED)
    if any(not view.holders(partition) for partition in wanted):
        reasons.add(Reason.WITHOUT_OWNER)
    for consumer, member in view.members.items():
        expected = member.expected()
        if any(partition not in existing.get(topic, ()) for topic, partition in expected):
            reasons.add(Reason.MISSING_PARTITION)
        if expected != target.get(consumer, {}):
            reasons.add(Reason.DIFFERS)
        if consumer in fenced and not _is_fencing(member):
            reasons.add(Reason.FENCED)
    return reasons


def _is_fencing(member: Member) -> bool:
    return any(pending.command.cause.kind == INSTANCE_FENCED for pending in member.pending)


def make_plan(
    view: GroupView,
    target: Target,
    mode: str,
    cause: Cause,
    requested_us: int,
    generation: int,
    last_owner: Mapping[TopicPartition, str],
    fenced: Collection[str],
) -> Plan:
    """Compare what is held with the target; cost grows with the group's partitions, once per plan.

    `last_owner` names who had each partition before, so that those of a dead consumer count as moved too. Who
    is `fenced` is told to stop everything, also when that is nothing.
    """
    stops: dict[str, frozenset[TopicPartition] | None] = {}
    starts: dict[str, dict[TopicPartition, int]] = {}
    for consumer, member in view.members.items():
        # A stop that is pending will be obeyed, also when the partition is to stay after all.
        expected = member.expected()
        wanted = target.get(consumer, {})
        leaving = {tp for tp, thread in expected.items() if wanted.get(tp) != thread}
        if consumer in fenced and not _is_fencing(member):
            stops[consumer] = None
        if mode == EAGER:
            if view.held_by(consumer):
                stops[consumer] = None
            coming = dict(wanted)
        else:
            if leaving and consumer not in fenced:
                stops[consumer] = frozenset(leaving)
            coming = {tp: thread for tp, thread in wanted.items() if expected.get(tp) != thread}
        if coming:
            starts[consumer] = coming
    moved = {
        tp
        for consumer, partitions in target.items()
        for tp in partitions
        if tp in last_owner and last_owner[tp] != consumer
    }
    return Plan(
        generation=generation,
        mode=mode,
        cause=cause,
        requested_us=requested_us,
        target=target,
        stops=stops,
        starts=starts,
        waiting={tp: consumer for consumer, partitions in starts.items() for tp in partitions},
        moved=frozenset(moved),
    )
