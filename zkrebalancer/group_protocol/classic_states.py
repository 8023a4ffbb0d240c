"""The states of a classic group, and the one table of legal transitions."""

from __future__ import annotations

from enum import Enum


class ClassicState(Enum):
    """The phase that a classic group is in; the values are Kafka's names; each comment also says what ends it."""

    EMPTY = "Empty"  # has no member; preparing when one joins, dead when deleted or kept for long enough
    PREPARING_REBALANCE = "PreparingRebalance"  # holds joins; completing when all came, or time is up; empty if none
    COMPLETING_REBALANCE = "CompletingRebalance"  # generation stored, then syncs held; stable when the leader assigned
    STABLE = "Stable"  # the assignment is stored; preparing when members or subscriptions change
    DEAD = "Dead"  # deleted, or served by another gateway; the end


TRANSITIONS: dict[ClassicState, frozenset[ClassicState]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}),
    ClassicState.PREPARING_REBALANCE: frozenset(
        {ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY, ClassicState.DEAD}
    ),
    ClassicState.COMPLETING_REBALANCE: frozenset(
        {ClassicState.STABLE, ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}
    ),
    ClassicState.STABLE: frozenset({ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}),
    ClassicState.DEAD: frozenset(),
}


class InvalidTransitionError(Exception):
    """The machine was about to do what the table forbids: a bug; the text lists the last transitions."""
