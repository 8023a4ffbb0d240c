"""What goes into the pure core and what comes out of it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkrebalancer.assignment.model import Assignment, Problem
from zkrebalancer.protocol.calls import Call, ZooKeeperEvent

EventField = str | int | list[str]


@dataclass(frozen=True, slots=True)
class Now:
    """The time of an event: a clock that never jumps, for waiting, and the wall clock, for what others read."""

    mono_us: int
    epoch_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline has come."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The strategy's answer to a `Compute`: an assignment, or why there is none."""

    group: str
    ticket: int
    assignment: Assignment | None
    elapsed_us: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The process is asked to stop: resign, so that a standby leads at once."""


Event = ZooKeeperEvent | Tick | Computed | ShutDown


@dataclass(frozen=True, slots=True)
class Request:
    """Perform a ZooKeeper call; its answer comes back as `Replied`."""

    call_id: int
    call: Call


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a strategy off the event loop; its answer comes back as `Computed`."""

    group: str
    ticket: int
    strategy: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Emit:
    """Write one telemetry event (`docs/events.md`)."""

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


Effect = Request | Compute | Emit | Warn | Stopped
