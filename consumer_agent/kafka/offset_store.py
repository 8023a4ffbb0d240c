"""Kafka's own offset store, used without being a member of a Kafka group ("simple consumer", generation -1).

librdkafka's admin client sends the requests and answers in its own thread; nothing here waits. Kafka's tools show these
offsets, and the lag, as those of an inactive group. Brokers refuse commits while the group has members of Kafka's own
protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from consumer_agent.kafka.client import AdminMaker, close_aside, made
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

READ_TIMEOUT_S = 5.0
OVERDUE_S = 2.0  # after a request's timeout: the client hangs, and the next request gets a new one
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
        KafkaError.INCONSISTENT_TOPIC_ID,
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
    """Called with the reason for each offset that was not stored; `is_hopeless`: retrying is useless."""

    def __call__(self, failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None: ...  # noqa: D102


Found = Callable[[Mapping[TopicPartition, tuple[int, str]] | None], None]

_log = logs.named(__name__)


class KafkaOffsetStore:
    """The offsets of one group in Kafka. `answer` is called in librdkafka's thread."""

    def __init__(self, group: str, settings: Mapping[str, Any]) -> None:
        """Prepare a client; `settings` are librdkafka's.

        Raises:
            KafkaException: librdkafka refuses a setting, or there is no token.

        """
        self._group = group
        new_admin = partial(made, AdminClient, settings)
        self._maker = AdminMaker(new_admin, settings)
        self._admin: AdminClient | None = new_admin()
        self._overdue_at_s: dict[object, float] = {}  # of each request without an answer

    def close(self) -> None:
        """Close the connections without waiting; requests in flight get an error, or no answer."""
        if self._admin is not None:
            before, self._admin = [self._admin], None
            close_aside(before)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], timeout_s: float, answer: Committed) -> None:
        """Store offsets with their metadata in one request, which ends within `timeout_s`."""
        partitions = [KafkaPartition(*partition, offset, text) for partition, (offset, text) in offsets.items()]

        def answered(future: Future[Any]) -> None:
            error = error_of(future)
            if error is not None:
                answer(dict.fromkeys(offsets, _reason(error)), is_hopeless=error.code() not in PASSING_ERRORS)
                return
            refused = {(tp.topic, tp.partition): tp.error for tp in future.result().topic_partitions if tp.error}
            hopeless = any(refusal.code() not in PASSING_ERRORS for refusal in refused.values())
            answer({partition: _reason(refusal) for partition, refusal in refused.items()}, is_hopeless=hopeless)

        self._request("alter_consumer_group_offsets", partitions, timeout_s, answered)

    def read(self, partitions: Collection[TopicPartition], answer: Found) -> None:
        """Read stored offsets with their metadata; `answer` gets None if any of them cannot be read."""

        def answered(future: Future[Any]) -> None:
            error = error_of(future)
            found = [] if error is not None else future.result().topic_partitions
            error = error or next((tp.error for tp in found if tp.error is not None), None)
            if error is not None:
                _log.info("Kafka gave no offsets of group %s: %s", self._group, error.str())
                answer(None)
                return
            answer({(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in found if tp.offset >= 0})

        wanted = [KafkaPartition(*partition) for partition in sorted(partitions)]
        self._request("list_consumer_group_offsets", wanted, READ_TIMEOUT_S, answered)

    def _request(
        self,
        method: str,
        partitions: list[KafkaPartition],
        timeout_s: float,
        answered: Callable[[Future[Any]], None],
    ) -> None:
        if self._admin is None:
            return
        request = object()
        future: Future[Any]
        try:
            self._replace_hanging()
            call = getattr(self._admin, method)
            self._overdue_at_s[request] = time.monotonic() + timeout_s + OVERDUE_S
            future = call([ConsumerGroupTopicPartitions(self._group, partitions)], request_timeout=timeout_s)[
                self._group
            ]
        except KafkaException as error:  # refused without being sent
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda _: self._overdue_at_s.pop(request, None))
        future.add_done_callback(answered)

    def _replace_hanging(self) -> None:
        if self._admin is not None and min(list(self._overdue_at_s.values()), default=math.inf) < time.monotonic():
            _log.warning("the Kafka client for the offsets of group %s does not answer; it is replaced", self._group)
            self._overdue_at_s.clear()
            self._maker.make(self._put)

    def _put(self, new: AdminClient) -> None:
        if self._admin is not None:  # it was not closed meanwhile
            before, self._admin = [self._admin], new
            close_aside(before)


def _reason(error: KafkaError) -> str:
    if error.code() == KafkaError.UNKNOWN_MEMBER_ID:  # without members, anyone may commit to a group
        return f"the group has members of Kafka's own protocol ({error.str()})"
    return str(error.str())


def error_of(future: Future[Any]) -> KafkaError | None:
    """Return the error of a request, None if it succeeded."""
    error = future.exception()
    if error is None:
        return None
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001  # its public name
