"""The callbacks that the application's thread has to run, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from consumer_agent.errors import CommitFailedError
from zkrebalancer.protocol.fields import TopicPartition


class Tell(Enum):
    """Which callback a notice is for."""

    ASSIGNED = "assign"
    REVOKE = "revoke"
    LOST = "lost"
    COMMITTED = "commit"
    EVENT = "event"  # of Kafka's client

    @property
    def counter(self) -> str:
        """The metric that counts its partitions."""
        return f"{self.value}_partitions_total"


NO_PARTITIONS = frozenset({Tell.COMMITTED, Tell.EVENT})  # their notices have none
UNSHOWN = frozenset(tell.counter for tell in NO_PARTITIONS)


@dataclass(slots=True)
class Notice:
    """A callback that the application's thread has to run, in order."""

    tell: Tell
    partitions: set[TopicPartition]
    token: int = 0
    error: CommitFailedError | None = None  # of COMMITTED
    name: str = ""  # of EVENT: the setting
    call: Callable[[], object] | None = None  # of EVENT
    is_announced: bool = False  # the shared state reflects it
    is_begun: bool = False  # the callback was called
