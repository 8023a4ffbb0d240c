"""The stages of a start, a stop, and leaving."""

from __future__ import annotations

from enum import Enum, auto


class Stage(Enum):
    """The stages in their order; each piece of work has some of them."""

    WAITING = auto()  # leaving: a write is in progress
    READING = auto()  # start: the stored offsets
    RESOLVING = auto()  # start: asks Kafka where partitions without a stored offset begin
    PAUSING = auto()  # start: Kafka gave no answer; retried at `retry_at_ms`
    ENDING = auto()  # stop, leaving: emission ends
    REVOKING = auto()  # stop, leaving: waits for the application
    MEASURING = auto()  # stop, leaving: reads which records the application has finished
    READY = auto()  # waits for the write lane
    WRITING = auto()  # the ack, or the final offsets
    DELETING = auto()  # leaving: the consumer's nodes
    OVER = auto()  # acknowledged or cancelled, or gone
