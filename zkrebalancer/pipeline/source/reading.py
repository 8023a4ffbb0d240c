"""Reads ranges of offsets in an executor, with one librdkafka client for all ranges of a task and for the next task.

A range ends at a record at or beyond its end, or at the partition's end. Counting records would not find the end,
because offsets may have none: those of transaction markers, aborted records and compacted records.
"""

from __future__ import annotations

import bisect
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from consumer_agent.spark import by_partition
from zkrebalancer.pipeline.source.kafka import DataLossError, KafkaReadError, new_client
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.protocol import fields

ROWS_PER_BATCH = 10_000
POLL_TIMEOUT_S = 0.5
AWAY_S = 5.0  # in one poll
SILENCE_LIMIT_S = 120.0  # without messages for any range, the task fails and Spark retries it
SHORT_LOG_S = 10.0  # of silence before checking for logs that end too early; a new leader may take seconds
ASK_TIMEOUT_S = 10.0
MAX_IDLE_CLIENTS = 1  # per worker
_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # its public name
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # its public name
}

_log = logging.getLogger(__name__)
# Connected clients and the topics that they have read, for the worker's next task.
_idle: dict[frozenset[tuple[str, Any]], tuple[Consumer, frozenset[str]]] = {}


class RangeReader:
    """Reads the ranges of one task, each of a different partition."""

    def __init__(self, settings: Mapping[str, Any], ranges: Sequence[Range], *, fail_on_data_loss: bool) -> None:
        """Reuse or create a client; raises ConfigurationError if librdkafka rejects a setting."""
        self._open: dict[fields.TopicPartition, Range] = {(r.topic, r.partition): r for r in ranges}
        self._next = {partition: whole.begin for partition, whole in self._open.items()}
        self._fail_on_data_loss = fail_on_data_loss
        self._settings = settings
        client, topics = _idle.pop(_key(settings), (None, frozenset()))
        self._client = client or new_client(settings)
        self._topics_seen = topics | {r.topic for r in ranges}  # messages of these may still arrive
        self._client.incremental_assign([TopicPartition(r.topic, r.partition, r.begin) for r in ranges])

    def read(self) -> Iterator[tuple[Range, Sequence[Message]]]:
        """Yield non-empty lists of messages of one partition in offset order.

        Raises:
            DataLossError: Kafka no longer has some of the records, and `fail_on_data_loss` is set.
            KafkaReadError: Kafka answered with an error, or nothing arrived for SILENCE_LIMIT_S.

        """
        last_message_s = last_check_s = time.monotonic()
        gc.disable()  # scanning every message again and again took two thirds of the time
        try:
            while self._open:
                asked_s = time.monotonic()
                first, now_s = self._client.poll(POLL_TIMEOUT_S), time.monotonic()
                if first is not None:
                    yield from self._handle([first, *self._client.consume(ROWS_PER_BATCH - 1, timeout=0)])
                    last_message_s = last_check_s = time.monotonic()  # not now_s: the caller may work for minutes
                elif now_s - asked_s > AWAY_S:  # the process was suspended, and the client with it
                    last_message_s = last_check_s = now_s
                elif now_s - last_message_s > SILENCE_LIMIT_S:
                    (topic, number), offset = min(self._next.items())
                    raise KafkaReadError(f"{topic}/{number}: no message at offset {offset} for {SILENCE_LIMIT_S:g} s")
                elif now_s - last_check_s > SHORT_LOG_S:
                    self._close_short_logs()
                    last_check_s = time.monotonic()
        finally:
            gc.enable()
            if self._open or len(_idle) >= MAX_IDLE_CLIENTS:
                self._client.close()
            else:
                _idle[_key(self._settings)] = self._client, self._topics_seen

    def _handle(self, messages: list[Message]) -> Iterator[tuple[Range, Sequence[Message]]]:
        """Yield the records among the messages, then handle the errors and ends of partitions among them."""
        errors: list[Message] = []
        if any(map(Message.error, messages)):
            errors = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        runs = by_partition(messages, has_one_topic=len(self._topics_seen) == 1) if messages else {}
        for partition, fetched in runs.items():
            whole = self._open.get(partition)
            if whole is None:
                continue  # messages after the range's end
            last, run = _offset(fetched[-1]), fetched
            self._next[partition] = last + 1
            if last >= whole.end - 1:
                self._close(whole)
                run = fetched[: bisect.bisect_left(fetched, whole.end, key=_offset)]
            if run:
                yield whole, run
        for message in errors:
            held = self._open.get((message.topic() or "", message.partition() or 0))
            error = message.error()
            if held is not None and error is not None:
                self._handle_error(held, _offset(message), error)

    def _handle_error(self, whole: Range, offset: int, error: KafkaError) -> None:
        place = f"{whole.topic}/{whole.partition}"
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            if offset >= whole.end:
                self._close(whole)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            self._skip_lost(whole)
        elif error.code() in _GONE:
            self._report_loss(f"{place}: Kafka no longer knows the partition ({error.str()})")
            self._close(whole)
        elif not error.retriable():
            raise KafkaReadError(f"{place}: {error.str()}")

    def _skip_lost(self, whole: Range) -> None:
        """Handle a position that Kafka does not have, because records were deleted or the log has become shorter."""
        partition = TopicPartition(whole.topic, whole.partition)
        position = self._next[whole.topic, whole.partition]
        try:
            low, high = self._client.get_watermark_offsets(partition, timeout=ASK_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaReadError(f"{whole.topic}/{whole.partition}: {error.args[0].str()}") from None
        text = f"{whole.topic}/{whole.partition}: offset {position} should be read, but Kafka has {low} to {high}"
        self._report_loss(text)
        if not position <= low < whole.end:
            self._close(whole)
            return
        self._client.incremental_unassign([partition])
        partition.offset = low
        self._client.incremental_assign([partition])

    def _close_short_logs(self) -> None:
        """Close ranges whose log ends too early: their topic was deleted and created again."""
        for (topic, number), whole in list(self._open.items()):
            try:
                _low, end = self._client.get_watermark_offsets(TopicPartition(topic, number), timeout=ASK_TIMEOUT_S)
            except KafkaException as error:
                _log.warning("%s/%s: Kafka does not report the end of the log: %s", topic, number, error.args[0].str())
                continue
            if end < whole.end:
                text = f"{topic}/{number}: offsets up to {whole.end} should be read"
                self._report_loss(f"{text}, but Kafka's log ends at {end}")
                self._close(whole)

    def _report_loss(self, text: str) -> None:
        if self._fail_on_data_loss:
            raise DataLossError(f"{text}; option failOnDataLoss=false continues without the lost records")
        _log.warning("%s; continuing without the lost records", text)

    def _close(self, whole: Range) -> None:
        del self._open[whole.topic, whole.partition], self._next[whole.topic, whole.partition]
        self._client.incremental_unassign([TopicPartition(whole.topic, whole.partition)])


def _offset(message: Message) -> int:
    return message.offset() or 0


def _key(settings: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(settings.items())
