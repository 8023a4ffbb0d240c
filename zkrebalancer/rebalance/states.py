"""The states of a group and of a member, and for each the one table of legal transitions."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """The phase of a group; each comment also says what ends it."""

    LOADING = "loading"  # reads everything from ZooKeeper; queued when read
    IDLE = "idle"  # what is held is the target; queued by any trigger
    FROZEN = "frozen"  # as IDLE, but held partitions stay where they are
    UNAPPROVED = "unapproved"  # as FROZEN, until an operator approves the plan; queued by any trigger, such as that
    QUEUED = "queued"  # in `rebalance_request_queue`; planned when its turn comes
    PLANNING = "planning"  # the strategy computes; moves or backs off with its answer
    MOVING = "moving"  # commands are pending; idle when all are acknowledged, queued if something changed
    BACKING_OFF = "backing-off"  # a rebalance failed; queued when the delay is over

    __hash__ = object.__hash__  # as equal as the members are; that of Enum is a call of Python


REST = frozenset({GroupState.IDLE, GroupState.FROZEN, GroupState.UNAPPROVED})  # nothing is planned or carried out

TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.LOADING: frozenset({GroupState.LOADING, GroupState.QUEUED}),
    GroupState.IDLE: frozenset({GroupState.LOADING, GroupState.QUEUED}),
    GroupState.FROZEN: frozenset({GroupState.LOADING, GroupState.QUEUED}),
    GroupState.UNAPPROVED: frozenset({GroupState.LOADING, GroupState.QUEUED}),
    GroupState.QUEUED: frozenset({GroupState.LOADING, GroupState.PLANNING}),
    GroupState.PLANNING: frozenset({GroupState.LOADING, GroupState.MOVING, GroupState.BACKING_OFF}),
    GroupState.MOVING: frozenset(
        {
            GroupState.LOADING,
            GroupState.IDLE,
            GroupState.FROZEN,
            GroupState.UNAPPROVED,
            GroupState.QUEUED,
            GroupState.BACKING_OFF,
        }
    ),
    GroupState.BACKING_OFF: frozenset({GroupState.LOADING, GroupState.QUEUED}),
}


class MemberState(Enum):
    """The phase of a member of a group; each comment also says what ends it."""

    READY = "ready"  # has nothing to answer; answering when a command is sent to it
    ANSWERING = "answering"  # has commands to answer; ready when they are acknowledged or cancelled
    UNREADABLE = "unreadable"  # some of it cannot be read; evicting unless it can be in time, or a right is missing
    UNREGISTERED = "unregistered"  # its registration was removed, its session lives; evicting
    BROKEN = "broken"  # its record is gone, claims what was never given, or has no session behind it; evicting
    EVICTING = "evicting"  # its nodes are being removed; gone, or as before if it acknowledges first
    GONE = "gone"  # its session is over, or it was evicted; a consumer that returns is another member

    __hash__ = object.__hash__  # as equal as the members are; that of Enum is a call of Python


MEMBER_TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    MemberState.READY: frozenset(MemberState) - {MemberState.READY},
    MemberState.ANSWERING: frozenset(MemberState) - {MemberState.ANSWERING},
    MemberState.UNREADABLE: frozenset(MemberState) - {MemberState.UNREADABLE},
    MemberState.UNREGISTERED: frozenset({MemberState.BROKEN, MemberState.EVICTING, MemberState.GONE}),
    MemberState.BROKEN: frozenset(MemberState) - {MemberState.BROKEN},
    MemberState.EVICTING: frozenset(MemberState) - {MemberState.EVICTING},
    MemberState.GONE: frozenset(),
}


class InvalidTransitionError(Exception):
    """A bug: the core attempted a transition that a table lacks; the text lists the last transitions."""
