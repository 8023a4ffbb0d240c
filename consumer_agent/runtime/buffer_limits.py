"""How much a consumer's buffer retains, by the consumer's configuration."""

from __future__ import annotations

from consumer_agent.config import NO_LIMIT, ConsumerConfig
from consumer_agent.runtime.record_buffer import BufferSettings, Fairness, Prefetch

MIN_BUFFERED_RECORDS = 4_000
MANY_RECORDS = 50_000  # retained for polls without a limit, or so that many partitions can each retain a share
MAX_BUFFERED_BYTES = 32 * 1024 * 1024


def buffer_settings(config: ConsumerConfig, begins_paused: bool) -> BufferSettings:
    """Return the limits of the buffer."""
    limit = MANY_RECORDS if config.max_poll_records == NO_LIMIT else config.max_poll_records
    fairness, prefetch = Fairness(config.poll_fairness), Prefetch(config.prefetch)
    least = MANY_RECORDS if prefetch is Prefetch.PER_PARTITION else MIN_BUFFERED_RECORDS
    return BufferSettings(limit, max(least, 2 * limit), MAX_BUFFERED_BYTES, fairness, prefetch, begins_paused)
