"""What Kafka is asked of partitions: only what can be answered at once."""

from __future__ import annotations

from typing import cast
from unittest import mock

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from consumer_agent.kafka.offset_queries import OffsetQueries

NOBODY = -1
A, B, C = (("orders", number) for number in range(3))


class Client:
    """librdkafka's consumer above topic "orders", whose partitions have these leaders; every offset is 7."""

    def __init__(self, *leaders: int) -> None:
        self.leaders = leaders
        self.is_cut_off = False
        self.described = 0
        self.asked: list[list[int]] = []

    @property
    def consumer(self) -> KafkaConsumer:
        return cast("KafkaConsumer", self)

    def list_topics(self, topic: str, **_: float) -> mock.Mock:
        self.described += 1
        if self.is_cut_off:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        partitions = {number: mock.Mock(leader=leader) for number, leader in enumerate(self.leaders)}
        return mock.Mock(topics={topic: mock.Mock(partitions=partitions)})

    def offsets_for_times(self, asked: list[TopicPartition], **_: float) -> list[TopicPartition]:
        self.asked.append([one.partition for one in asked])
        if self.is_cut_off:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(one.topic, one.partition, OFFSET_END if one.offset > 0 else 7) for one in asked]


@pytest.fixture
def came_back() -> mock.Mock:
    return mock.Mock()


@pytest.fixture
def enquiry(came_back: mock.Mock) -> OffsetQueries:
    return OffsetQueries("b:1", came_back)


def test_what_has_no_leader_yet_holds_up_no_answer(enquiry: OffsetQueries) -> None:
    client = Client(1, NOBODY, 2)
    assert enquiry.offsets([A, B, C], "earliest", client.consumer) == {A: 7, B: None, C: 7}
    client.leaders = (1, 2, 2)
    assert enquiry.offsets([B], "earliest", client.consumer) == {B: 7}
    assert client.asked == [[0, 2], [1]]


def test_where_nobody_leads_the_client_may_wait_for_leaders(enquiry: OffsetQueries) -> None:
    client = Client(NOBODY)
    assert enquiry.offsets([A, B], "latest", client.consumer) == {A: 7, B: 7}
    assert client.asked == [[0, 1]]
    enquiry.refresh([A], client.consumer)  # it answered, so it is led
    assert client.described == 1


def test_a_topic_is_described_until_all_that_matters_has_had_a_leader(enquiry: OffsetQueries) -> None:
    client = Client(1, NOBODY)
    for partitions, described in (([A], 1), ([A], 1), ([B], 2), ([C], 3)):
        enquiry.refresh(partitions, client.consumer)
        assert client.described == described
    client.leaders = (1, 1, 1)
    for partitions, described in (([B, C], 4), ([A, B, C], 4)):
        enquiry.refresh(partitions, client.consumer)
        assert client.described == described


def test_what_had_a_leader_once_is_asked_for_though_it_may_have_none_now(enquiry: OffsetQueries) -> None:
    client = Client(1)
    enquiry.refresh([A], client.consumer)
    client.leaders = (NOBODY,)
    enquiry.offsets([A], "latest", client.consumer)
    assert client.asked == [[0]]


def test_no_answer_is_none_and_every_call_that_came_back_counts(enquiry: OffsetQueries, came_back: mock.Mock) -> None:
    client = Client(1)
    enquiry.refresh([A], client.consumer)
    client.is_cut_off = True
    assert enquiry.offsets([A, B], "latest", client.consumer) == {A: None, B: None}
    assert came_back.call_count == 3


def test_a_time_after_the_last_record_is_the_end(enquiry: OffsetQueries) -> None:
    assert enquiry.offsets([A], 1_700_000_000_000, Client(1).consumer) == {A: 7}
