"""Checks a group's offsets and members at Kafka's brokers, once, when a consumer starts.

A group of plain Kafka consumers keeps its offsets in Kafka. An agent that stores offsets in ZooKeeper knows nothing of
them, and would read again what they have read. While plain consumers run, both would read every partition.

A partition without an offset in ZooKeeper begins only after Kafka's answer. The others are fetched after the answer, or
once a request has failed: an outage of Kafka must not keep members from acknowledging commands.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from consumer_agent.errors import ConsumerError, GroupInUseError, OffsetsElsewhereError
from consumer_agent.kafka.client import AdminMaker, close_aside, made
from consumer_agent.kafka.offset_store import PASSING_ERRORS, READ_TIMEOUT_S, error_of
from consumer_agent.runtime.threads import new_lock
from zkrebalancer.protocol.fields import TopicPartition

MAX_NAMES_SHOWN = 3
MIN_PAUSE_S = 5.0  # before Kafka is asked again, if it did not answer and nothing waits for that
MAX_PAUSE_S = 60.0
OVERDUE_S = 30.0  # of an answer: the client could not be made, or hangs

_log = logging.getLogger(__name__)

Refuse = Callable[[ConsumerError], None]


class Found(NamedTuple):
    """What Kafka has of the group; `hidden`: what it does not show, and why."""

    members: list[str]  # client ids
    committed: dict[TopicPartition, int]
    hidden: list[tuple[str, str]]


class Answer(Protocol):
    """Receives the error that forbids partitions to begin, if any, and whether Kafka has answered at all."""

    def __call__(self, error: ConsumerError | None, *, is_known: bool) -> None:
        """Receive the answer."""


def fault(group: str, found: Found, starting: Mapping[TopicPartition, int | None]) -> ConsumerError | None:
    """Return why partitions may not begin at these offsets in ZooKeeper, or without one (None); None if they may."""
    members, committed = found.members, found.committed
    if members:
        some = ", ".join([*sorted(members)[:MAX_NAMES_SHOWN], *(["…"] if len(members) > MAX_NAMES_SHOWN else [])])
        return GroupInUseError(
            f"group {group} has members of Kafka's own protocol ({some}), which read the same records: stop them first;"
            " after a kill, Kafka needs their session timeout to notice"
        )
    known = sorted(tp for tp, offset in starting.items() if offset is None and tp in committed)
    if known:
        topic, number = known[0]
        return OffsetsElsewhereError(
            f"group {group} has offsets in Kafka, for example {committed[known[0]]} for {topic}/{number}, and none in"
            " ZooKeeper, where this consumer looks: it would not continue there. Set offsets_storage to dual or kafka;"
            f" or run `zkrebalancer groups offsets import {group} --from kafka`; or, to start over, set"
            " ignore_kafka_offsets to true"
        )
    newer = sorted(tp for tp, offset in starting.items() if offset is not None and committed.get(tp, offset) > offset)
    if newer:
        topic, number = newer[0]
        return OffsetsElsewhereError(
            f"group {group} has newer offsets in Kafka, for example {committed[newer[0]]} for {topic}/{number}, than in"
            f" ZooKeeper ({starting[newer[0]]}), where this consumer looks: it would read these records again. Set"
            f" offsets_storage to dual; or run `zkrebalancer groups offsets import {group} --from kafka`; or, if those"
            " in ZooKeeper are right, import with `--from zookeeper --to kafka`, or set ignore_kafka_offsets to true"
        )
    return None


class LookAtKafka:
    """The one check of a consumer; later calls get the same answer. Callbacks run in librdkafka's thread or here."""

    def __init__(self, group: str, settings: Mapping[str, Any], *, reads_offsets: bool) -> None:
        """Prepare; no client exists before the first call. `reads_offsets`: offsets matter, not only members."""
        self._group = group
        self._settings = dict(settings)
        self._reads_offsets = reads_offsets
        self._lock = new_lock()
        self._found: Found | None = None
        self._waiting: list[Callable[[Found | None], None]] = []  # for the answer that is under way
        self._unchecked: dict[TopicPartition, int | None] = {}  # offsets in ZooKeeper
        self._is_unchecked = False  # Kafka has not answered since the last check
        self._retry_at_s, self._pause_s = 0.0, MIN_PAUSE_S
        self._asking_until_s = 0.0
        self._has_warned = False

    def check(self, offsets: Mapping[TopicPartition, int], refuse: Refuse, go_on: Callable[[], None]) -> None:
        """Compare offsets in ZooKeeper with those in Kafka, then `refuse` or `go_on`.

        If Kafka does not answer, `go_on` is called, and they are compared once it answers.
        """
        with self._lock:
            self._unchecked.update(offsets)
            self._is_unchecked = True

        def note(found: Found | None) -> None:
            if self._passes(found, refuse):
                go_on()

        self._when_found(note)

    def look_after(self, refuse: Refuse) -> None:
        """Ask again if that is due; to be called every few seconds."""
        with self._lock:
            is_due = self._is_unchecked and time.monotonic() >= max(self._retry_at_s, self._asking_until_s)
        if is_due:
            self.check({}, refuse, lambda: None)

    def ask(self, starting: Collection[TopicPartition], answer: Answer) -> None:
        """Ask whether partitions without an offset in ZooKeeper may begin. If brokers do not answer, ask again."""

        def note(found: Found | None) -> None:
            if found is not None:
                self._warn(found)
            error = None if found is None else fault(self._group, found, dict.fromkeys(starting))
            answer(error, is_known=found is not None)

        self._when_found(note)

    def _passes(self, found: Found | None, refuse: Refuse) -> bool:
        if found is None:
            return True
        with self._lock:
            offsets, self._unchecked, self._is_unchecked = self._unchecked, {}, False
        error = fault(self._group, found, offsets)
        if error is not None:
            refuse(error)
        return error is None

    def _warn(self, found: Found) -> None:
        with self._lock:
            hidden, self._has_warned = [] if self._has_warned else found.hidden, True
        for what, why in hidden:
            _log.warning(
                "group %s: Kafka does not show its %s there (%s): if plain Kafka consumers used this group, import its"
                " offsets first",
                self._group,
                what,
                why,
            )

    def _when_found(self, note: Callable[[Found | None], None]) -> None:
        with self._lock:
            found, now_s = self._found, time.monotonic()
            is_asking = now_s < self._asking_until_s
            if found is None:
                self._waiting.append(note)
                self._asking_until_s = self._asking_until_s if is_asking else now_s + OVERDUE_S
        if found is not None:
            note(found)
        elif not is_asking:
            self._send()

    def _send(self) -> None:
        try:
            maker = AdminMaker(partial(made, AdminClient, self._settings), self._settings)
            maker.make(
                lambda client: _Requests(self._group, client, self._note, reads_offsets=self._reads_offsets).send()
            )
        except KafkaException as error:  # no client can be started now
            _log.info("group %s: no look at Kafka: %s", self._group, error.args[0].str())
            self._note(None)

    def _note(self, found: Found | None) -> None:
        with self._lock:
            self._found, self._asking_until_s = found or self._found, 0.0
            waiting, self._waiting = self._waiting, []
            self._retry_at_s, self._pause_s = time.monotonic() + self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        for note in waiting:
            note(found)


