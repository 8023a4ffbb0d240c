"""What can be counted in a group, for people and for Prometheus. It only reads."""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.states import GroupState


@dataclass(frozen=True, slots=True)
class Figures:
    """One group, as its leader sees it. `looks`: what counting has cost, in members and topics.

    `partitions`: of the topics that members read, as of the last plan; `unowned`: those of them that no member holds.
    """

    group: str
    state: GroupState
    since_us: int  # when it came into this state
    age_s: float
    generation: int
    members: int
    partitions: int
    unowned: int
    pending_commands: int
    looks: int

    def line(self) -> str:
        """Return a line for people."""
        return (
            f"group {self.group}: {self.state.value} for {self.age_s:.1f} s, generation {self.generation},"
            f" {self.members} members, {self.partitions} partitions, {self.unowned} of them without an owner,"
            f" {self.pending_commands} pending commands"
        )


def count(group: Group, now_us: int) -> Figures:
    """Count in one group."""
    view, topics = group.view, group.planning.topics
    partitions = unowned = 0
    for name in topics:
        known = view.topics.get(name)
        if known is not None:
            partitions += len(known.partitions)
            unowned += max(0, len(known.partitions) - view.held_count(name))
    return Figures(
        group=group.name,
        state=group.state,
        since_us=group.story.since_us,
        age_s=max(0, now_us - group.story.since_us) / 1e6,
        generation=view.generation,
        members=len(view.members),
        partitions=partitions,
        unowned=unowned,
        pending_commands=sum(len(member.pending) for member in view.members.values()),
        looks=1 + len(view.members) + len(topics),
    )
