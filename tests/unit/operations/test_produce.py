"""Records are written to librdkafka's own mock of a cluster: one broker in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from zkrebalancer.operations import kafka_offsets, topics
from zkrebalancer.operations.topics import TopicError, produce
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime.kafka import fault

PARTITIONS = 4  # of every topic of the mock, which creates those that are asked for


@pytest.fixture(scope="module")
def kafka() -> Iterator[dict[str, str]]:
    """Yield the settings of clients; the broker lives as long as the client that made it."""
    owner = mock()
    yield address_of(owner)
    owner.flush(1)


def mock() -> Producer:
    return Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0})


def address_of(owner: Producer) -> dict[str, str]:
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    return {"bootstrap.servers": f"{broker.host}:{broker.port}"}


def stored(kafka: dict[str, str], topic: str) -> list[list[bytes]]:
    """Return the records of each partition."""
    asked = [(topic, number) for number in range(PARTITIONS)]
    ends = kafka_offsets.known_log_ends(kafka, asked)
    consumer = Consumer({**kafka, "group.id": "test", "enable.auto.commit": False, "enable.partition.eof": False})
    records: list[list[bytes]] = [[] for _ in asked]
    consumer.assign([TopicPartition(name, number, 0) for name, number in asked])
    for _ in range(sum(ends.values())):
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        records[partition].append(value)
    consumer.close()
    return records


def test_records_go_to_the_partitions_in_turn(kafka: dict[str, str]) -> None:
    produced = produce(kafka, "in-turn", [b"%d" % number for number in range(6)], None)

    assert (produced.records, produced.partitions) == (6, PARTITIONS)
    assert stored(kafka, "in-turn") == [[b"0", b"4"], [b"1", b"5"], [b"2"], [b"3"]]


def test_a_setting_that_only_producers_look_at_is_refused_in_one_line(kafka: dict[str, str]) -> None:
    settings = {**kafka, "linger.ms": "60000"}
    assert fault(settings) is None
    with pytest.raises(ConfigurationError, match=r"^no client of Kafka at .*: .*linger\.ms"):
        produce(settings, "in-turn", [], None)


def test_a_rate_is_kept(kafka: dict[str, str]) -> None:
    begun_s = time.monotonic()
    produced = produce(kafka, "slowly", [b"x"] * 5, 50.0)

    assert produced.records == 5
    assert time.monotonic() - begun_s >= produced.elapsed_s >= 4 / 50  # the fifth is sent after four intervals


def test_a_full_queue_is_waited_for(kafka: dict[str, str]) -> None:
    few = {**kafka, "queue.buffering.max.messages": "2"}

    assert produce(few, "full", [b"%d" % number for number in range(9)], None).records == 9
    assert sum(map(len, stored(kafka, "full"))) == 9


def test_after_an_interrupt_what_was_sent_is_waited_for(kafka: dict[str, str]) -> None:
    def values() -> Iterator[bytes]:
        yield b"0"
        yield b"1"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        produce(kafka, "interrupted", values(), None)
    assert stored(kafka, "interrupted") == [[b"0"], [b"1"], [], []]


def test_records_that_are_not_stored_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "DELIVERY_TIMEOUT_MS", 200)
    owners = [mock()]
    kafka = address_of(owners[0])

    def values() -> Iterator[bytes]:
        owners.clear()  # the broker is gone
        yield b"0"
        yield b"1"

    with pytest.raises(TopicError, match=r"topic late: 2 of 2 records were not stored: (?!None)."):
        produce(kafka, "late", values(), None)


def test_a_record_that_is_too_large_is_refused(kafka: dict[str, str]) -> None:
    with pytest.raises(TopicError, match=r"topic large: a record was rejected: .*too large"):
        produce({**kafka, "message.max.bytes": "1000"}, "large", [b"x" * 2_000], None)


def test_a_topic_that_does_not_exist(kafka: dict[str, str]) -> None:
    with pytest.raises(TopicError, match=r"topic a b does not exist at 127.0.0.1:.*: create it with"):
        produce({**kafka, "allow.auto.create.topics": "false"}, "a b", [b"x"], None)


def test_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 0.2)
    nobody = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(TopicError, match=r"^topic t: Kafka at 127.0.0.1:1: .*[^.] \(.*Connection refused.*\)$"):
        produce(nobody, "t", [b"x"], None)
    with pytest.raises(TopicError, match=r"^topic t was not created: Kafka at 127.0.0.1:1: .*\(.*refused.*\)$"):
        topics.create_topic(nobody, "t", 1)
