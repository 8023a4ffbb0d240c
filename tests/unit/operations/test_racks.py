"""Racks of replicas, read from what brokers and Kafka's controller wrote."""

from __future__ import annotations

from typing import cast

from tests.unit.operations.model_client import ModelClient
from zkrebalancer.assignment.model import Racks, to_racks
from zkrebalancer.operations.nodes import names_below
from zkrebalancer.operations.racks import read_racks
from zkrebalancer.protocol import paths
from zkrebalancer.runtime.zk import BlockingZk

TOPIC = b'{"partitions":{"0":[1,2],"1":[2,3],"2":[9]}}'


def with_brokers() -> ModelClient:
    client = ModelClient()
    for name, content in (
        ("1", b'{"rack":"north"}'),
        ("2", b'{"rack":"south"}'),
        ("3", b"{}"),
        ("4", b"no document"),
        ("five", b'{"rack":"west"}'),
    ):
        client.create(f"{paths.BROKER_IDS}/{name}", content)
    client.create(paths.topic("t"), TOPIC)
    client.create(paths.topic("broken"), b"[")
    return client


def racks_of(client: ModelClient, topics: dict[str, int]) -> Racks:
    return read_racks(cast("BlockingZk", client), topics)


def assert_same(found: Racks, expected: Racks) -> None:
    assert list(found.sets) == list(expected.sets)
    assert {topic: list(rows) for topic, rows in found.of_topic.items()} == {
        topic: list(rows) for topic, rows in expected.of_topic.items()
    }


def test_each_partition_has_the_racks_of_its_replicas() -> None:
    assert_same(racks_of(with_brokers(), {"t": 3}), to_racks({"t": [["north", "south"], ["south"], []]}))


def test_partitions_that_the_topic_does_not_tell_of_have_none() -> None:
    assert_same(racks_of(with_brokers(), {"t": 4}), to_racks({"t": [["north", "south"], ["south"], [], []]}))
    assert_same(racks_of(with_brokers(), {"t": 1}), to_racks({"t": [["north", "south"]]}))


def test_topics_that_are_missing_or_cannot_be_read_are_left_out() -> None:
    assert_same(racks_of(with_brokers(), {"t": 1, "broken": 1, "none": 1}), to_racks({"t": [["north", "south"]]}))


def test_without_racks_nothing_is_known() -> None:
    client = ModelClient()
    client.create(paths.topic("t"), TOPIC)
    assert_same(racks_of(client, {"t": 3}), Racks())
    client.create(f"{paths.BROKER_IDS}/1", b"{}")
    assert_same(racks_of(client, {"t": 3}), Racks())


def test_what_stands_below_a_node() -> None:
    client = with_brokers()
    assert names_below(cast("BlockingZk", client), paths.BROKER_IDS) == ("1", "2", "3", "4", "five")
    assert names_below(cast("BlockingZk", client), "/nothing") == ()
