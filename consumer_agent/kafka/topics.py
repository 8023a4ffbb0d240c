"""Lets librdkafka learn about topics before their partitions are fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from consumer_agent.kafka.client import CONNECT_TIMEOUT_S
from consumer_agent.kafka.rights import explained
from zkrebalancer.protocol import fields
from zkrebalancer.runtime import logs

MAX_WARMED_BROKERS = 16
WARM_TIMEOUT_S = 1.0  # for connecting to all of these
DESCRIBE_TIMEOUT_S = 0.1  # for all topics of a change; undescribed, librdkafka finds added partitions within a second
MIN_TIMEOUT_S = 0.001
MAX_KNOWN_TOPICS = 10_000  # besides those of one description; a consumer may live for a year while topics come and go

_log = logs.named(__name__)


class Topics:
    """The topics that librdkafka knows. Used by the one thread that may call the client."""

    def __init__(self, client: KafkaConsumer, bootstrap: str, came_back: Callable[[], None]) -> None:
        """Begin with no topics. `came_back` is called after every call of the client; `bootstrap` is for the log."""
        self._client = client
        self._bootstrap = bootstrap
        self._came_back = came_back
        self._counts: dict[str, int] = {}  # topic -> number of known partitions

    def connect(self, topics: Collection[str]) -> None:
        """Describe these topics (empty: all) and connect to their leaders, at most MAX_WARMED_BROKERS.

        Topics that cannot be described before the deadline of the first answer are left to `describe_added`.

        Raises:
            KafkaException: no broker has answered.

        """
        deadline_s, leaders = time.monotonic() + CONNECT_TIMEOUT_S, dict[int, TopicPartition]()
        for topic in topics or (None,):
            if time.monotonic() >= deadline_s:
                break
            try:
                described = self._describe(topic, deadline_s)
            except KafkaException:
                if not self._counts:
                    raise
                break
            for name, metadata in described.items():
                if metadata.error is not None and topic is not None:
                    _log.warning(
                        "topic %s at %s: %s; still trying", name, self._bootstrap, explained(metadata.error, "DESCRIBE")
                    )
                for number, partition in metadata.partitions.items():
                    if partition.leader >= 0:
                        leaders.setdefault(partition.leader, TopicPartition(name, number, OFFSET_END))
        warmed = list(leaders.values())[:MAX_WARMED_BROKERS]
        with suppress(KafkaException):  # a broker went away again; librdkafka keeps trying
            if warmed:
                self._client.offsets_for_times(warmed, timeout=WARM_TIMEOUT_S)
        self._came_back()

    def describe_added(self, partitions: Collection[fields.TopicPartition]) -> None:
        """Describe the topics of partitions that librdkafka does not know, so that it fetches them at once."""
        deadline_s = time.monotonic() + DESCRIBE_TIMEOUT_S
        for topic in sorted({topic for topic, number in partitions if number >= self._counts.get(topic, 0)}):
            if time.monotonic() >= deadline_s:
                break
            try:
                self._describe(topic, deadline_s)
            except KafkaException as error:
                _log.info("Kafka at %s did not describe topic %s: %s", self._bootstrap, topic, error.args[0].str())

    def _describe(self, topic: str | None, deadline_s: float) -> dict[str, Any]:
        named = {} if topic is None else {"topic": topic}
        timeout_s = max(MIN_TIMEOUT_S, deadline_s - time.monotonic())
        try:
            found: dict[str, Any] = self._client.list_topics(**named, timeout=timeout_s).topics
        finally:
            self._came_back()
        if len(self._counts) > MAX_KNOWN_TOPICS:
            self._counts.clear()  # they are described again when partitions are added
        self._counts.update((name, len(metadata.partitions)) for name, metadata in found.items())
        return found
