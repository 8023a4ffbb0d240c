"""An offset that Kafka does not have."""

from __future__ import annotations

from dataclasses import dataclass

from consumer_agent.errors import NoOffsetError
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The wanted offset, Kafka's offsets, and the next position by `auto_offset_reset`; None if that is `none`."""

    partition: TopicPartition
    offset: int
    earliest: int
    latest: int  # the offset after the last record
    goes_on_at: int | None

    @property
    def error(self) -> NoOffsetError:
        """What to raise until the application seeks."""
        return NoOffsetError(str(self), self.partition, self.offset, self.earliest, self.latest)

    def __str__(self) -> str:
        """Describe it in one line."""
        topic, number = self.partition
        text = f"{topic}/{number}: Kafka has offsets {self.earliest} to {self.latest}, not {self.offset}"
        if self.goes_on_at is None:
            return f"{text}; auto_offset_reset is none"
        return f"{text}; continuing at {self.goes_on_at}"
