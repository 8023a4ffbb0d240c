"""Kafka's own offset store: a request that fails once is answered as failed, and the next one works."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from consumer_agent.kafka.offset_store import KafkaOffsetStore
from tests.support.futures import ended
from zkrebalancer.protocol.fields import TopicPartition

A, B = ("orders", 0), ("orders", 1)
OFFSETS = {A: (7, "a"), B: (8, "b")}


class Admin:
    """Kafka's admin client with a store; a call meets what is `raised` or `answered` before it works."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, tuple[int, str]] = {}
        self.raised: list[KafkaError] = []
        self.answered: list[KafkaError] = []

    def alter_consumer_group_offsets(self, request: Any, **_: float) -> dict[str, Future[Any]]:
        (wanted,) = request
        return self._answer(wanted, lambda tp: self.stored.update({(tp.topic, tp.partition): (tp.offset, tp.metadata)}))

    def list_consumer_group_offsets(self, request: Any, **_: float) -> dict[str, Future[Any]]:
        (wanted,) = request
        return self._answer(wanted, lambda _: None)

    def _answer(self, wanted: ConsumerGroupTopicPartitions, store: Any) -> dict[str, Future[Any]]:
        for error in self.raised:
            self.raised = []
            raise KafkaException(error)
        future: Future[Any] = Future()
        if self.answered:
            future.set_exception(KafkaException(self.answered.pop()))
        else:
            for partition in wanted.topic_partitions or ():
                store(partition)
            found = [
                KafkaPartition(*tp, *self.stored.get(tp, (-1001, "")))
                for tp in ((one.topic, one.partition) for one in wanted.topic_partitions or ())
            ]
            future.set_result(ConsumerGroupTopicPartitions(wanted.group_id, found))
        return {wanted.group_id: future}


class Setting:
    def __init__(self) -> None:
        self.admin = Admin()
        with mock.patch("consumer_agent.kafka.group_admin.AdminClient", return_value=self.admin):
            self.store = KafkaOffsetStore("g", {})

    def commit(self) -> tuple[dict[TopicPartition, str], bool]:
        answers: list[tuple[dict[TopicPartition, str], bool]] = []

        def answer(failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None:
            answers.append((dict(failed), is_hopeless))

        self.store.commit(OFFSETS, 1.0, answer)
        (answered,) = answers
        return answered

    def read(self) -> Mapping[TopicPartition, tuple[int, str] | None] | None:
        answers: list[Mapping[TopicPartition, tuple[int, str] | None] | None] = []
        self.store.read([A, B], answers.append)
        (answered,) = answers
        return answered


@pytest.mark.parametrize("when", ["raised", "answered"])
@pytest.mark.parametrize(
    ("code", "is_hopeless", "text"),
    [
        (KafkaError._TIMED_OUT, False, "refused once"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True, "the right to READ the group is missing (refused once)"),
    ],
)
def test_a_request_that_fails_once_is_answered_and_the_next_one_works(
    when: str, code: int, is_hopeless: bool, text: str
) -> None:
    setting = Setting()
    getattr(setting.admin, when).append(KafkaError(code, "refused once"))
    assert setting.commit() == ({A: text, B: text}, is_hopeless)
    assert setting.read() == {}
    getattr(setting.admin, when).append(KafkaError(code, "refused once"))
    assert setting.read() is None
    assert setting.commit() == ({}, False)
    assert setting.read() == OFFSETS


def test_what_kafka_calls_retriable_is_tried_again() -> None:
    """And code -1, of which Kafka knows nothing; every other code of its protocol is told at once."""
    retriable = {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 72, 74, 75, 78, 88, 89, 100, 103}
    of_sessions_and_elections = {70, 71, 80, 83, 84, 106, 122, 123}
    setting = Setting()
    for code in {-1, *range(1, 134)} - of_sessions_and_elections:
        setting.admin.answered.append(KafkaError(code))
        assert setting.commit()[1] is not (code in retriable or code == KafkaError.UNKNOWN), code


def test_what_is_refused_in_part_is_named() -> None:
    setting = Setting()
    answer: Future[Any] = Future()
    partition = mock.Mock(topic="orders", partition=1, error=KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "not a member"))
    answer.set_result(mock.Mock(topic_partitions=[mock.Mock(error=None), partition]))
    with mock.patch.object(setting.admin, "alter_consumer_group_offsets", return_value={"g": answer}):
        assert setting.commit() == ({B: "the group has members of Kafka's own protocol (not a member)"}, True)


