"""The words in which scenarios are written: a cast, and steps of actions.

A step's actions are carried out one after the other, without waiting for their effect; then the run waits until every
partition is owned by exactly the members that should be there, and nothing has moved for a while. What happens from one
step to the next is what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

TOPIC = "orders"
MAX_SKEW, SKEW_STEP = 8.0, 1e-4
NEW_TOPIC = "orders-new"
PATTERN = "^orders.*"
SETTLE_DEADLINE_S = 150.0
DISCOVERY_DEADLINE_S = 360.0  # librdkafka looks for new partitions and topics every 5 minutes by default


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is there when a scenario begins, how many partitions TOPIC has, and the seed that decides who is hit."""

    members: int
    partitions: int
    seed: int

    @property
    def present(self) -> tuple[str, ...]:
        """The members that are there from the beginning."""
        return tuple(f"m{number:02d}" for number in range(1, self.members + 1))

    def newcomers(self, count: int) -> tuple[str, ...]:
        """Return names of members that are not there yet."""
        return tuple(f"m{number:02d}" for number in range(self.members + 1, self.members + count + 1))

    def chosen(self, count: int) -> tuple[str, ...]:
        """Return some of those present, fewer than all."""
        return tuple(Random(self.seed).sample(self.present, min(count, self.members - 1)))  # noqa: S311


@dataclass(frozen=True, slots=True)
class Join:
    """A member joins, be it for the first time or again."""

    member: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A member is closed in good order."""

    member: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A member's process is killed."""

    member: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """A member's process stands still."""

    member: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """A frozen process goes on."""

    member: str


@dataclass(frozen=True, slots=True)
class Block:
    """A member's application is busy for a while and does not poll."""

    member: str
    block_ms: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing happens for a moment."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Resize:
    """A topic is created, or grows to so many partitions; records flow into what is new."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class FailCoordinator:
    """Whoever coordinates the group dies: the leading coordinator, which has a standby, or else the broker."""


@dataclass(frozen=True, slots=True)
class RestartBroker:
    """The broker comes back, if it was killed."""


Action = Join | Leave | Kill | Freeze | Thaw | Block | Pause | Resize | FailCoordinator | RestartBroker


@dataclass(frozen=True, slots=True)
class Step:
    """What is done at once, and how long the run waits for the effect; `at_least_s` keeps the window open."""

    name: str
    target: str = ""
    actions: tuple[Action, ...] = ()
    at_least_s: float = 0.0
    deadline_s: float = SETTLE_DEADLINE_S


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps, and what is special about the group and its load.

    `hottest` is the load of the hottest partition, in those of an average member; 0: all partitions get the same.
    `busy_share` is the part of their time that members are busy with records, on the average. Both are of those who are
    there from the beginning. `before_s`: how long the group is measured at rest before the first step. `has_weights`:
    whether the group has weights that tell the load, if a coordinator serves it.
    """

    name: str
    about: str
    steps: Callable[[Cast], Sequence[Step]]
    is_wildcard: bool = False
    is_static: bool = False
    hottest: float = 0.0
    busy_share: float = 0.0
    before_s: float = 5.0
    has_weights: bool = False

    def skew(self, cast: Cast) -> float:
        """Return the exponent with which the n-th partition's share, in proportion to n ** -skew, makes `hottest`."""
        wanted, low, high = self.hottest / cast.members, 0.0, MAX_SKEW
        while high - low > SKEW_STEP:
            middle = (low + high) / 2
            share = 1 / sum(rank**-middle for rank in range(1, cast.partitions + 1))
            low, high = (middle, high) if share < wanted else (low, middle)
        return round(low, 3)

    def record_work_us(self, cast: Cast, records_s: float) -> int:
        """Return how long each record keeps an application busy; `records_s` go to the whole topic in a second."""
        return round(1e6 * self.busy_share * cast.members / records_s)
