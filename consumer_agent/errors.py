"""What the application may have to deal with, besides the errors of `zkrebalancer.protocol.errors`."""

from __future__ import annotations

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition


class ConsumerError(RebalancerError):
    """Base of the errors of a consumer."""


class IllegalTransitionError(ConsumerError):
    """The machine was asked for a step that its table does not allow; the text tells how it came there."""


class ConsumerStateError(ConsumerError):
    """A method was called where it may not be: after close, before subscribe, or from within a callback."""

    exit_code = 2


class RegistrationError(ConsumerError):
    """ZooKeeper refused the registration for a reason that trying again does not change."""


class NoOffsetError(ConsumerError):
    """Nothing says where to go on: no offset is stored, or Kafka has not that offset, and `auto_offset_reset` is none.

    Every `poll` raises it until `seek` says where, or an offset is stored and the consumer started again. `partition`
    is (topic, number), `offset` what Kafka has not; it has records from `earliest` up to, but without, `latest`. The
    three are None where no offset is stored.
    """

    def __init__(
        self,
        text: str,
        partition: TopicPartition,
        offset: int | None = None,
        earliest: int | None = None,
        latest: int | None = None,
    ) -> None:
        """Take what is to be said, and what an application needs to decide where to go on."""
        super().__init__(text)
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class FencedInstanceError(ConsumerError):
    """A younger consumer has the same group_instance_id, and with it the partitions; this one is out for good."""


class CommitFailedError(ConsumerError):
    """The partitions were lost before their offsets were stored; other consumers will read these records again."""


class CommitTimeoutError(ConsumerError):
    """It is not known in time whether the offsets are stored; committing again is safe."""

    retriable = True


class KafkaUnavailableError(ConsumerError):
    """No Kafka broker answered in time."""

    retriable = True
