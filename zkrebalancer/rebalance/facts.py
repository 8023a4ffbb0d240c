"""What the parts of a group report to it, as plain data; what follows from each stands in `Group.handle`.

Facts go one way: what was seen (membership), what came of what was sent (moving), who left (departures).
"""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.rebalance.view import Member, PendingCommand, Released


class Fact:
    """What a part has found out; it may concern other parts."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Changed(Fact):
    """Something changed that a rebalance may have to answer; `kind`: the trigger's name."""

    kind: str


@dataclass(frozen=True, slots=True)
class Outdated(Fact):
    """What is known of the group is not true any more."""


@dataclass(frozen=True, slots=True)
class Joined(Fact):
    """A consumer registered."""

    member: Member


@dataclass(frozen=True, slots=True)
class CameAndWent(Fact):
    """A consumer registered, and its session was over before it was read."""

    consumer: str


@dataclass(frozen=True, slots=True)
class OwnersRead(Fact):
    """`owners/<consumer>` was read again; `before`: what it said before. `missing`: see `OwnersInDoubt`."""

    member: Member
    before: OwnersRecord | None
    missing: PendingCommand | None


@dataclass(frozen=True, slots=True)
class SessionOver(Fact):
    """A consumer's session ended, and with it what the consumer owned."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Left(Fact):
    """A consumer is no member any more; `kind`: the trigger's name."""

    member: Member
    released: Released
    kind: str


@dataclass(frozen=True, slots=True)
class LeaseOver(Fact):
    """Nothing of what an evicted consumer had is held any more."""

    released: Released


@dataclass(frozen=True, slots=True)
class Unanswered(Fact):
    """A consumer has to be evicted; `late`: the command that it did not acknowledge in time."""

    consumer: str
    reason: str
    late: PendingCommand | None = None


@dataclass(frozen=True, slots=True)
class EvictionCalledOff(Fact):
    """An acknowledgement, or the end of its session, was quicker than a consumer's eviction."""

    member: Member


@dataclass(frozen=True, slots=True)
class OwnersInDoubt(Fact):
    """A transaction failed because of this consumer's nodes: what it owns has to be read again.

    `missing`: a command that was not there any more: it was acknowledged, or it was deleted by other means.
    """

    consumer: str
    missing: PendingCommand | None = None


@dataclass(frozen=True, slots=True)
class SettingsInDoubt(Fact):
    """A transaction failed because the settings have changed."""


@dataclass(frozen=True, slots=True)
class Advanced(Fact):
    """Commands were sent or answered: the plan may be carried out."""


@dataclass(frozen=True, slots=True)
class Failed(Fact):
    """The plan cannot be carried out."""

    reason: str


@dataclass(frozen=True, slots=True)
class LetGo(Fact):
    """A change at one consumer has let partitions go."""

    released: Released
