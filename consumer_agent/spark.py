"""Everything that Spark's source (`zkrebalancer.pipeline.source`) uses of the agent; no other program needs it."""

from __future__ import annotations

from collections.abc import Mapping

from consumer_agent import arguments
from consumer_agent.config import find_faults, parse_offset_reset, subscription
from consumer_agent.consumer import Consumer
from consumer_agent.errors import CommitFailedError, CommitTimeoutError
from consumer_agent.kafka.client import KafkaLog
from consumer_agent.kafka.messages import by_partition
from consumer_agent.membership.offset_books import Storage
from consumer_agent.records import readable_headers
from consumer_agent.runtime.record_buffer import Advance
from consumer_agent.runtime.shares import equal_shares
from zkrebalancer.protocol.fields import TopicPartition

__all__ = [
    "Advance",
    "CommitFailedError",
    "CommitTimeoutError",
    "KafkaLog",
    "PlanningConsumer",
    "Storage",
    "by_partition",
    "equal_shares",
    "find_faults",
    "parse_offset_reset",
    "readable_headers",
    "subscription",
]


class PlanningConsumer(Consumer):
    """A member that reads nothing itself: its partitions begin paused, and `advance` says what others will read."""

    _begins_paused = True

    def advance(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Advance]:
        """Count the records of paused partitions below these offsets as returned: `{("orders", 0): 42}`.

        The result has where each partition stood and its generation, for the partitions that moved: those that are
        owned, not being revoked, paused and not beyond the offset already, while the lease holds. The records in
        between are unfinished until `finish` or `commit`, and a stop-fetcher waits for that.

        Raises:
            ConfigurationError: not a mapping of (topic, partition) to offsets.

        """
        return self._frontend.own_state("advance").advance(arguments.checked_positions("advance", offsets))