def test_a_topic_that_is_refused_for_good_keeps_no_other_from_being_tried_again() -> None:
    """In `KafkaOffsetStore.commit`, ask for any of them: while the coordinator moved, final offsets were not stored."""
    setting = Setting()
    answer: Future[Any] = Future()
    passing, hopeless = KafkaError(KafkaError.NOT_COORDINATOR), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    refused = [mock.Mock(topic=topic, partition=0, error=why) for topic, why in (("a", passing), ("b", hopeless))]
    answer.set_result(mock.Mock(topic_partitions=refused))
    with mock.patch.object(setting.admin, "alter_consumer_group_offsets", return_value={"g": answer}):
        failed, is_hopeless = setting.commit()
    assert failed.keys() == {("a", 0), ("b", 0)}
    assert not is_hopeless


def test_what_may_not_be_read_is_named_a_topic_or_the_group(caplog: pytest.LogCaptureFixture) -> None:
    """The topics may have the group's name. Each line once, until the right is back."""
    setting = Setting()
    topics: list[tuple[str, KafkaError | None]] = []

    def listed(*_: object, **__: object) -> dict[str, Future[Any]]:
        found = [mock.Mock(topic=name, partition=0, offset=-1001, metadata="", error=error) for name, error in topics]
        return {"g": ended(mock.Mock(topic_partitions=found))}

    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no")
    setting.admin.answered.append(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no"))
    assert setting.read() is None
    with mock.patch.object(setting.admin, "list_consumer_group_offsets", listed):
        topics = [("a", None), ("g", refused), ("orders", refused)]
        assert [setting.read(), setting.read()] == [{A: None, B: None}] * 2
        topics = [("g", None), ("orders", refused)]
        assert setting.read() == {A: None, B: None}
        topics = [("g", refused), ("orders", None)]
        assert setting.read() == {B: None}  # of it, there is no answer; of the other, nothing is stored
    told = [text.partition(":")[0] for text in caplog.messages]
    assert told == ["group g", "topic g", "topic orders", "topic g"]


def test_a_partition_that_is_refused_costs_no_other_ones_offset() -> None:
    """In `KafkaOffsetStore.read`, answer nothing. Or take it for one without a stored offset: it would begin anew."""
    setting = Setting()
    unstable = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, "a transaction is open")
    found = [
        mock.Mock(topic="orders", partition=0, offset=7, metadata="a", error=None),
        mock.Mock(topic="orders", partition=1, offset=-1001, metadata="", error=unstable),
    ]
    answer = {"g": ended(mock.Mock(topic_partitions=found))}
    with mock.patch.object(setting.admin, "list_consumer_group_offsets", return_value=answer):
        assert setting.read() == {A: (7, "a"), B: None}


def test_closing_it_leaves_the_last_reference_to_a_thread_for_the_client_waits_for_the_look_up_of_a_name() -> None:
    """In `KafkaOffsetStore.close`, drop the client."""
    ended_in: list[threading.Thread] = []
    ended = threading.Event()

    class Slow(Admin):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def __del__(self) -> None:
            ended_in.append(threading.current_thread())
            ended.set()

    with mock.patch("consumer_agent.kafka.group_admin.AdminClient", Slow):
        store = KafkaOffsetStore("g", {})
    store.close()
    store.close()
    ended.wait()
    assert ended_in != [threading.current_thread()]
