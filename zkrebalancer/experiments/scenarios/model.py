"""The data model of scenarios: a cast, and steps of actions.

A step's actions are performed in sequence, without waiting for their effects. Then the run waits until exactly the
expected members own every partition and nothing has moved for a while. Measurements are taken from one step to the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

GROUP = "group"
TOPIC = "orders"
RECORDS_PER_PARTITION_S, MAX_RECORDS_S = 2.0, 1_000  # of a topic: more would leave two processors no time
MAX_SKEW, SKEW_STEP = 8.0, 1e-4
POLL_RECORDS, MANY_POLL_RECORDS = 500, 5_000
MAX_POLL_WORK_US = 1_000_000
NEW_TOPIC = "orders-new"
PATTERN = "^orders.*"
SETTLE_DEADLINE_S = 150.0
DISCOVERY_DEADLINE_S = 360.0  # librdkafka looks for new partitions and topics every 5 minutes by default


@dataclass(frozen=True, slots=True)
class Cast:
    """The members at the beginning, what they read, and the seed that chooses targets.

    `members` and `partitions` are those of all `groups` together: each group has an equal part of the members, and
    reads every partition of TOPIC, which has an equal part of the partitions.
    """

    members: int
    partitions: int
    seed: int
    groups: int = 1

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups."""
        return (GROUP,) if self.groups == 1 else tuple(f"g{number:02d}" for number in range(1, self.groups + 1))

    @property
    def topic_partitions(self) -> int:
        """The number of TOPIC's partitions at the beginning."""
        return self.partitions // self.groups

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the members at the beginning, of one group after the other."""
        size = self.members // self.groups
        return tuple(_name(group, number) for group in self.group_names for number in range(1, size + 1))

    def newcomers(self, count: int, group: str = GROUP) -> tuple[str, ...]:
        """Return names for members of a group that join later."""
        size = self.members // self.groups
        return tuple(_name(group, number) for number in range(size + 1, size + count + 1))

    def chosen(self, count: int) -> tuple[str, ...]:
        """Return some of the present members, but never all."""
        return tuple(Random(self.seed).sample(self.present, min(count, self.members - 1)))  # noqa: S311


def _name(group: str, number: int) -> str:
    return f"m{number:02d}" if group == GROUP else f"{group}.m{number:02d}"


def group_of(member: str, only: str = GROUP) -> str:
    """Return a member's group, which its name begins with if there are several; `only`: the one group else."""
    return member.rpartition(".")[0] or only


@dataclass(frozen=True, slots=True)
class Join:
    """A member joins, for the first time or again; `version`: its settings in an upgrade."""

    member: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    """A member closes."""

    member: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A member's process is killed."""

    member: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """A member's process is suspended."""

    member: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """A suspended process resumes."""

    member: str


@dataclass(frozen=True, slots=True)
class Block:
    """A member's application is busy for a while and does not poll."""

    member: str
    block_ms: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The scenario waits before the next action."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Resize:
    """A topic is created or grows to this many partitions; producers write to the new ones."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfigureGroup:
    """The group gets the settings that it is upgraded to, if this project's coordinator manages it."""


@dataclass(frozen=True, slots=True)
class FailCoordinator:
    """The group's coordinator dies: this project's leader, which has a standby, or else the gateway, or the broker."""


@dataclass(frozen=True, slots=True)
class RestartGateway:
    """The gateway comes back, if it was killed."""


@dataclass(frozen=True, slots=True)
class FailBroker:
    """The broker that coordinates Kafka's groups dies, whatever protocol the group has."""


@dataclass(frozen=True, slots=True)
class FailZookeeper:
    """ZooKeeper servers die, the leader first."""

    count: int


@dataclass(frozen=True, slots=True)
class RestartZookeeper:
    """All ZooKeeper servers run again."""


OnServers = FailCoordinator | RestartGateway | FailBroker | FailZookeeper | RestartZookeeper
OnMember = Join | Leave | Kill | Freeze | Thaw | Block
Action = OnMember | OnServers | Pause | Resize | ConfigureGroup


