"""The additional methods of the agent for Spark's source (`zkrebalancer.pipeline.source`); nothing else uses them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from consumer_agent import arguments
from consumer_agent.config import ConsumerConfig, find_faults, parse_offset_reset, subscription
from consumer_agent.consumer import Consumer
from consumer_agent.errors import CommitFailedError, CommitTimeoutError
from consumer_agent.kafka import questions
from consumer_agent.kafka.client import KafkaLog, store_settings
from consumer_agent.kafka.elsewhere import look_once
from consumer_agent.kafka.messages import by_partition
from consumer_agent.membership.duties import Duties
from consumer_agent.membership.events import Origin
from consumer_agent.membership.offset_books import Storage, is_of_another_topic
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
    "is_of_another_topic",
    "look_at_kafka",
    "parse_offset_reset",
    "readable_headers",
    "subscription",
]


def look_at_kafka(settings: Mapping[str, Any], starting: Mapping[TopicPartition, int | None], timeout_s: float) -> None:
    """Look at Kafka as a consumer with these settings does before it begins; for a batch, which joins no group.

    Raises:
        ConsumerError: see `look_once`.

    """
    config = ConsumerConfig.from_settings(settings)
    look_once(config.group, store_settings(config), starting, timeout_s)


class PlanningConsumer(Consumer):
    """A member that reads nothing itself: its partitions start paused, and `advance` reserves ranges for executors."""

    _begins_paused = True
    _duties = Duties(tells_origins=True)  # it may have a sink: that is up to the query

    def origins(self) -> dict[TopicPartition, Origin]:
        """Return what the progress of each partition in a sink belongs to."""
        return dict(self._frontend.own_state("origins").origins)

    def ends(self, partitions: Collection[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Return the ends of logs that Kafka reports in time; those of a broker that is away are left out."""
        wanted, changed = dict.fromkeys(partitions, "latest"), self._frontend.shared.changed
        question = questions.about_offsets(self._frontend.queries("ends"), wanted, changed)
        changed.wait_until(lambda: question.is_over, timeout_s)
        return dict(question.offsets)

    def has_lease(self) -> bool:
        """Whether `advance` is possible now: without a lease, others may own the partitions."""
        shared = self._frontend.own_state("has_lease")
        return shared.now_ms() < shared._emit_until_ms  # noqa: SLF001  # `metrics` would also ask Kafka

    def advance(
        self, offsets: Mapping[TopicPartition, int], generations: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Advance]:
        """Count the records of paused partitions below these offsets as returned: `{("orders", 0): 42}`.

        Return the former position and the generation of each partition that advanced: those that are owned, paused,
        not being revoked and not yet beyond the offset, while the lease holds, and nothing is known that forbids to
        read. While Kafka is asked for that, and has not failed to answer, none advances. The records in between are
        unfinished until `finish` or `commit`, and a stop-fetcher waits for that.

        `generations`: when the offsets were chosen. A partition that was started again since, without a batch in flight
        that a stop would have waited for, may be one of another topic by now, and does not advance.

        Raises:
            ConfigurationError: not a mapping of (topic, partition) to offsets.

        """
        checked = arguments.checked_positions("advance", offsets)
        shared, thread = self._frontend.own_state("advance"), self._frontend.machine_thread
        is_forbidden = shared.breakdown is not None or (thread is not None and thread.is_looking)
        if is_forbidden:
            return {}
        with shared.lock:
            present = shared.buffer.generations()
            return shared.advance({tp: at for tp, at in checked.items() if present.get(tp) == generations.get(tp)})
