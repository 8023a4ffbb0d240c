"""The pure core's events (inputs) and effects (outputs), as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zkrebalancer.assignment.columns import Columns, Offsets
from zkrebalancer.assignment.model import Problem, Racks
from zkrebalancer.assignment.transition import Transition
from zkrebalancer.protocol.calls import Call, ReadEach, RepliedAll, ZooKeeperEvent

EventField = str | int | list[str]


@dataclass(frozen=True, slots=True)
class Now:
    """The time of an event: by a clock that never jumps, for waits, and by the wall clock, for others to read."""

    mono_us: int
    epoch_ms: int


@dataclass(slots=True)
class Numbers:
    """The last numbers given: of a call, a computation, and a leadership. All machines of one process share them."""

    call_id: int = 0
    ticket: int = 0
    leadership: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer of the core may be due."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The strategy's answer to a `Compute`, or why there is none."""

    group: str
    ticket: int
    transition: Transition | None
    elapsed_us: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadsRead:
    """The answer to a `ReadLoads`: offsets of each partition of each topic, or why they could not be read.

    `ends`: the offset after the last record. `committed`: the group's next offset, UNKNOWN if none is stored.
    `expected`: for topics to which the group's weights apply, the records per second that each partition should get
    now; `refused`: why the weights in ZooKeeper cannot be used. `racks`: of the replicas.
    """

    group: str
    taken_us: int  # of the clock `Now.mono_us`
    ends: Mapping[str, Offsets]
    committed: Mapping[str, Offsets]
    error: str | None = None
    expected: Mapping[str, Sequence[float]] = field(default_factory=dict)
    refused: str | None = None
    racks: Racks = field(default_factory=Racks)


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The process has to stop: resign, so that a standby leads at once."""


@dataclass(frozen=True, slots=True)
class Retire:
    """The shard no longer exists, because the number of shards has changed."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Run for leadership once no coordinator has led for this long, because another host should lead; 0: at once."""

    patience_us: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give up the leadership, because another host should lead, and stand by."""


Order = ShutDown | Retire | Stand | HandOver
Event = ZooKeeperEvent | RepliedAll | Tick | Computed | LoadsRead | Order


class Request(NamedTuple):
    """Perform a ZooKeeper call; its answer returns as `Replied`."""

    call_id: int
    call: Call


class RequestEach(NamedTuple):
    """Make reads; each has an id of its own, and is answered as if it had been requested alone."""

    first_id: int
    reads: ReadEach

    @property
    def ids(self) -> range:
        """The ids of the calls, in order."""
        return range(self.first_id, self.first_id + len(self.reads.names))


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a strategy outside the event loop (`planning.answer`); its answer returns as `Computed`.

    `before`, `changed`, `everything`, `keeping`: see `assignment.transition.place`.
    """

    group: str
    ticket: int
    strategy: str
    problem: Problem
    before: Columns | None
    changed: frozenset[str]
    everything: bool
    keeping: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadLoads:
    """Read log ends and committed offsets of a group; a `LoadsRead` always follows.

    `topics`: topic -> number of partitions.
    """

    group: str
    topics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Emit:
    """Write one telemetry event (`docs/reference/events.md`)."""

    kind: str
    group: str | None
    generation: int | None
    cause_id: str | None
    fields: Mapping[str, EventField]


@dataclass(frozen=True, slots=True)
class Warn:
    """One log line for a person."""

    text: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The coordinator has resigned; the process may end."""


Effect = Request | RequestEach | Compute | ReadLoads | Emit | Warn | Stopped
