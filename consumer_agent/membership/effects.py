"""The state machine's effects (outputs), as plain data, and the queue that collects those of one step.

ZooKeeper's own calls are those of `zkrebalancer.protocol.calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from consumer_agent.membership.events import Origin
from zkrebalancer.protocol.calls import Call, Reply
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition


class Effect:
    """Base of the effects: something for the shell to do."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OpenSession(Effect):
    """Open a new ZooKeeper session; `Connected` follows."""


@dataclass(frozen=True, slots=True)
class CloseSession(Effect):
    """End the session, but not before that time; its events are ignored from now on.

    Its partitions are free once it has ended. Until then, a commit in flight to Kafka may arrive.
    """

    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Request(Effect):
    """Perform a ZooKeeper call; `Replied(call_id, …)` follows."""

    call_id: int
    call: Call


@dataclass(frozen=True, slots=True)
class EmitUntil(Effect):
    """Records may be returned while the clock is below `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class ReadProgress(Effect):
    """Read the positions; `Progress` follows."""

    token: int


@dataclass(frozen=True, slots=True)
class StopEmitting(Effect):
    """Return nothing more of these partitions and stop fetching them; `Progress` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LookAtApplication(Effect):
    """Check whether the application is in a poll; `ApplicationSeen` follows."""

    token: int


@dataclass(frozen=True, slots=True)
class ResolveOffsets(Effect):
    """Ask Kafka where these partitions begin (or end, as configured); `OffsetsResolved` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReadKafkaOffsets(Effect):
    """Read the offsets of these partitions in Kafka's store; `KafkaOffsetsRead` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CommitToKafka(Effect):
    """Write offsets with their metadata into Kafka's store, no later than `until_ms`; `KafkaCommitted` follows."""

    token: int
    offsets: Mapping[TopicPartition, tuple[int, str]]
    until_ms: int


@dataclass(frozen=True, slots=True)
class StartFetching(Effect):
    """Fetch and return these partitions from the given offsets; their records carry `generation`.

    A partition at NO_OFFSET is not fetched until the application seeks. If `auto_offset_reset` is `none`, every poll
    raises `NoOffsetError` until then, unless it is one of `unread`, whose stored offsets are not known. Otherwise
    `PlacePartitions` follows once Kafka answers.
    `threads` has the consumer threads of partitions that are not for thread 0. Of the `copyless`, not even where they
    begin counts as finished: an offset that is stored would name a copy of a state that was never stored.
    """

    positions: Mapping[TopicPartition, int]
    generation: int
    threads: Mapping[TopicPartition, int] = field(default_factory=dict)
    unread: frozenset[TopicPartition] = frozenset()
    copyless: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class PlacePartitions(Effect):
    """Let these partitions, which were started at NO_OFFSET, begin here, unless the application has sought.

    NO_OFFSET: nothing is stored after all.
    """

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ResumeFetching(Effect):
    """After a cancelled stop, return records of these partitions again, from the application's position."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Forget(Effect):
    """Drop the positions and records of partitions that are no longer owned."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TellAssigned(Effect):
    """Run `on_assign` in the application's thread, before any record of these partitions is returned."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TellOrigins(Effect):
    """Tell the region about new partitions, before `on_assign`: their topic's incarnation and their offsets' life."""

    origins: Mapping[TopicPartition, Origin]


@dataclass(frozen=True, slots=True)
class AskRevoke(Effect):
    """Run `on_revoke` in the application's thread; `Revoked` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TellLost(Effect):
    """Run `on_lost` in the application's thread, because all partitions are lost."""

    is_evicted: bool = field(default=False, compare=False)  # others get them once the lease is over


@dataclass(frozen=True, slots=True)
class CommitFinished(Effect):
    """The application's commits are stored, or failed with `error`."""

    tokens: tuple[int, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TellStored(Effect):
    """The stored offsets that the application requested (None: nothing is stored), or an error."""

    token: int
    offsets: Mapping[TopicPartition, int | None]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BecameOut(Effect):
    """The consumer is in no group until the application polls again."""


@dataclass(frozen=True, slots=True)
class Failed(Effect):
    """Raise this error in the application's next poll."""

    error: RebalancerError
    for_good: bool = False  # in every poll from now on


@dataclass(frozen=True, slots=True)
class Closed(Effect):
    """The consumer has left; nothing follows."""


@dataclass(frozen=True, slots=True)
class RecordFetcher(Effect):
    """Write the event `kind` (`fetcher_started`, `fetcher_stopped`, `repositioned`) for each topic of `positions`."""

    kind: str
    member: str
    generation: int
    cause_id: str | None
    positions: Mapping[TopicPartition, int]
    reason: str | None = None
    late_ms: int = 0  # how long ago it happened
    command_id: str | None = None  # None: no command is the reason

    def as_of_step(self, begun_ms: int, now_ms: int) -> RecordFetcher:
        """Date a start at the beginning of its step: suspended within it, a process may have lost the partitions.

        A stop is as late as it is written: the application may have got records until then.
        """
        return replace(self, late_ms=self.late_ms + now_ms - begun_ms) if self.kind == "fetcher_started" else self


@dataclass(frozen=True, slots=True)
class RecordCommitted(Effect):
    """Write the event `committed` for each partition."""

    member: str
    generation: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RecordLost(Effect):
    """Write the event `fetcher_stopped` with the reason `lost` and the partitions' present positions."""

    member: str
    generation: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class RecordPollLate(Effect):
    """Write the event `poll_late`, whose fields these are."""

    member: str
    away_ms: int
    limit_ms: int
    gives_up: bool


@dataclass(frozen=True, slots=True)
class RecordQuarantined(Effect):
    """Write the event `command_quarantined`, whose fields these are."""

    member: str
    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warn(Effect):
    """Log one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Failpoint(Effect):
    """A named place where tests may kill the process."""

    name: str


# ---- the queue


@dataclass(slots=True)
class EffectQueue:
    """Effects in the order in which to perform them; tokens and call ids come from one growing sequence."""

    queued: list[Effect] = field(default_factory=list)
    waiting: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=dict)  # by call id
    last_token: int = 0
    now_ms: int = 0  # of the present step

    def add(self, *effects: Effect) -> None:
        """Add effects."""
        self.queued.extend(effects)

    def token(self) -> int:
        """Return a token that was never used before."""
        self.last_token += 1
        return self.last_token

    def request(self, call: Call, handle: Callable[..., None], *arguments: object) -> None:
        """Make a call; `handle(reply, *arguments)` handles its answer."""
        self.last_token = call_id = self.last_token + 1
        self.waiting[call_id] = handle, arguments
        self.queued.append(Request(call_id, call))

    def answer(self, call_id: int, reply: Reply) -> bool:
        """Handle an answer; return whether it was still awaited."""
        handle, arguments = self.waiting.pop(call_id, (None, ()))
        if handle is not None:
            handle(reply, *arguments)
        return handle is not None

    def forget_calls(self) -> None:
        """Ignore all answers that have not come yet."""
        self.waiting.clear()

    def drain(self) -> list[Effect]:
        """Return the effects and remove them."""
        queued, self.queued = self.queued, []
        return queued
