"""What a member of a region deals with: the records' source, the application, and generators of calls."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from zkrebalancer.protocol.calls import Call, Reply
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

T = TypeVar("T")
Steps = Generator[Sequence[Call], Sequence[Reply], T]


class RegionMismatchError(ConfigurationError):
    """The group is in another region, or recovers in another way."""


class Phase(Enum):
    """What a member may do until the next order."""

    WAIT = "wait"  # poll without records
    FLOW = "flow"  # process records
    OUT = "out"  # register again: the leader does not count on it any more
    LEFT = "left"  # it has left: what it has processed is in a complete checkpoint


class Source(Protocol):
    """Where the records come from: a consumer."""

    @property
    def consumer(self) -> str | None:
        """The consumer's registration in the group, None before the first, and of an unmodified client."""

    @property
    def has_given_up(self) -> bool:
        """Whether partitions went away of which the member has not been told: its state may have records of them."""

    def held(self) -> dict[TopicPartition, int]:
        """Return the partitions that are held, each with the offset of the next record to return, or UNKNOWN."""

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets; records fetched before are dropped, partitions that were lost are skipped."""

    def store(self) -> bool:
        """Store these offsets if the group continues there; return whether they are stored."""

    def identity(self, topic: str) -> str:
        """Return the names of the topic's incarnation, "" if they are unknown."""


class Application(Protocol):
    """The application, which has a state of its own."""

    def checkpoint(self, number: int) -> None:
        """Store the state durably as copy `number`; earlier copies stay until they are retired."""

    def reset(self, number: int | None) -> None:
        """Restore copy `number`, or with None the initial state; all other copies may be deleted."""

    def retire(self, number: int) -> None:
        """Note that checkpoint `number` is complete: all copies before it may be deleted."""
