"""The state machine's events (inputs), as plain data.

ZooKeeper's own events are those of `zkrebalancer.protocol.calls`. A token names one request: the event that answers an
effect carries the effect's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zkrebalancer.protocol.calls import ZooKeeperEvent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration


class Origin(NamedTuple):
    """What a partition's progress in a sink belongs to."""

    identity: str  # the incarnation of the topic; "": unknown
    life: int  # how often an operator has set the group's offsets of the partition; only grows


class Position(NamedTuple):
    """A partition's next offset to return, and the next offset after what is finished."""

    returned: int
    finished: int

    @property
    def is_unfinished(self) -> bool:
        """Whether records were returned that are not finished."""
        return self.finished < self.returned


class AgentEvent:
    """Base of the events of the application, Kafka and the clock."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tick(AgentEvent):
    """`StateMachine.wake_at_ms` is reached."""


@dataclass(frozen=True, slots=True)
class Polled(AgentEvent):
    """The application polls while the consumer is in no group; `consumer` is a new name to register under."""

    consumer: str
    timestamp_ms: int  # wall clock, for the registration


@dataclass(frozen=True, slots=True)
class NotOpened(AgentEvent):
    """No session could be opened: a file cannot be read, or descriptors are missing. Answers `OpenSession`."""

    error: RebalancerError


@dataclass(frozen=True, slots=True)
class Revoked(AgentEvent):
    """The application's `on_revoke` for `AskRevoke` is over."""

    token: int


@dataclass(frozen=True, slots=True)
class CommitRequested(AgentEvent):
    """The application requests that all finished offsets be stored."""

    token: int


@dataclass(frozen=True, slots=True)
class Resubscribed(AgentEvent):
    """The application wants other topics, from now on and in every later membership."""

    registration: Registration  # timestamp and session timeout are filled in when it registers
    ask_application: bool  # on_revoke is set


@dataclass(frozen=True, slots=True)
class CloseRequested(AgentEvent):
    """The application leaves the group."""


@dataclass(frozen=True, slots=True)
class GaveUp(AgentEvent):
    """The fetcher has failed, or the consumer was dropped or closed in its own thread: leave without any callback."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned(AgentEvent):
    """The time for leaving is over: end the session without leaving first."""


@dataclass(frozen=True, slots=True)
class Progress(AgentEvent):
    """The position of each owned partition; answers `ReadProgress` and `StopEmitting`."""

    token: int
    positions: Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class OffsetsResolved(AgentEvent):
    """Where partitions without a stored offset begin (None: Kafka gave no answer). Answers `ResolveOffsets`."""

    token: int
    offsets: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class KafkaOffsetsRead(AgentEvent):
    """Offsets and metadata stored in Kafka; None: no answer, about one partition or all. Answers `ReadKafkaOffsets`."""

    token: int
    found: Mapping[TopicPartition, tuple[int, str] | None] | None


@dataclass(frozen=True, slots=True)
class KafkaCommitted(AgentEvent):
    """Which offsets Kafka did not store, and why; the others are stored. Answers `CommitToKafka`."""

    token: int
    failed: Mapping[TopicPartition, str]
    is_hopeless: bool = False  # whether a retry is useless


@dataclass(frozen=True, slots=True)
class StoredRequested(AgentEvent):
    """The application requests stored offsets; None: of all owned partitions."""

    token: int
    partitions: frozenset[TopicPartition] | None


@dataclass(frozen=True, slots=True)
class ApplicationSeen(AgentEvent):
    """Since when the application has not been in a poll, by the machine's clock; None: it is in a poll.

    Answers `LookAtApplication`.
    """

    token: int
    away_since_ms: int | None
    positions: Mapping[TopicPartition, Position]


Event = ZooKeeperEvent | AgentEvent
