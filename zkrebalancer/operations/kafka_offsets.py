"""Offsets in Kafka: the ends of partitions, offsets at a time, and those of a group, which can also be replaced.

`kafka` always means the settings of a Kafka client, `bootstrap.servers` included (`runtime/kafka.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswerError
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

import gevent
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.kafka import BOOTSTRAP, UNREACHED_S, ConnectionErrors

REQUEST_TIMEOUT_S = 10.0  # of a question, with all its repetitions
REPEAT_AFTER_S = 0.2  # after a passing answer
FIRST, END = -2, -1  # special times of Kafka's ListOffsets request
NO_OFFSET = -1  # Kafka's answer if all records are older than the requested time
# A group's coordinator that is just beginning or ending answers so, and has done nothing.
PASSING = frozenset(
    {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
)
# It may have done what was asked, or will.
UNCONFIRMED = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT})  # noqa: SLF001
Answer = TypeVar("Answer")


class KafkaOffsetsError(RebalancerError):
    """The brokers did not answer, or rejected the request, or there could be no client."""


def in_thread(ask: Callable[[], Answer]) -> Answer:
    """Ask Kafka, and let the hub run meanwhile: otherwise the ZooKeeper session of this process could end.

    After Ctrl-C, the thread goes on, so it has to close its client itself, and nothing else may use that.
    """
    answer, error = gevent.get_hub().threadpool.apply(_answer_or_error, (ask,))
    if error is not None:
        raise error
    return cast("Answer", answer)


def _answer_or_error(ask: Callable[[], Answer]) -> tuple[Answer | None, Exception | None]:
    """Return an error instead of raising it, because the thread pool would print a traceback."""
    try:
        return ask(), None
    except (KafkaException, NoAnswerError, RebalancerError) as error:
        return None, error


def log_ends(
    kafka: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return partition -> (first offset, offset after the last record, also of an open transaction).

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    asked = list(partitions)
    first, end = _ask(kafka, asked, FIRST), _ask(kafka, asked, END)
    return {partition: (first[partition], end[partition]) for partition in asked}


def known_log_ends(kafka: Mapping[str, str], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return partition -> offset after the last record, without unknown partitions; raises KafkaOffsetsError."""
    answers = _answers(kafka, list(partitions), END)
    return {(tp.topic, tp.partition): tp.offset for tp in answers if tp.error is None and tp.offset >= 0}


def offsets_at(
    kafka: Mapping[str, str], partitions: list[TopicPartition], moment: datetime
) -> Mapping[TopicPartition, int]:
    """Return partition -> first offset at or after `moment`, or the partition's end if there is none.

    Raises:
        KafkaOffsetsError: Kafka does not answer, or does not know one of the partitions.

    """
    found = _ask(kafka, partitions, int(moment.timestamp() * 1_000))
    late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
    return {**found, **(_ask(kafka, late, END) if late else {})}


