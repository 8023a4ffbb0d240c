"""The states of a classic group, and the one table of legal transitions."""

from __future__ import annotations

from enum import Enum


class ClassicState(Enum):
    """The phase of a classic group; the values are Kafka's names; each comment also says what ends the phase."""

    EMPTY = "Empty"  # has no member; preparing when one joins, dead when deleted or empty for seven days
    PREPARING_REBALANCE = "PreparingRebalance"  # joins wait; completing when all joined, or time is up; empty if none
    COMPLETING_REBALANCE = "CompletingRebalance"  # stores its generation, then syncs wait; stable when assigned
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
    """A bug: the machine attempted a transition that the table lacks; the text lists the last transitions."""
