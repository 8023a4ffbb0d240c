"""Asks Kafka where partitions begin and end, through a separate client that answers in librdkafka's thread.

Nothing waits for an answer, and one query covers all partitions: while a broker is away, only answers about its own
partitions are missing, and fetching goes on. librdkafka answers from metadata that may be minutes old ("unknown
partition"), so the topics of partitions without an answer are described again before the next query. If a leader does
not answer in time, librdkafka reports success with an invalid offset (-1001); that counts as no answer.

The topics are also described until a new client has answered. With the first answer of a bootstrap server, librdkafka
leaves it. What is asked just then about leaders is lost for three seconds, or waits for one until it connects again.
A description is not lost: librdkafka connects to the controller for it, and learns the leaders from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is its public name

from consumer_agent.kafka.client import AdminMaker, close_aside, made, signals_unwrapped
from consumer_agent.kafka.rights import MissingRights, explained
from consumer_agent.runtime.threads import new_reentrant_lock
from zkrebalancer.protocol import fields
from zkrebalancer.runtime import logs

TIMEOUT_S = 1.0  # of a query
OVERDUE_S = 5.0  # the client hangs, as it should report a missing answer after TIMEOUT_S
SILENT_LIMIT_S = 20.0  # after so long without any answer, the next query gets a new client
BEING_MADE = "its client waits for a token"
AFTER_LAST_RECORD = -1  # Kafka's answer to a time after the last record
_SPECS: dict[str, Any] = {"earliest": OffsetSpec.earliest(), "latest": OffsetSpec.latest()}  # type: ignore[no-untyped-call]

Where = str | int  # an end ("earliest", "latest"), or the first record since a time (ms)
Offsets = dict[fields.TopicPartition, int | None]  # None: no answer
Answer = Callable[[Mapping[Where, Offsets]], None]
Described = Callable[[frozenset[int] | None, str], None]  # partitions; None: no such topic, or why there is no answer

_log = logs.named(__name__)


@dataclass(slots=True, eq=False)
class _Query:
    answer: Answer
    asked_s: float
    found: dict[Where, Offsets]
    left: set[tuple[Where, fields.TopicPartition]]


class OffsetQueries:
    """Queries for offsets. All methods may be called from any thread; none waits."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Prepare; `settings` are librdkafka's. The client is made for the first query, or now if that takes long."""
        self._maker = AdminMaker(partial(made, AdminClient, settings), settings)
        is_uncommitted = str(settings.get("isolation.level")).lower() == "read_uncommitted"  # as librdkafka reads it
        self._isolation = IsolationLevel.READ_UNCOMMITTED if is_uncommitted else IsolationLevel.READ_COMMITTED
        self._client: AdminClient | None = None
        self._lock = new_reentrant_lock()  # for signals' handlers
        self._replacing = new_reentrant_lock()  # so that two threads do not make a client each
        self._open: set[_Query] = set()
        self._undescribed: set[str] = set()  # topics of partitions without an answer
        self._has_answered = False  # the present client
        self._silent_since_s: float | None = None  # no query was answered since
        self._is_over = False
        self._refused = MissingRights("DESCRIBE", "Kafka does not say where its partitions begin and end")
        self.trouble = ""  # why the last answer is missing
        if self._maker.is_slow:
            self._maker.make(self._put)

    def ask(self, partitions: Collection[fields.TopicPartition], wheres: Iterable[Where], answer: Answer) -> None:
        """Ask for the offsets at each of `wheres`; `answer` is called once, in this thread or in librdkafka's."""
        asked = dict.fromkeys(wheres)
        if any(isinstance(where, int) for where in asked):
            # The answer for a time after the last record. It is queried first, so that records which arrive meanwhile
            # are all after it.
            asked = {"latest": None, **asked}
        left = {(where, partition) for where in asked for partition in partitions}
        query = _Query(answer, time.monotonic(), {where: dict.fromkeys(partitions) for where in asked}, left)
        with self._lock:
            self._open.add(query)
        try:
            futures = [] if self._is_over else self._send(partitions, asked)
            for where, partition, future in futures:
                future.add_done_callback(partial(self._note, query, where, partition))
        except KafkaException as error:  # no descriptors are left, for example
            self.trouble = error.args[0].str()
            _log.info("Kafka cannot be asked for offsets: %s", self.trouble)
            futures = []
        except BaseException:  # a signal's, in the application's thread: no caller waits for the answer
            with self._lock:
                self._open.discard(query)
            raise
        if not futures:
            self._finish(query)

    def describe(self, topic: str, answer: Described) -> None:
        """Ask for the partitions of a topic; `answer` is called once, in this thread or in librdkafka's."""

        def answered(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                answer(frozenset(partition.id for partition in future.result().partitions), "")
            elif error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                answer(None, "")
            else:
                answer(None, error.args[0].str())

        if self._is_over:
            answer(None, "the connections are closed")
            return
        try:
            client = self._ready_client()
            if client is None:
                answer(None, BEING_MADE)
                return
            with signals_unwrapped():
                (future,) = client.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S).values()
            future.add_done_callback(answered)
        except KafkaException as error:
            answer(None, error.args[0].str())

    def is_overdue(self, awake_since_s: float) -> bool:
        """Whether the client hangs. Time before `awake_since_s` does not count: the process was suspended."""
        with self._lock:
            asked_s = min((query.asked_s for query in self._open), default=None)
        return asked_s is not None and time.monotonic() - max(asked_s, awake_since_s) > OVERDUE_S

    def abandon(self) -> None:
        """Answer None to all open and all later queries."""
        with self._lock:
            self._is_over, queries = True, list(self._open)
        for query in queries:
            self._finish(query)

    def close(self) -> None:
        """Close the connections without waiting."""
        self.abandon()
        if self._client is not None:
            before, self._client = [self._client], None
            close_aside(before)

    def _send(
        self, partitions: Collection[fields.TopicPartition], wheres: Collection[Where]
    ) -> list[tuple[Where, fields.TopicPartition, Future[Any]]]:
        client = self._ready_client()
        if client is None:
            self.trouble = BEING_MADE
            return []
        with self._lock:
            topics, self._undescribed = self._undescribed, set()
            if not self._has_answered:
                topics.update(topic for topic, _number in partitions)
        if topics:
            with signals_unwrapped():
                client.describe_topics(TopicCollection(sorted(topics)), request_timeout=TIMEOUT_S)
        futures = []
        for where in wheres if partitions else ():
            spec = _SPECS[where] if isinstance(where, str) else OffsetSpec.for_timestamp(where)
            request = {TopicPartition(*partition): spec for partition in partitions}
            with signals_unwrapped():
                answers = client.list_offsets(request, request_timeout=TIMEOUT_S, isolation_level=self._isolation)
            futures += [(where, (tp.topic, tp.partition), future) for tp, future in answers.items()]
        return futures

    def _ready_client(self) -> AdminClient | None:
        """Return the client, a new one if the former does not answer; None while the first one is being made."""
        with self._replacing:
            silent_since_s = self._silent_since_s
            is_silent = silent_since_s is not None and time.monotonic() - silent_since_s > SILENT_LIMIT_S
            if self._client is None or is_silent:
                self._maker.make(self._put)
        return self._client

    def _put(self, new: AdminClient) -> None:
        """Put a client in the place of the former one."""
        with self._lock:
            before = [] if self._client is None else [self._client]
            if self._is_over:
                before = [new]
            else:
                self._client, self._silent_since_s, self._has_answered = new, None, False
        del new
        if before:  # after releasing the lock, for which its last answers may wait
            close_aside(before)

    def _note(self, query: _Query, where: Where, partition: fields.TopicPartition, future: Future[Any]) -> None:
        """Note the answer about one partition, in librdkafka's thread."""
        error = future.exception()
        with self._lock:
            if error is not None:
                self.trouble = str(explained(error.args[0], "DESCRIBE") if isinstance(error, KafkaException) else error)
            elif query in self._open:
                offset: int = future.result().offset
                is_known = offset >= 0 or (isinstance(where, int) and offset == AFTER_LAST_RECORD)
                query.found[where][partition] = offset if is_known else None
            query.left.discard((where, partition))
            is_over = not query.left
        if isinstance(error, KafkaException):
            self._refused.note(partition[0], error.args[0])
        elif error is None:
            self._refused.answered([partition[0]])
        if is_over:
            self._finish(query)

    def _finish(self, query: _Query) -> None:
        found = query.found
        missing = {partition for offsets in found.values() for partition, at in offsets.items() if at is None}
        with self._lock:
            if query not in self._open:
                return  # it was abandoned
            self._open.discard(query)
            self._undescribed |= {topic for topic, _number in missing}
            if any(at is not None for offsets in found.values() for at in offsets.values()):
                self._silent_since_s, self._has_answered = None, True
            elif missing and self._silent_since_s is None:
                self._silent_since_s = query.asked_s
        if missing:
            _log.info("Kafka gave no offsets of %s partitions, such as %s/%s", len(missing), *min(missing))
        for where, offsets in found.items():
            if isinstance(where, int):
                offsets.update({tp: found["latest"][tp] for tp, at in offsets.items() if at == AFTER_LAST_RECORD})
        query.answer(found)
