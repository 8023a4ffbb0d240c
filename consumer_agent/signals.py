"""What goes into the machine (events) and comes out of it (effects), as plain data.

ZooKeeper's own events and calls are those of `zkrebalancer.protocol.calls`. A token names one question: the event that
answers an effect carries the effect's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zkrebalancer.protocol.calls import Call, ZooKeeperEvent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration


class Position(NamedTuple):
    """How far a partition has come: the next offset to return, and the next offset after what is finished."""

    returned: int
    finished: int


# ---- events


@dataclass(frozen=True, slots=True)
class Tick:
    """The time `Machine.wake_at_ms` has come."""


@dataclass(frozen=True, slots=True)
class Polled:
    """The application polls although it is in no group; `consumer` is a fresh name to register under."""

    consumer: str
    timestamp_ms: int  # wall clock, for the registration


@dataclass(frozen=True, slots=True)
class Revoked:
    """The application has let go of the partitions of `AskRevoke`."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The application waits until all that it has finished is stored."""

    token: int


@dataclass(frozen=True, slots=True)
class Resubscribed:
    """The application wants other topics, from now on and in every later membership."""

    registration: Registration  # timestamp and session timeout are filled in when it registers
    ask_application: bool  # on_revoke is set


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The application leaves the group."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The time for leaving is over: end the session as it is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where each owned partition stands; answers `ReadProgress` and `StopEmitting`."""

    token: int
    positions: Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class OffsetsResolved:
    """Where partitions without a stored offset begin; None where Kafka gave no answer. Answers `ResolveOffsets`."""

    token: int
    offsets: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class KafkaOffsetsRead:
    """What Kafka's store has, offset and text, where it has something; None: no answer. Answers `ReadKafkaOffsets`."""

    token: int
    found: Mapping[TopicPartition, tuple[int, str]] | None


@dataclass(frozen=True, slots=True)
class KafkaCommitted:
    """Which offsets Kafka's store did not take, and why; the others it has. Answers `CommitToKafka`."""

    token: int
    failed: Mapping[TopicPartition, str]
    is_hopeless: bool = False  # trying again does not help


@dataclass(frozen=True, slots=True)
class StoredRequested:
    """The application asks what is stored; None: of all that is owned."""

    token: int
    partitions: frozenset[TopicPartition] | None


@dataclass(frozen=True, slots=True)
class ApplicationSeen:
    """Since when the application has not been in a poll, by the machine's clock; None: it is in one.

    Answers `LookAtApplication`.
    """

    token: int
    away_since_ms: int | None
    positions: Mapping[TopicPartition, Position]


Event = (
    ZooKeeperEvent
    | Tick
    | Polled
    | Revoked
    | CommitRequested
    | StoredRequested
    | Resubscribed
    | CloseRequested
    | Abandoned
    | Progress
    | OffsetsResolved
    | KafkaOffsetsRead
    | KafkaCommitted
    | ApplicationSeen
)


# ---- effects


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Open a new ZooKeeper session; `Connected` follows."""


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End the session, but not before that time; nothing of it is heard any more.

    What it owned is free once it has ended, and until then a commit that is on its way to Kafka may arrive.
    """

    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Perform a ZooKeeper call; `Replied(call_id, …)` follows."""

    call_id: int
    call: Call


@dataclass(frozen=True, slots=True)
class EmitUntil:
    """Records may be returned while the clock is below `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read where the partitions stand; `Progress` follows."""

    token: int


@dataclass(frozen=True, slots=True)
class StopEmitting:
    """Return nothing more of these partitions and stop fetching them; `Progress` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LookAtApplication:
    """See whether the application is in a poll; `ApplicationSeen` follows."""

    token: int


@dataclass(frozen=True, slots=True)
class ResolveOffsets:
    """Ask Kafka where these partitions begin (or end, as configured); `OffsetsResolved` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReadKafkaOffsets:
    """Read what Kafka's store has of these partitions; `KafkaOffsetsRead` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class CommitToKafka:
    """Write offsets with their texts into Kafka's store, not later than `until_ms`; `KafkaCommitted` follows."""

    token: int
    offsets: Mapping[TopicPartition, tuple[int, str]]
    until_ms: int


@dataclass(frozen=True, slots=True)
class StartFetching:
    """Fetch and return these partitions from the given offsets; their records carry `generation`.

    A partition at NO_OFFSET is not fetched: the application is told, and has to say where it begins.
    `threads` names the consumer threads that they are for, other than 0.
    """

    positions: Mapping[TopicPartition, int]
    generation: int
    threads: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResumeFetching:
    """A stop was taken back: return these partitions again from where the application is."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Forget:
    """These partitions are owned no longer: their positions and records are dropped."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TellAssigned:
    """Run `on_assign` in the application's thread, before any record of these partitions is returned."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class AskRevoke:
    """Run `on_revoke` in the application's thread; `Revoked` follows."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class TellLost:
    """Run `on_lost` in the application's thread: all partitions are gone."""


@dataclass(frozen=True, slots=True)
class CommitFinished:
    """The application's commits are stored, or failed with `error`."""

    tokens: tuple[int, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TellStored:
    """What is stored of the partitions that the application asked for, None where nothing is; or why not."""

    token: int
    offsets: Mapping[TopicPartition, int | None]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BecameOut:
    """The consumer is in no group until the application polls again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Raise this in the application's next poll."""

    error: RebalancerError
    for_good: bool = False  # in every poll from now on


@dataclass(frozen=True, slots=True)
class Closed:
    """The consumer has left; nothing follows."""


@dataclass(frozen=True, slots=True)
class RecordFetcher:
    """Write the event `kind` (`fetcher_started`, `fetcher_stopped`) for each topic of `positions`."""

    kind: str
    member: str
    generation: int
    cause_id: str | None
    positions: Mapping[TopicPartition, int]
    reason: str | None = None
    late_ms: int = 0  # it happened so long ago


@dataclass(frozen=True, slots=True)
class RecordCommitted:
    """Write the event `committed` for each partition."""

    member: str
    generation: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RecordLost:
    """Write the event `fetcher_stopped` with the reason `lost`, with the positions that the partitions have."""

    member: str
    generation: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class RecordPollLate:
    """Write the event `poll_late`."""

    member: str
    away_ms: int
    limit_ms: int
    gives_up: bool


@dataclass(frozen=True, slots=True)
class RecordQuarantined:
    """Write the event `command_quarantined`."""

    member: str
    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Log one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Failpoint:
    """A named place where tests may kill the process."""

    name: str


Effect = (
    OpenSession
    | CloseSession
    | Request
    | EmitUntil
    | ReadProgress
    | StopEmitting
    | LookAtApplication
    | ResolveOffsets
    | ReadKafkaOffsets
    | CommitToKafka
    | StartFetching
    | ResumeFetching
    | Forget
    | TellAssigned
    | AskRevoke
    | TellLost
    | CommitFinished
    | TellStored
    | BecameOut
    | Failed
    | Closed
    | RecordFetcher
    | RecordCommitted
    | RecordLost
    | RecordPollLate
    | RecordQuarantined
    | Warn
    | Failpoint
)
