"""Kafka clients of the source: their settings, and queries for the ends of logs and for offsets."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumer_agent.spark import KafkaLog
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.runtime.kafka import ConnectionErrors

ASK_TIMEOUT_S = 10.0
LEADER_TIMEOUT_S = 5.0  # of a broker that others need not wait for
FIRST, END = -2, -1  # the timestamps that mean the two ends in ListOffsets

_log = logging.getLogger(__name__)


class KafkaReadError(RebalancerError):
    """Kafka did not answer, or answered with an error."""


class DataLossError(RebalancerError):
    """Kafka no longer has records that should be read; `failOnDataLoss=false` continues without them."""


def client_settings(options: Options) -> dict[str, Any]:
    """Return librdkafka's settings for reading ranges; the user's own settings override them."""
    return {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,  # for the brokers' authorization; nothing is committed
        "client.id": options.agent["client_id"],
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # a range may end in offsets without records
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 10,  # by default, a full queue stops fetching for a second
        "queued.min.messages": 20_000,  # records fetched beyond the end of a range are wasted
        "queued.max.messages.kbytes": 32_768,
        "max.partition.fetch.bytes": 4_194_304,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "socket.nagle.disable": True,
        **options.kafka,
    }


def new_client(settings: Mapping[str, Any]) -> Consumer:
    """Create a client; raises ConfigurationError if librdkafka rejects a setting."""
    try:
        return Consumer(dict(settings), logger=KafkaLog("librdkafka"))
    except KafkaException as error:
        raise ConfigurationError(f"kafka.*: {error.args[0].str()}") from None


class Logs:
    """Queries of partition logs. With `read_committed`, a log ends where its first open transaction begins."""

    def __init__(self, options: Options) -> None:
        """Create the client; nothing is queried yet."""
        self._bootstrap = options.bootstrap
        self._errors = ConnectionErrors()
        self._leaders: dict[fields.TopicPartition, int] = {}  # of the partitions that were listed
        self._client = new_client({**client_settings(options), "error_cb": self._errors.record})

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def partitions(self, topics: Iterable[str]) -> list[fields.TopicPartition]:
        """Return every partition of these topics; raises KafkaReadError if no broker answers or a topic is missing."""
        found: list[fields.TopicPartition] = []
        for topic in topics:
            try:
                metadata = self._client.list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic]
            except KafkaException as error:
                raise KafkaReadError(f"no Kafka broker answered at {self._bootstrap}: {self._text(error)}") from None
            if metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaReadError(f"there is no topic {topic} at {self._bootstrap}")
            if metadata.error is not None:
                raise KafkaReadError(f"topic {topic}: {metadata.error.str()}")
            leaders = {(topic, number): one.leader for number, one in sorted(metadata.partitions.items())}
            self._leaders |= leaders
            found += leaders
        return found

    def ends(
        self, partitions: Collection[fields.TopicPartition], moment: int = END
    ) -> dict[fields.TopicPartition, int]:
        """Return where each log ends, or with FIRST begins, as far as Kafka reports it now.

        Each broker is asked for itself: if one does not answer, librdkafka drops the others' answers.
        """
        of_leaders: dict[int | None, list[fields.TopicPartition]] = defaultdict(list)
        for partition in partitions:
            of_leaders[self._leaders.get(partition)].append(partition)
        found: dict[fields.TopicPartition, int] = {}
        for asked in of_leaders.values():
            try:
                answers, why = self._ask(asked, moment, LEADER_TIMEOUT_S), "no answer"
            except KafkaException as error:
                answers, why = [], self._text(error)
            found |= {(tp.topic, tp.partition): tp.offset for tp in answers if tp.error is None and tp.offset >= 0}
            silent = [partition for partition in asked if partition not in found]
            if silent:
                why = next((tp.error.str() for tp in answers if tp.error is not None), why)
                _log.warning(
                    "Kafka at %s does not report the ends of logs, such as %s/%s (%d in all): %s",
                    self._bootstrap,
                    *silent[0],
                    len(silent),
                    why,
                )
        return found

    def offsets(self, partitions: Collection[fields.TopicPartition], moment: int) -> dict[fields.TopicPartition, int]:
        """Return each partition's offset at FIRST, at END, or of the first record since `moment` (epoch milliseconds).

        Raises:
            KafkaReadError: Kafka does not answer, or does not know one of the partitions.

        """
        try:
            answers = self._ask(partitions, moment) if partitions else []
        except KafkaException as error:
            raise KafkaReadError(f"no offsets from Kafka at {self._bootstrap}: {self._text(error)}") from None
        _require_known(answers)
        found = {(tp.topic, tp.partition): tp.offset for tp in answers}
        without_records = [partition for partition, offset in found.items() if offset < 0]  # no record is that recent
        return {**found, **(self.offsets(without_records, END) if without_records else {})}

    def committed(self, partitions: Collection[fields.TopicPartition]) -> dict[fields.TopicPartition, tuple[int, str]]:
        """Return the group's offsets stored in Kafka with their metadata, without partitions that have none.

        Raises:
            KafkaReadError: Kafka does not answer, or does not know one of the partitions.

        """
        asked = [TopicPartition(topic, number) for topic, number in sorted(partitions)]
        try:
            answers = self._client.committed(asked, timeout=ASK_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaReadError(f"no stored offsets from Kafka at {self._bootstrap}: {self._text(error)}") from None
        _require_known(answers)
        return {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in answers if tp.offset >= 0}

    def _ask(
        self, partitions: Collection[fields.TopicPartition], moment: int, timeout_s: float = ASK_TIMEOUT_S
    ) -> list[TopicPartition]:
        self._errors.drain(self._client)  # discard earlier errors
        asked = [TopicPartition(topic, number, moment) for topic, number in sorted(partitions)]
        return self._client.offsets_for_times(asked, timeout=timeout_s)

    def _text(self, error: KafkaException) -> str:
        return f"{error.args[0].str()}{self._errors.drain(self._client)}"


def _require_known(answers: Iterable[TopicPartition]) -> None:
    for answer in answers:
        if answer.error is not None:
            raise KafkaReadError(f"{answer.topic}/{answer.partition}: {answer.error.str()}")
