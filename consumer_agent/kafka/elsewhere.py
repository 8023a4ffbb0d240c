"""What a group has at Kafka's brokers, looked at once before its first partition begins here.

A group of plain Kafka consumers keeps its offsets in Kafka. An agent that stores offsets in ZooKeeper knows nothing of
them, and would read everything again. While plain consumers run, both would read every partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from consumer_agent.errors import ConsumerError, GroupInUseError, OffsetsElsewhereError
from consumer_agent.kafka.client import AdminMaker, close_aside, made
from consumer_agent.kafka.offset_store import PASSING_ERRORS, READ_TIMEOUT_S, error_of
from consumer_agent.runtime.threads import new_lock
from zkrebalancer.protocol.fields import TopicPartition

MAX_NAMES_SHOWN = 3

_log = logging.getLogger(__name__)

Found = tuple[list[str], dict[TopicPartition, int]]  # client ids of members, committed offsets


class Answer(Protocol):
    """Receives what forbids to begin, and whether Kafka has answered at all."""

    def __call__(self, error: ConsumerError | None, *, is_known: bool) -> None:
        """Receive the answer."""


def fault(
    group: str, members: Collection[str], committed: Mapping[TopicPartition, int], starting: Collection[TopicPartition]
) -> ConsumerError | None:
    """Return why these partitions may not begin without a stored offset; None if they may.

    `members`: client ids of the group's members at Kafka's brokers; `committed`: the group's offsets in Kafka.
    """
    if members:
        some = ", ".join([*sorted(members)[:MAX_NAMES_SHOWN], *(["…"] if len(members) > MAX_NAMES_SHOWN else [])])
        return GroupInUseError(
            f"group {group} has members of Kafka's own protocol ({some}), which read the same records: stop them first;"
            " after a kill, Kafka needs their session timeout to notice"
        )
    known = sorted(committed.keys() & set(starting))
    if known:
        topic, number = known[0]
        return OffsetsElsewhereError(
            f"group {group} has offsets in Kafka, for example {committed[known[0]]} for {topic}/{number}, and none in"
            " ZooKeeper, where this consumer looks: it would not continue there. Set offsets_storage to dual or kafka;"
            f" or run `zkrebalancer groups offsets import {group} --from kafka`; or, to begin anew, set"
            " ignore_kafka_offsets to true"
        )
    return None


class LookAtKafka:
    """The one look of a consumer; later questions get the same answer. `answer` is called in librdkafka's thread."""

    def __init__(self, group: str, settings: Mapping[str, Any], *, reads_offsets: bool) -> None:
        """Prepare; no client exists before the first question. `reads_offsets`: not only members matter."""
        self._group = group
        self._settings = dict(settings)
        self._reads_offsets = reads_offsets
        self._lock = new_lock()
        self._found: Found | None = None

    def ask(self, starting: Collection[TopicPartition], answer: Answer) -> None:
        """Ask whether these partitions may begin. If brokers do not answer, ask again."""
        with self._lock:
            found = self._found
        if found is not None:
            answer(fault(self._group, (), found[1], starting), is_known=True)
            return
        done = partial(self._note, starting, answer)
        try:
            maker = AdminMaker(partial(made, AdminClient, self._settings), self._settings)
            maker.make(lambda client: _Requests(self._group, client, done, reads_offsets=self._reads_offsets).send())
        except KafkaException as error:  # no client can be started now
            _log.info("group %s: no look at Kafka: %s", self._group, error.args[0].str())
            done(None)

    def _note(
        self,
        starting: Collection[TopicPartition],
        answer: Answer,
        found: Found | None,
    ) -> None:
        if found is None:
            answer(None, is_known=False)
            return
        with self._lock:
            self._found = found
        answer(fault(self._group, *found, starting), is_known=True)


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
            self._end((self._members, {}))
            return
        request = [ConsumerGroupTopicPartitions(self._group)]
        answers = self._clients[0].list_consumer_group_offsets(request, request_timeout=READ_TIMEOUT_S)
        answers[self._group].add_done_callback(self._listed)

    def _listed(self, future: Future[Any]) -> None:
        error = error_of(future)
        if error is None:
            listed = future.result().topic_partitions
            self._end((self._members, {(tp.topic, tp.partition): tp.offset for tp in listed if tp.offset >= 0}))
        elif self._is_known_to_be_nothing(error, "offsets"):
            self._end((self._members, {}))
        else:
            self._end(None)

    def _is_known_to_be_nothing(self, error: KafkaError, what: str) -> bool:
        """Whether to go on as if there were nothing: the group is unknown, or brokers will never say."""
        if error.code() in PASSING_ERRORS:
            return False
        if error.code() != KafkaError.GROUP_ID_NOT_FOUND:
            _log.warning(
                "group %s: Kafka does not show its %s there (%s): if plain Kafka consumers used this group, import its"
                " offsets first",
                self._group,
                what,
                error.str(),
            )
        return True

    def _end(self, found: Found | None) -> None:
        close_aside(self._clients)
        self._done(found)
