"""A streaming source for event lines in a Kafka topic: `format("event_topic")`.

It joins no group and needs no connector; the checkpoint records what was read. The end offset of a batch holds the
begin and end of all partitions, so that a repeated batch reads the same records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.columns import spark_schema
from zkrebalancer.pipeline.source.kafka import END, FIRST, KafkaReadError, Logs
from zkrebalancer.pipeline.source.offsets import Document, Range
from zkrebalancer.pipeline.source.options import DRIVER_CORES, KAFKA_PREFIX, Options, kafka_settings
from zkrebalancer.pipeline.source.stream import RangesPartition, read_ranges
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition

NAME = "zkrebalancer-watch"  # client id, and group id for brokers that authorize by group; the group is never joined
MAX_BATCH_ROWS = 200_000

_log = logging.getLogger(__name__)


class EventTopicError(RebalancerError):
    """The topic no longer has the records to read next."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lines are; `kafka` has librdkafka's settings, `bootstrap.servers` among them."""

    kafka: Mapping[str, str]
    topic: str

    def reading(self, cores: int = DRIVER_CORES) -> Options:
        """Return the options for reading the topic with the parts of the `consumer_group` source, in so many tasks."""
        agent = {"bootstrap": self.kafka["bootstrap.servers"], "group": NAME, "client_id": NAME}
        return Options(topics=(self.topic,), agent=agent, kafka=self.kafka, task_count=cores)

    def require(self) -> None:
        """Check that the topic can be read.

        Raises:
            KafkaReadError: no broker answers, or there is no such topic.

        """
        with Logs(self.reading()) as logs:
            logs.partitions([self.topic])

    def as_options(self) -> dict[str, str]:
        """Return the place as options of the source."""
        kafka = {f"{KAFKA_PREFIX}{key}": text for key, text in self.kafka.items()}
        return {"topic": self.topic, **kafka}


class EventTopic(DataSource):
    """The records of a topic; its options are those of `Place.as_options`, and `cores` of the executors."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "event_topic"

    def schema(self) -> str:
        """Return the columns of `format("consumer_group")`; `generation` is the time of reading, in milliseconds."""
        return spark_schema(include_headers=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # PySpark's signature
        """Return the reader."""
        place = Place(kafka_settings(self.options), self.options["topic"])
        return EventTopicReader(place.reading(int(self.options.get("cores", DRIVER_CORES))))


class EventTopicReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads ranges of offsets."""

    def __init__(self, options: Options) -> None:
        """Store the options; nothing is connected yet."""
        self._options = options
        self._targets: dict[TopicPartition, int] | None = None  # the ends of an availableNow query
        self._began: tuple[int, float] | None = None  # the time of reading at first, and when that was

    def initialOffset(self) -> Document:  # noqa: N802  # here and below PySpark's names
        """Return the beginning: no partition is known."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the size limit of a batch."""
        return ReadMaxRows(MAX_BATCH_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the present ends of the logs as the end of the query."""
        with Logs(self._options) as logs:
            self._targets = logs.offsets(logs.partitions(self._options.topics), END)

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """Return how far to read; `start` if nothing is new, or if no broker answers after the first batch.

        After that, partitions about which Kafka says nothing keep their places.

        Raises:
            KafkaReadError: a broker does not answer the first batch, or the last of an availableNow query whose end
                it has not reached; or there is no such topic.
            EventTopicError: the topic no longer has the records to read next.

        """
        before = offsets.decode(start)
        read_to = {(whole.topic, whole.partition): whole.end for whole in before}
        now_ms = self._reading_ms(before)
        try:
            with Logs(self._options) as logs:
                partitions = logs.partitions(self._options.topics)
                firsts = logs.ends(partitions, FIRST) if start else logs.offsets(partitions, FIRST)
                ends = logs.ends(firsts)
        except KafkaReadError as error:
            if not start or self._unreached(read_to):
                raise
            _log.warning("%s", error)
            return start
        require_unbroken(read_to, set(partitions), firsts, ends)
        begins = {**firsts, **read_to}
        if self._targets is not None:
            ends = {partition: min(end, self._targets.get(partition, 0)) for partition, end in ends.items()}
        unread = {partition: (begins[partition], end) for partition, end in ends.items() if begins[partition] < end}
        if not unread:
            if left := self._unreached(begins):
                text = "the tables lack it until the next run"
                raise KafkaReadError("Kafka does not say what is left of {}/{}: {}".format(*left[0], text))
            return start
        upto = offsets.limited(unread, limit.max_rows if isinstance(limit, ReadMaxRows) else MAX_BATCH_ROWS)
        return offsets.encode(Range(*p, begin, upto.get(p, begin), now_ms) for p, begin in begins.items())

    def _unreached(self, read_to: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions whose targets an availableNow query has not reached."""
        return sorted(partition for partition, end in (self._targets or {}).items() if read_to.get(partition, 0) < end)

    def _reading_ms(self, before: Sequence[Range]) -> int:
        """Return the time of reading, about milliseconds since the epoch: it never goes back, whatever clocks do.

        It is stored as the generation of a batch's ranges, which a topic without a group has no other use for.
        """
        if self._began is None:
            known_ms = max((whole.generation or 0 for whole in before), default=0)
            self._began = max(known_ms, time.time_ns() // 1_000_000), time.monotonic()
        began_ms, at_s = self._began
        return began_ms + int((time.monotonic() - at_s) * 1_000)

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """Divide a batch into tasks."""
        ranges = offsets.decode(end) if start != end else []
        return [RangesPartition(task) for task in offsets.split(ranges, self._options.task_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task, in an executor."""
        return read_ranges(self._options, partition)


def require_unbroken(
    read_to: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Raise EventTopicError if a partition no longer has the offset at which reading continues."""
    for (topic, number), offset in sorted(read_to.items()):
        if (topic, number) not in partitions:
            raise EventTopicError(f"{topic}/{number} was read before and is gone; start again with another --out")
        first, end = firsts.get((topic, number), offset), ends.get((topic, number), offset)
        if not first <= offset <= end:
            text = f"{topic}/{number} was read up to offset {offset}, and Kafka now has {first} to {end}"
            raise EventTopicError(f"{text}: lines are lost; start again with another --out")
