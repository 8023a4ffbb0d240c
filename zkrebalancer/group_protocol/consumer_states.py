"""The states of a member of a KIP-848 group, and the one table of legal transitions; the group's state follows."""

from __future__ import annotations

from enum import Enum


class ConsumerGroupState(Enum):
    """What the members' states add up to; the values are Kafka's names."""

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerMemberState(Enum):
    """How far a member is on its way to its target; each comment also says what ends it."""

    STABLE = "stable"  # has its target; leaves when there is a newer one
    UNREVOKED = "unrevoked"  # was told to give partitions up; on when it no longer reports them, fenced if late
    UNRELEASED = "unreleased"  # is at the newest epoch, others still hold what it gets; on when that is free
    AWAY = "away"  # static, and left for a while: keeps its partitions; gone when replaced, or with its session
    GONE = "gone"  # left, fenced, or replaced by its later self; the end


MEMBER_TRANSITIONS: dict[ConsumerMemberState, frozenset[ConsumerMemberState]] = {
    ConsumerMemberState.STABLE: frozenset(ConsumerMemberState),
    ConsumerMemberState.UNREVOKED: frozenset(ConsumerMemberState),
    ConsumerMemberState.UNRELEASED: frozenset(ConsumerMemberState),
    ConsumerMemberState.AWAY: frozenset({ConsumerMemberState.GONE}),
    ConsumerMemberState.GONE: frozenset(),
}
