"""The states of a member of a KIP-848 group, and the one table of legal transitions; the group's state follows."""

from __future__ import annotations

from enum import Enum


class ConsumerGroupState(Enum):
    """The group's state, which follows from the members' states; the values are Kafka's names."""

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerMemberState(Enum):
    """A member's progress towards its target; each comment also says what ends the state."""

    STABLE = "stable"  # has its target; leaves when there is a newer one
    UNREVOKED = "unrevoked"  # has to give up partitions; ends when it no longer reports them, or with a fence if late
    UNRELEASED = "unreleased"  # is at the newest epoch, but others still hold what it gets; ends when that is free
    AWAY = "away"  # static, and left for a while: keeps its partitions; gone when replaced, or with its session
    GONE = "gone"  # left, fenced, or replaced by its later self; the end


MEMBER_TRANSITIONS: dict[ConsumerMemberState, frozenset[ConsumerMemberState]] = {
    ConsumerMemberState.STABLE: frozenset(ConsumerMemberState),
    ConsumerMemberState.UNREVOKED: frozenset(ConsumerMemberState),
    ConsumerMemberState.UNRELEASED: frozenset(ConsumerMemberState),
    ConsumerMemberState.AWAY: frozenset({ConsumerMemberState.GONE}),
    ConsumerMemberState.GONE: frozenset(),
}
