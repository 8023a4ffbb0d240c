"""How far librdkafka has come in partitions of which it hands over nothing, because it skips aborted transactions.

Its position passes each transaction's marker. Within a transaction only its statistics show that it moves. They wait
in librdkafka's queue for the next poll, so a client that is not known to stand still makes none.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from zkrebalancer.protocol import fields


class Progress:
    """The latest statistics of a client, and what they say."""

    def __init__(self) -> None:
        """Begin without statistics."""
        self._statistics = "{}"

    def note(self, statistics: str) -> None:
        """Note statistics, a JSON text, which is read when it is needed."""
        self._statistics = statistics

    def of(
        self, client: KafkaConsumer, partitions: Collection[fields.TopicPartition]
    ) -> dict[fields.TopicPartition, int]:
        """Return an offset that each partition has passed; a negative one if nothing is known.

        Raises:
            KafkaException: the client refuses to answer.

        """
        topics = json.loads(self._statistics).get("topics", {})
        passed: dict[fields.TopicPartition, int] = {}
        for at in client.position([TopicPartition(*partition) for partition in partitions]):
            reported = topics.get(at.topic, {}).get("partitions", {}).get(str(at.partition), {})
            passed[at.topic, at.partition] = max(at.offset, reported.get("next_offset", -1))
        return passed
