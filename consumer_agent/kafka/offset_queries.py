"""Asks Kafka where partitions begin and end.

librdkafka answers questions about added partitions from metadata that may be minutes old: "unknown". So topics are
described again while a wanted partition is unknown or has had no leader yet. librdkafka holds a question about a
partition without a leader for half a second, and with it the answer about all others, so such partitions are left out.
If none has a leader, as with a new topic, they are asked for all the same: that half second is better than asking
again and again, which keeps a broker from its work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from consumer_agent.kafka.client import CONNECT_TIMEOUT_S
from zkrebalancer.protocol import fields

MAX_WARMED_BROKERS = 16
TIMEOUT_S = 1.0  # of a question; nothing is fetched meanwhile
ENDS = {"earliest": -2, "latest": -1}  # the timestamps by which Kafka's ListOffsets names them

_log = logging.getLogger(__name__)


class OffsetQueries:
    """What is known of topics, and questions to Kafka; for the thread that may call the client."""

    def __init__(self, bootstrap: str, came_back: Callable[[], None]) -> None:
        """Begin knowing nothing. `came_back` is called after every call of the client, `bootstrap` is for the log."""
        self._bootstrap = bootstrap
        self._came_back = came_back
        self._counts: dict[str, int] = {}  # the partitions of each topic that librdkafka knows
        self._unled: dict[str, set[int]] = {}  # those of them that had no leader then

    def note_description(self, topic: str, partitions: Mapping[int, Any]) -> None:
        """Note a topic's description: its partitions by number, as confluent-kafka gives them."""
        self._counts[topic] = len(partitions)
        self._unled[topic] = {number for number, partition in partitions.items() if partition.leader < 0}

    def connect(self, topics: Collection[str], client: KafkaConsumer) -> None:
        """Describe these topics (none: all that there are) and open a connection to the leaders, at most a few.

        Raises:
            KafkaException: no broker has answered.

        """
        leaders = self.leaders(topics, client)
        try:
            for partition in leaders[:MAX_WARMED_BROKERS]:
                client.get_watermark_offsets(partition, timeout=CONNECT_TIMEOUT_S)
                self._came_back()
        except KafkaException as error:  # a broker went away again; librdkafka keeps trying
            _log.info("Kafka at %s: %s", self._bootstrap, error.args[0].str())

    def leaders(self, topics: Collection[str], client: KafkaConsumer) -> list[TopicPartition]:
        """Describe these topics (none: all that there are); return one partition that each broker leads.

        Raises:
            KafkaException: no broker has answered.

        """
        leaders: dict[int, TopicPartition] = {}
        questions: list[dict[str, str]] = [{"topic": topic} for topic in topics] or [{}]
        for question in questions:
            for topic, metadata in client.list_topics(**question, timeout=CONNECT_TIMEOUT_S).topics.items():
                self.note_description(topic, metadata.partitions)
                if metadata.error is not None and topic in topics:
                    _log.warning("topic %s does not exist at %s yet", topic, self._bootstrap)
                for number, partition in metadata.partitions.items():
                    if partition.leader >= 0:
                        leaders.setdefault(partition.leader, TopicPartition(topic, number))
            self._came_back()
        return list(leaders.values())

    def refresh(self, partitions: Collection[fields.TopicPartition], client: KafkaConsumer) -> None:
        """Refresh the client's metadata for partitions that were added, or were without a leader."""
        for topic in {topic for topic, number in partitions if not self._is_led(topic, number)}:
            try:
                self.note_description(topic, client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
            except KafkaException as error:
                _log.info("Kafka at %s did not describe topic %s: %s", self._bootstrap, topic, error.args[0].str())
            self._came_back()

    def offsets(
        self, partitions: Collection[fields.TopicPartition], where: str | int, client: KafkaConsumer
    ) -> dict[fields.TopicPartition, int | None]:
        """Return each partition's offset at an end, or of the first record of a time (ms); None without an answer."""
        found: dict[fields.TopicPartition, int | None] = dict.fromkeys(partitions)
        self.refresh(partitions, client)
        spec = ENDS[where] if isinstance(where, str) else where
        led = [partition for partition in partitions if self._is_led(*partition)]
        asked = [TopicPartition(*partition, spec) for partition in sorted(led or partitions)]
        try:
            answers = client.offsets_for_times(asked, timeout=TIMEOUT_S)
        except KafkaException as error:
            _log.info("Kafka at %s gave no offsets: %s", self._bootstrap, error.args[0].str())
            return found
        finally:
            self._came_back()
        for answer in answers:
            if answer.error is None and answer.offset >= 0:
                found[answer.topic, answer.partition] = answer.offset
                self._unled.get(answer.topic, set()).discard(answer.partition)
        late = [(tp.topic, tp.partition) for tp in answers if tp.error is None and tp.offset == OFFSET_END]
        if late and not isinstance(where, str):  # no record is as young as that
            found.update(self.offsets(late, "latest", client))
        return found

    def _is_led(self, topic: str, number: int) -> bool:
        """Whether the partition had a leader when its topic was described last."""
        return number < self._counts.get(topic, 0) and number not in self._unled[topic]
