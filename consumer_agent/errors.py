"""The errors of a consumer, besides those of `zkrebalancer.protocol.errors`."""

from __future__ import annotations

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition


class ConsumerError(RebalancerError):
    """Base of the errors of a consumer."""


class IllegalTransitionError(ConsumerError):
    """A bug: the state machine made a transition that its table does not allow; the text has its history."""


class ConsumerStateError(ConsumerError):
    """A method was called at a time when this is not allowed: after close, before subscribe, or within a callback."""

    exit_code = 2


class RegistrationError(ConsumerError):
    """ZooKeeper refused the registration, and a retry does not help."""


class NoOffsetError(ConsumerError):
    """A partition has no position: no offset is stored or Kafka does not have it, and `auto_offset_reset` is none.

    Every `poll` raises it until `seek`, or until an offset is stored and the consumer restarted. `partition` is
    (topic, number). Kafka does not have `offset`; it has records from `earliest` up to, but not including, `latest`.
    These three are None if no offset is stored.
    """

    def __init__(
        self,
        text: str,
        partition: TopicPartition,
        offset: int | None = None,
        earliest: int | None = None,
        latest: int | None = None,
    ) -> None:
        """Store what an application needs to choose a position."""
        super().__init__(text)
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class OffsetsElsewhereError(ConsumerError):
    """The group has offsets in Kafka, and none or older ones in this consumer's store: it would read records again."""


class GroupInUseError(ConsumerError):
    """Members of Kafka's own protocol read the same records in this group."""


class FencedInstanceError(ConsumerError):
    """A younger consumer has the same group_instance_id and gets its partitions; this one cannot join again."""


class CommitFailedError(ConsumerError):
    """The partitions were lost before their offsets were stored; other consumers will read these records again."""


class TooManyCommitsError(ConsumerError):
    """Too many commits of `commit_async` are waiting. Nothing was changed; poll, and commit later, or less often."""

    retriable = True


class CommitTimeoutError(ConsumerError):
    """The commit was not confirmed in time; committing again is safe."""

    retriable = True


class KafkaUnavailableError(ConsumerError):
    """No Kafka broker answered in time."""

    retriable = True


def has_stopped(what: str, cause: BaseException | None) -> ConsumerError:
    """Return the error for a thread that a bug has ended, with its cause."""
    named = "" if cause is None else f": {type(cause).__name__}: {cause}"
    error = ConsumerError(f"the consumer's {what} has stopped{named}")
    error.__cause__ = cause
    return error
