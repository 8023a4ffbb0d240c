"""Versions of running servers, and the producer's ranges, shares and errors."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import click
import pytest
from confluent_kafka import KafkaError, KafkaException

from zkrebalancer.experiments.producer import (
    UNKNOWN_TOPIC_DEADLINE_S,
    NumberedProducer,
    ProducerError,
    parse_partitions,
    sent_at_us,
    turns,
)
from zkrebalancer.experiments.versions import kafka_version, own_versions, zookeeper_version
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.observe.events import EventLog


def test_the_version_of_zookeeper_comes_from_srvr() -> None:
    answer = "Zookeeper version: 3.8.4-9316c2a7a97e1666d8f4593f34dd6fc36ecc436c, built on 2024-02-12\nZxid: 0x1\n"
    assert zookeeper_version(answer) == "3.8.4"
    with pytest.raises(LocalClusterError, match="no version"):
        zookeeper_version("This ZooKeeper instance is not currently serving requests\n")


def test_the_version_of_kafka_comes_from_the_class_path(tmp_path: Path) -> None:
    assert kafka_version("java\0-cp\0/a/x-1.0.jar:/a/org.apache.kafka-kafka_2.13-3.9.1.jar\0kafka.Kafka\0") == "3.9.1"
    (tmp_path / "kafka_2.13-3.8.0.jar").touch()
    assert kafka_version(f"java\0-cp\0{tmp_path}/*\0kafka.Kafka\0") == "3.8.0"
    with pytest.raises(LocalClusterError, match=r"kafka_2\.13"):
        kafka_version("java\0-cp\0/a/x-1.0.jar\0kafka.Kafka\0")


def test_partitions_are_named_by_inclusive_ranges() -> None:
    assert parse_partitions(["a:0-1", "b:7-7"]) == [("a", 0), ("a", 1), ("b", 7)]
    for wrong in ("a", "a:3", "a:3-2", ":1-2"):
        with pytest.raises(click.BadParameter, match="NAME:FIRST-LAST"):
            parse_partitions([wrong])


class RestartedBroker:
    """Does not know the topic for the first two records."""

    def __init__(self) -> None:
        self.unknown_for = 2
        self.values: list[bytes] = []

    def __len__(self) -> int:
        return 0

    def produce(self, _topic: str, value: bytes, **_options: object) -> None:
        if self.unknown_for:
            self.unknown_for -= 1
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
        self.values.append(value)

    def poll(self, _timeout_s: float) -> None:
        pass


def test_an_unknown_topic_is_retried_with_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = RestartedBroker()
    monkeypatch.setattr("zkrebalancer.experiments.producer.Producer", lambda _settings: broker)
    producer = NumberedProducer("nowhere:1", [("t", 0)], EventLog(None, "p"))
    for _ in range(3):
        producer.produce(2)
    assert [value.split()[0] for value in broker.values] == [b"0", b"1"]
    assert [sent_at_us(value) > 1_700_000_000_000_000 for value in broker.values] == [True, True]
    broker.unknown_for = 1
    monkeypatch.setattr(producer, "_unknown_since_s", -UNKNOWN_TOPIC_DEADLINE_S)
    with pytest.raises(ProducerError, match="topic t"):
        producer.produce(1)


def test_partitions_reach_an_index_entry_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all first records alike: the broker indexes all partitions at once, and every record is late."""
    broker = RestartedBroker()
    broker.unknown_for = 0
    monkeypatch.setattr("zkrebalancer.experiments.producer.Producer", lambda _settings: broker)
    partitions = [("t", number) for number in range(4)]
    NumberedProducer("nowhere:1", partitions, EventLog(None, "p"), first_bytes=4_096).produce(8)
    sizes = [len(value) for value in broker.values]
    assert [size - sizes[0] for size in sizes] == [0, 1_024, 2_048, 3_072, 0, 0, 0, 0]
    assert {sent_at_us(value) > 1_700_000_000_000_000 for value in broker.values} == {True}
    assert [value.split()[0] for value in broker.values] == [b"0"] * 4 + [b"1"] * 4


def test_an_equal_load_takes_turns_and_a_skewed_one_depends_on_the_seed() -> None:
    partitions = [("t", number) for number in range(8)]
    assert list(islice(turns(partitions, 0.0, 1), 9)) == [*partitions, partitions[0]]
    skewed = list(islice(turns(partitions, 1.0, 1), 4_000))
    assert skewed == list(islice(turns(partitions, 1.0, 1), 4_000))
    assert skewed != list(islice(turns(partitions, 1.0, 2), 4_000))
    counts = sorted(Counter(skewed).values(), reverse=True)
    assert len(counts) == 8
    assert 1.7 < counts[0] / counts[1] < 2.3  # the second gets half of the first's share


def test_a_result_names_the_commit_that_ran() -> None:
    ours = own_versions()["zkrebalancer"]
    expected = version("zkrebalancer")
    if (Path(__file__).parents[3] / ".git").exists():
        assert re.fullmatch(rf"{re.escape(expected)} [0-9a-f]{{12}}\+?", ours), ours
    else:
        assert ours == expected
