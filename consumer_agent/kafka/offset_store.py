"""Kafka's own offset store, used without being a member of a Kafka group ("simple consumer", generation -1).

An admin client of librdkafka sends the requests (`group_admin.py`); nothing here waits. Kafka's tools show these
offsets, and the lag, as those of an inactive group. Brokers refuse commits while the group has members of Kafka's own
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from consumer_agent.kafka.group_admin import GroupAdmin
from consumer_agent.kafka.rights import MissingRights, explained
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

READ_TIMEOUT_S = 5.0
PASSING_ERRORS = frozenset(  # those that Kafka's protocol calls retriable, and what a broker cannot name
    {
        KafkaError.UNKNOWN,
        KafkaError.INVALID_MSG,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # the brokers do not know it yet
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_TOPIC_ID,
        103,  # INCONSISTENT_TOPIC_ID, which the oldest confluent-kafka that is allowed does not name
        KafkaError._TIMED_OUT,  # noqa: SLF001  # these are its public names
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001
    }
)


class Committed(Protocol):
    """Called with the reason for each offset that was not stored; `is_hopeless`: retrying is useless for all."""

    def __call__(self, failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None: ...  # noqa: D102


Found = Callable[[Mapping[TopicPartition, tuple[int, str] | None] | None], None]

_log = logs.named(__name__)


class KafkaOffsetStore:
    """The offsets of one group in Kafka. `answer` is called as `GroupAdmin.ask` says."""

    def __init__(self, group: str, settings: Mapping[str, Any]) -> None:
        """Prepare a client; `settings` are librdkafka's.

        Raises:
            KafkaException: librdkafka refuses a setting, or there is no token.

        """
        self._group = group
        self._refused = MissingRights("DESCRIBE", "partitions wait for its offsets")
        self._refused_topics = MissingRights("DESCRIBE", "its partitions wait for their offsets")
        self._admin = GroupAdmin(settings, group)
        self._admin.open()

    def close(self) -> None:
        """Close the connections without waiting; requests in flight get no answer."""
        self._admin.close()

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], timeout_s: float, answer: Committed) -> None:
        """Store offsets with their metadata in one request, which ends within `timeout_s`."""
        partitions = [KafkaPartition(*partition, offset, text) for partition, (offset, text) in offsets.items()]

        def answered(future: Future[Any]) -> None:
            error = error_of(future)
            if error is not None:
                answer(dict.fromkeys(offsets, _reason(error)), is_hopeless=error.code() not in PASSING_ERRORS)
                return
            refused = {(tp.topic, tp.partition): tp.error for tp in future.result().topic_partitions if tp.error}
            hopeless = bool(refused) and all(one.code() not in PASSING_ERRORS for one in refused.values())
            answer({partition: _reason(refusal) for partition, refusal in refused.items()}, is_hopeless=hopeless)

        self._request("alter_consumer_group_offsets", partitions, timeout_s, answered)

    def read(self, partitions: Collection[TopicPartition], answer: Found) -> None:
        """Read stored offsets with their metadata.

        `answer` gets None for each partition whose offset cannot be read, or instead of all of them if nothing can.
        """

        def answered(future: Future[Any]) -> None:
            error = error_of(future)
            found = [] if error is not None else future.result().topic_partitions
            if error is None:
                self._refused.answered([self._group])
            else:
                self._refused.note(self._group, error)
            refused = {tp.topic: tp.error for tp in found if tp.error is not None}
            self._refused_topics.answered({tp.topic for tp in found} - refused.keys())
            for topic, why in refused.items():
                self._refused_topics.note(topic, why)
            reason = error or next(iter(refused.values()), None)
            if reason is not None:
                _log.info("Kafka gave no offsets of group %s: %s", self._group, reason.str())
            answer(None if error is not None else _answers(partitions, found))

        wanted = [KafkaPartition(*partition) for partition in sorted(partitions)]
        self._request("list_consumer_group_offsets", wanted, READ_TIMEOUT_S, answered)

    def _request(
        self,
        method: str,
        partitions: list[KafkaPartition],
        timeout_s: float,
        answered: Callable[[Future[Any]], None],
    ) -> None:
        request = [ConsumerGroupTopicPartitions(self._group, partitions)]
        self._admin.ask(method, request, timeout_s).add_done_callback(answered)


def _answers(
    partitions: Collection[TopicPartition], found: Iterable[KafkaPartition]
) -> dict[TopicPartition, tuple[int, str] | None]:
    """Return what is stored of partitions, without those of which nothing is; None: Kafka did not say that."""
    known = {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in found if tp.error is None}
    answers = {partition: known.get(partition) for partition in partitions}
    return {partition: answer for partition, answer in answers.items() if answer is None or answer[0] >= 0}


def _reason(error: KafkaError) -> str:
    if error.code() == KafkaError.UNKNOWN_MEMBER_ID:  # without members, anyone may commit to a group
        return f"the group has members of Kafka's own protocol ({error.str()})"
    return explained(error, "READ")


def error_of(future: Future[Any]) -> KafkaError | None:
    """Return the error of a request, None if it succeeded."""
    error = future.exception()
    if error is None:
        return None
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001  # its public name
