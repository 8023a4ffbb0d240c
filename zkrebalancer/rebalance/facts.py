"""Facts that the parts of a group report to it, as plain data; `Group.handle` says what follows from each.

Facts go one way: what was seen (membership), the outcome of what was sent (moving), who left (departures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.rebalance.view import Member, PendingCommand, Released


class Fact:
    """Base of the facts: something that one part found out and that may affect others."""

    __slots__ = ()


Report = Callable[[Fact], None]


@dataclass(frozen=True, slots=True)
class Changed(Fact):
    """A change that may require a rebalance; `kind`: the trigger's name, `subject`: what changed."""

    kind: str
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Outdated(Fact):
    """ZooKeeper contradicts the view of the group: it has to be read again."""


@dataclass(frozen=True, slots=True)
class Readable(Fact):
    """ZooKeeper shows what it had refused to show, and what therefore stood still."""


@dataclass(frozen=True, slots=True)
class Joined(Fact):
    """A consumer registered."""

    member: Member


@dataclass(frozen=True, slots=True)
class CameAndWent(Fact):
    """A consumer registered, and its session ended before the registration was read."""

    consumer: str


@dataclass(frozen=True, slots=True)
class OwnersRead(Fact):
    """`owners/<consumer>` was read again; `before`: the former record."""

    member: Member
    before: OwnersRecord | None


@dataclass(frozen=True, slots=True)
class Broken(Fact):
    """A consumer has to be evicted, because neither a correct consumer nor the end of a session leaves such nodes."""

    member: Member


@dataclass(frozen=True, slots=True)
class CommandGone(Fact):
    """A command is gone, and the record of its consumer has been read again since."""

    consumer: str
    missing: PendingCommand


@dataclass(frozen=True, slots=True)
class CommandsRead(Fact):
    """The commands of a consumer could be read, after ZooKeeper had refused that."""

    member: Member


@dataclass(frozen=True, slots=True)
class SessionOver(Fact):
    """A consumer's session ended, and with it what the consumer owned."""

    consumer: str


@dataclass(frozen=True, slots=True)
class Left(Fact):
    """A consumer is no longer a member; `kind`: the trigger's name."""

    member: Member
    released: Released
    kind: str


@dataclass(frozen=True, slots=True)
class LeaseOver(Fact):
    """The lease of an evicted consumer is over: its partitions are free."""

    released: Released


@dataclass(frozen=True, slots=True)
class Unanswered(Fact):
    """A consumer has to be evicted; `late`: the command that it did not acknowledge in time."""

    consumer: str
    reason: str
    late: PendingCommand | None = None


@dataclass(frozen=True, slots=True)
class OutOfReach(Fact):
    """ZooKeeper hides what a consumer answers, or refuses its eviction: for how long, nobody knows."""

    consumer: str


@dataclass(frozen=True, slots=True)
class EvictionCalledOff(Fact):
    """The eviction of a consumer lost the race to its acknowledgement, or to the end of its session."""

    member: Member


@dataclass(frozen=True, slots=True)
class OwnersInDoubt(Fact):
    """A transaction failed because of this consumer's nodes: what it owns has to be read again.

    `missing`: a command that was gone: it was acknowledged, or deleted by other means.
    """

    consumer: str
    missing: PendingCommand | None = None


@dataclass(frozen=True, slots=True)
class SettingsInDoubt(Fact):
    """A transaction failed because the settings have changed."""


@dataclass(frozen=True, slots=True)
class Advanced(Fact):
    """Commands were sent or acknowledged: the plan may be complete."""


@dataclass(frozen=True, slots=True)
class Failed(Fact):
    """The plan failed; another one is made after a pause."""

    reason: str


@dataclass(frozen=True, slots=True)
class LetGo(Fact):
    """A consumer that stays a member has released partitions."""

    released: Released
