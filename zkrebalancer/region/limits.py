"""Every limit of a consistent region, most of them by the formulas of IBM Streams' Kafka operators."""

from __future__ import annotations

MAX_MEMBERS = 1_000  # of a region: `order` names each
MAX_NAMES = 5_000  # members whose last state one piece of a merge names, present or not
MAX_REQUESTS = 100  # that wait; the leader reads them all at once
MAX_PIECES = 64  # of one contribution or merge
MAX_READ_BYTES = 1_000_000  # of one node
MAX_MERGE_WAIT_MS = 15_000
DEFAULT_RESET_MS = 60_000
ANSWERS_US = (
    10_000_000  # at least, for answers to a round that is read again, and for members that were cut off as well
)
FIRST_CHECKPOINT_MS = 60_000  # at most, until that of a new leader, which does not know when the last one was
BRAKE_S = 0.1  # between polls while no records may flow
QUEUED_POLLS = 100  # what the queue between event thread and application holds, in polls of `max.poll.records`


def merge_wait_ms(reset_ms: int, max_poll_interval_ms: int) -> int:
    """Return how long a member waits for a merge, or any other answer: then the reset fails, and is tried again."""
    return min(reset_ms // 2, max_poll_interval_ms // 2, MAX_MERGE_WAIT_MS)


def least_poll_interval_ms(reset_ms: int, drain_ms: int) -> int:
    """Return what `max.poll.interval.ms` must be at least, so that no client is evicted while it waits."""
    return 3 * max(reset_ms, drain_ms)


def read_again_us(since_us: int, now_us: int, reset_ms: int) -> int:
    """Return since when a round counts that a leader has read again: ANSWERS_US are left to read its answers."""
    return max(since_us, now_us + min(1_000 * reset_ms, ANSWERS_US) - 1_000 * reset_ms)


def queue_limit(max_poll_records: int) -> int:
    """Return how many records the queue between event thread and application holds."""
    return QUEUED_POLLS * max_poll_records


def piece_bytes(max_request_bytes: int) -> int:
    """Return how long one piece of a contribution or a merge may be."""
    return min(max_request_bytes // 4, MAX_READ_BYTES // 2)