@dataclass(frozen=True, slots=True)
class Step:
    """Actions performed together, and how long to wait for the effect; the window lasts for `at_least_s`."""

    name: str
    target: str = ""
    actions: tuple[Action, ...] = ()
    at_least_s: float = 0.0
    deadline_s: float = SETTLE_DEADLINE_S


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps, and the properties of the group and its load.

    `hottest`: load of the hottest partition in multiples of an average member's load; 0: all partitions are equal.
    `busy_share`: share of time that members spend on records, on average. Both refer to the members at the beginning.
    `before_s`: how long the group is measured at rest before the first step. `servers`: how many brokers and ZooKeeper
    servers there are of each kind, 1 or 3. `round_trip_ms`: between each process and each server. `sync_ms`: how
    long each sync of a server to disk takes at least. `has_weights`: whether protocols that can use weights have some
    that describe the load. `group_members`: there are several groups with so many members each, 0: one group.
    `is_upgrade`: members begin with the settings that the protocol is upgraded from. `records_s`: records per second
    that are produced without a number, in batches, 0: few records. Of these, `backlog` are there before the members,
    and each has `record_bytes`.
    """

    name: str
    about: str
    steps: Callable[[Cast], Sequence[Step]]
    is_wildcard: bool = False
    is_static: bool = False
    hottest: float = 0.0
    busy_share: float = 0.0
    before_s: float = 5.0
    servers: int = 1
    round_trip_ms: float = 0.0
    sync_ms: float = 0.0
    has_weights: bool = False
    group_members: int = 0
    is_upgrade: bool = False
    records_s: int = 0
    record_bytes: int = 0
    backlog: int = 0

    def cast(self, members: int, partitions: int, seed: int) -> Cast:
        """Return the cast: at least two groups if there are several."""
        groups = max(2, members // self.group_members) if self.group_members else 1
        return Cast(members, partitions, seed, groups)

    def is_growing(self, cast: Cast) -> bool:
        """Whether topics appear or grow, so that it matters how often members look for new ones."""
        return any(isinstance(action, Resize) for step in self.steps(cast) for action in step.actions)

    def rate(self, cast: Cast) -> float:
        """Return the records per second of a partition."""
        most = RECORDS_PER_PARTITION_S * cast.topic_partitions
        return (self.records_s or min(most, MAX_RECORDS_S)) / cast.topic_partitions

    def skew(self, cast: Cast) -> float:
        """Return the exponent that makes `hottest` true: the n-th partition's share is proportional to n ** -skew."""
        wanted, low, high = self.hottest / cast.members, 0.0, MAX_SKEW
        while high - low > SKEW_STEP:
            middle = (low + high) / 2
            share = 1 / sum(rank**-middle for rank in range(1, cast.partitions + 1))
            low, high = (middle, high) if share < wanted else (low, middle)
        return round(low, 3)

    def record_work_us(self, cast: Cast) -> int:
        """Return the work per record in microseconds."""
        return round(1e6 * self.busy_share * cast.members / (self.rate(cast) * cast.topic_partitions))

    def reading(self, cast: Cast) -> dict[str, str]:
        """Return how members read, as options of their programs; slow applications poll once a second."""
        work_us = self.record_work_us(cast)
        most = min(MANY_POLL_RECORDS if self.records_s else POLL_RECORDS, MAX_POLL_WORK_US // max(1, work_us))
        return {
            "--record-work-us": str(work_us),
            "--max-poll-records": str(max(1, most)),
            "--delays": "last" if self.records_s else "each",
        }


def needed(steps: Sequence[Step], restarts: int) -> list[Step]:
    """Return the steps of an upgrade that takes so many restarts of each member; all steps of other scenarios."""
    return [
        step for step in steps if all(action.version <= restarts for action in step.actions if isinstance(action, Join))
    ]
