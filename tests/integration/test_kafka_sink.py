"""Kafka as a sink, on a real broker: transactions, claims, and a consumer that comes late."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition

from consumer_agent import ConfigurationError, Consumer, ConsumerStateError, Record
from consumer_agent.region import Advance, Claim, ConsistentRegion, KafkaSink
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, Stage

ID, NEW_ID = "id-1 czxid-7", "id-2 czxid-9"
READ_TIMEOUT_S = 30.0
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"kafka-sink-{next(_numbers)}"


@pytest.fixture
def sink(stage: Stage) -> Iterator[KafkaSink]:
    yield from opened(stage)


@pytest.fixture
def other(stage: Stage) -> Iterator[KafkaSink]:
    """Return the sink of another consumer."""
    yield from opened(stage)


def opened(stage: Stage) -> Iterator[KafkaSink]:
    sink = KafkaSink({"bootstrap.servers": stage.cluster.bootstrap})
    yield sink
    sink.close()


def claim(sink: KafkaSink, group: str, stage: Stage, generation: int, **given: Any) -> int | None:
    """Claim partition 1 of the stage's topic, whose results go to partition 0."""
    wanted = Claim(
        (stage.topic, 1), generation, given.get("identity", ID), given.get("life", 0), given.get("offset", 10)
    )
    return sink.claim(group, [wanted]).get((stage.topic, 1))


def write(sink: KafkaSink, group: str, stage: Stage, advance: Advance, value: bytes) -> None:
    """Begin a transaction with a result."""
    assert sink.begin(group, {(stage.topic, 1): advance}) == set()
    sink.produce(record(stage), stage.topic, value, key=b"k", headers=[("h", b"1")], number=0)


def record(stage: Stage, partition: int = 1) -> Record:
    return Record(stage.topic, partition, 10, None, b"", (), None, 3)


def values(stage: Stage, count: int) -> list[bytes | None]:
    """Return the first committed results."""
    settings = {"bootstrap.servers": stage.cluster.bootstrap, "group.id": "values", "auto.offset.reset": "earliest"}
    reader = KafkaConsumer(settings)
    reader.assign([TopicPartition(stage.topic, 0, 0)])
    found = reader.consume(count, READ_TIMEOUT_S)
    reader.close()
    return [message.value() for message in found]


def test_claims_and_advances(sink: KafkaSink, other: KafkaSink, stage: Stage, group: str) -> None:
    assert claim(sink, group, stage, 3, identity="czxid-7") == 10
    write(sink, group, stage, Advance(10, 15, 3), b"first")
    sink.commit()
    write(sink, group, stage, Advance(15, 17, 3), b"rolled back")
    sink.rollback()
    write(sink, group, stage, Advance(15, 18, 3), b"second")
    sink.commit()
    assert sink.begin(group, {(stage.topic, 1): Advance(15, 18, 3)}) == {(stage.topic, 1)}  # it is at 18
    sink.rollback()
    assert claim(other, group, stage, 4, offset=0) == 18
    assert claim(sink, group, stage, 3) is None  # it claims late
    write(other, group, stage, Advance(18, 19, 4), b"third")
    other.commit()
    assert values(stage, 3) == [b"first", b"second", b"third"]
    assert claim(other, group, stage, 5, offset=0, identity=NEW_ID) == 0  # the topic was made anew
    assert claim(other, group, stage, 6, offset=3, identity=NEW_ID, life=4) == 3  # an operator has set the offsets
    assert claim(other, group, stage, 7, offset=0, identity=NEW_ID, life=4) == 3


def test_a_suspended_consumer_changes_nothing(sink: KafkaSink, other: KafkaSink, stage: Stage, group: str) -> None:
    """It has results in an open transaction while its successor claims, and commits afterwards."""
    claim(sink, group, stage, 3)
    write(sink, group, stage, Advance(10, 15, 3), b"of the former owner")
    assert claim(other, group, stage, 4) == 10
    write(other, group, stage, Advance(10, 12, 4), b"of its successor")
    with pytest.raises(KafkaException):
        sink.commit()
    sink.rollback()
    other.commit()
    assert claim(sink, group, stage, 3) is None
    write(other, group, stage, Advance(12, 13, 4), b"more")  # the late claim did not end its producer
    other.commit()
    assert values(stage, 2) == [b"of its successor", b"more"]
    assert claim(other, group, stage, 5) == 13


def test_what_is_written_in_a_transaction_that_will_be_rolled_back_is_dropped(
    sink: KafkaSink, stage: Stage, group: str
) -> None:
    """As it was: `produce` raised where every other sink lets the application write, so a region's loop ended."""
    claim(sink, group, stage, 3)
    for advances, refused in (({}, set()), ({(stage.topic, 1): Advance(11, 15, 3)}, {(stage.topic, 1)})):
        assert sink.begin(group, advances) == refused
        sink.produce(record(stage), stage.topic, b"dropped", number=0)
        sink.rollback()
    write(sink, group, stage, Advance(10, 11, 3), b"kept")
    sink.commit()
    assert values(stage, 1) == [b"kept"]
    with pytest.raises(ConsumerStateError, match="is not in the open transaction"):
        sink.produce(record(stage), stage.topic, b"x")


def test_misuse_is_refused(sink: KafkaSink, stage: Stage, group: str) -> None:
    with pytest.raises(ConfigurationError, match="KafkaSink: No such configuration property"):
        KafkaSink({"bootstrap.server": "x"})
    with pytest.raises(ConsumerStateError, match="is not in the open transaction"):
        sink.produce(record(stage, 0), stage.topic, b"x")


def test_a_region_from_topic_to_topic(sink: KafkaSink, stage: Stage) -> None:
    servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
    consumer = Consumer(**servers, group=stage.group, session_timeout_ms=SESSION_TIMEOUT_MS)
    consumer.subscribe([stage.topic])
    stage.produce([1], 5)
    with ConsistentRegion(consumer, name="copy") as region:
        consumer.poll(0)
        stage.wait_ack(stage.start(stage.wait_member(), 1))
        stored = 0
        for batch in region:
            with region.transaction(sink) as transaction:
                for one in batch:
                    transaction.produce(one, stage.topic, b"result %d" % one.offset, number=0)
            stored += len(batch)
            if stored == 5:
                break
    assert values(stage, 5) == [b"result %d" % number for number in range(5)]
