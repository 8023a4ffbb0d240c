"""The callbacks that the application's thread has to run, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def given_back(waiting: Iterable[Notice]) -> set[TopicPartition]:
    """Return the partitions whose `on_assign` has not begun.

    A stop that is cancelled while its `on_revoke` runs queues their `on_assign`, and if it is sent again, another
    `on_revoke` behind that. Until the latter is over, they may be committed. These are the states of a partition:

    - fetched: emitted, may be committed. A stop makes it stopped.
    - stopped: not emitted, may be committed. The end of its last `on_revoke` lets it go.
    - let go: not emitted, may not be committed. The ack ends this, or a cancelled stop: then it is fetched again.

    The end of an `on_revoke` leaves a partition alone that is fetched again, or whose `on_assign` waits: it is stopped
    for a later stop, whose `on_revoke` is to come.
    """
    return set[TopicPartition]().union(*(notice.partitions for notice in waiting if notice.tell is Tell.ASSIGNED))