class StoredInKafka:
    """The committed offsets of one group in Kafka."""

    def __init__(self, kafka: Mapping[str, str], group: str) -> None:
        """Keep the settings; the first request makes a client."""
        self._group = group
        self._errors = ConnectionErrors()
        self._settings = self._errors.settings(kafka)
        self._admin: AdminClient | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Return every committed offset; raises KafkaOffsetsError."""
        request = [ConsumerGroupTopicPartitions(self._group)]
        try:
            found = self._answer("list_consumer_group_offsets", request)
        except (KafkaException, NoAnswerError) as error:
            raise KafkaOffsetsError(f"no offsets of group {self._group} from Kafka: {self._reason(error)}") from None
        return {(tp.topic, tp.partition): tp.offset for tp in found.topic_partitions if tp.offset >= 0}

    def refuse_members(self) -> None:
        """Raise KafkaOffsetsError if the group has members of Kafka's own protocols: they would keep committing."""
        try:
            found = self._answer("describe_consumer_groups", [self._group])
        except (KafkaException, NoAnswerError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            raise KafkaOffsetsError(f"no members of group {self._group} from Kafka: {self._reason(error)}") from None
        if found.members:
            some = ", ".join(member.client_id for member in found.members[:3])
            raise KafkaOffsetsError(
                f"group {self._group} has members in Kafka ({some}); stop them first; Kafka may keep one that was"
                " killed, or owned nothing when it closed, until its session expires"
            )

    def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None] = lambda: None) -> None:
        """Replace committed offsets; raises also what `before_each_try` does, and sends nothing then.

        Raises:
            KafkaOffsetsError: Kafka rejected some, or did not confirm them; the others may be stored.

        """
        partitions = [KafkaPartition(*partition, offset) for partition, offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(self._group, partitions)]
        try:
            answer = self._answer("alter_consumer_group_offsets", request, before_each_try)
        except (KafkaException, NoAnswerError) as error:
            if isinstance(error, NoAnswerError) or error.args[0].code() in UNCONFIRMED:
                raise self._unconfirmed(self._reason(error)) from None
            raise KafkaOffsetsError(f"Kafka rejected the offsets of {self._group}: {self._reason(error)}") from None
        rejected = [tp for tp in answer.topic_partitions if tp.error]
        if rejected:
            where, why = f"{rejected[0].topic}/{rejected[0].partition}", rejected[0].error.str()
            if rejected[0].error.code() in UNCONFIRMED:
                raise self._unconfirmed(f"{where}: {why}")
            raise KafkaOffsetsError(f"Kafka rejected the offset of {where}: {why}")

    def _unconfirmed(self, why: str) -> KafkaOffsetsError:
        text = "they may be stored; repeat this"
        return KafkaOffsetsError(f"Kafka did not confirm the offsets of {self._group} ({why}): {text}")

    def _answer(self, method: str, what: Sequence[object], before_each_try: Callable[[], None] = lambda: None) -> Any:  # noqa: ANN401  # as the client's own
        """Return what `method` of AdminClient answers; ask again after a passing answer, until REQUEST_TIMEOUT_S."""
        give_up_s = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            if self._admin is None:
                self._admin = AdminClient(self._settings)
            is_last = time.monotonic() + REPEAT_AFTER_S >= give_up_s
            before_each_try()
            try:
                (sent,) = getattr(self._admin, method)(what, request_timeout=UNREACHED_S).values()
                answer = in_thread(partial(sent.result, give_up_s - time.monotonic()))
            except KafkaException as error:
                if is_last or error.args[0].code() not in PASSING:
                    raise
            else:
                errors = [tp.error for tp in getattr(answer, "topic_partitions", ()) if tp.error]
                if is_last or not any(error.code() in PASSING for error in errors):
                    return answer
            gevent.sleep(REPEAT_AFTER_S)

    def _reason(self, error: KafkaException | NoAnswerError) -> str:
        told = "" if self._admin is None else self._errors.drain(self._admin)
        if isinstance(error, KafkaException):
            return f"{error.args[0].str()}{told}"
        self._admin = None  # closes it: it would send the request later
        return f"no answer within {REQUEST_TIMEOUT_S:g} s{told}"


def _ask(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    answers = _answers(kafka, partitions, time_ms)
    for answer in answers:
        if answer.error is not None or answer.offset < NO_OFFSET:  # an invalid offset: its leader did not answer
            where, why = f"{answer.topic}/{answer.partition}", answer.error.str() if answer.error else "no answer"
            raise KafkaOffsetsError(f"no offset of {where} from Kafka at {kafka[BOOTSTRAP]}: {why}")
    return {(answer.topic, answer.partition): answer.offset for answer in answers}


def _answers(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> list[KafkaPartition]:
    return in_thread(partial(_answers_here, kafka, partitions, time_ms))


def _answers_here(kafka: Mapping[str, str], partitions: list[TopicPartition], time_ms: int) -> list[KafkaPartition]:
    errors = ConnectionErrors()
    consumer = _consumer(errors.settings(kafka))
    asked = [KafkaPartition(*partition, time_ms) for partition in partitions]
    try:
        return consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        reason = f"{error.args[0].str()}{errors.drain(consumer)}"
        raise KafkaOffsetsError(f"no offsets from Kafka at {kafka[BOOTSTRAP]}: {reason}") from None
    finally:
        consumer.close()


def _consumer(settings: Mapping[str, Any]) -> Consumer:
    own = {"group.id": "zkrebalancer-offsets", "enable.auto.commit": False}
    # By librdkafka's default, a log would end where its first open transaction begins.
    return new_consumer({"isolation.level": "read_uncommitted", **settings, **own})


def new_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return a client; raises KafkaOffsetsError, for example while the file of a certificate is being replaced."""
    try:
        return Consumer(dict(settings))
    except KafkaException as error:
        raise KafkaOffsetsError(f"no client of Kafka at {settings[BOOTSTRAP]}: {error.args[0].str()}") from None