class _Requests:
    """Requests for members and for offsets, with a client of their own; `done` gets None if Kafka does not answer."""

    def __init__(
        self, group: str, client: AdminClient, done: Callable[[Found | None], None], *, reads_offsets: bool
    ) -> None:
        self._group = group
        self._reads_offsets = reads_offsets
        self._done = done
        self._clients = [client]
        self._members: list[str] = []
        self._hidden: list[tuple[str, str]] = []

    def send(self) -> None:
        """Ask for the members, then for offsets."""
        future = self._clients[0].describe_consumer_groups([self._group], request_timeout=READ_TIMEOUT_S)[self._group]
        future.add_done_callback(self._described)

    def _described(self, future: Future[Any]) -> None:
        error = error_of(future)
        if error is None:
            self._members = [member.client_id for member in future.result().members]
        elif not self._is_known_to_be_nothing(error, "members"):
            self._end(None)
            return
        if not self._reads_offsets:
            self._end({})
            return
        request = [ConsumerGroupTopicPartitions(self._group)]
        answers = self._clients[0].list_consumer_group_offsets(request, request_timeout=READ_TIMEOUT_S)
        answers[self._group].add_done_callback(self._listed)

    def _listed(self, future: Future[Any]) -> None:
        error = error_of(future)
        if error is None:
            listed = future.result().topic_partitions
            self._end({(tp.topic, tp.partition): tp.offset for tp in listed if tp.offset >= 0})
        elif self._is_known_to_be_nothing(error, "offsets"):
            self._end({})
        else:
            self._end(None)

    def _is_known_to_be_nothing(self, error: KafkaError, what: str) -> bool:
        """Whether to continue as if there were nothing: the group is unknown, or the brokers will never answer."""
        if error.code() in PASSING_ERRORS:
            return False
        if error.code() != KafkaError.GROUP_ID_NOT_FOUND:
            self._hidden.append((what, error.str()))
        return True

    def _end(self, committed: dict[TopicPartition, int] | None) -> None:
        close_aside(self._clients)
        self._done(None if committed is None else Found(self._members, committed, self._hidden))
