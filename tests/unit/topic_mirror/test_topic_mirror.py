"""The mirror's plan makes ZooKeeper's nodes equal to Kafka's metadata with the fewest changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.localcluster.ports import free_ports
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.cluster_nodes import decode_topic
from zkrebalancer.topic_mirror import kafka_metadata
from zkrebalancer.topic_mirror.kafka_metadata import Broker, KafkaMetadata, Topic, read_kafka
from zkrebalancer.topic_mirror.mirror import Nodes, missing_topics, plan

NOW_MS = 1_700_000_000_000
ONE_BROKER = {1: Broker("h", 9092, None)}
EMPTY = Nodes({}, {})


def kafka(**topics: Topic) -> KafkaMetadata:
    return KafkaMetadata(ONE_BROKER, frozenset(topics), topics)


def topic(topic_id: str, partition_count: int) -> Topic:
    return Topic(topic_id, dict.fromkeys(range(partition_count), (1,)))


def apply(nodes: Nodes, transactions: list[Multi]) -> Nodes:
    """Apply transactions to a model of the nodes; fails where ZooKeeper would."""
    contents = {f"/brokers/ids/{name}": content for name, content in nodes.brokers.items()}
    contents |= {f"/brokers/topics/{name}": content for name, content in nodes.topics.items()}
    for transaction in transactions:
        for operation in transaction.operations:
            if isinstance(operation, Create):
                assert operation.path not in contents
                contents[operation.path] = operation.content
            elif isinstance(operation, SetContent):
                assert operation.path in contents
                contents[operation.path] = operation.content
            else:
                assert isinstance(operation, Delete)
                del contents[operation.path]
    below = {
        parent: {path.rpartition("/")[2]: content for path, content in contents.items() if path.startswith(parent)}
        for parent in ("/brokers/ids/", "/brokers/topics/")
    }
    return Nodes(below["/brokers/ids/"], below["/brokers/topics/"])


def mirrored(metadata: KafkaMetadata) -> Nodes:
    return apply(EMPTY, plan(metadata, EMPTY, frozenset(), NOW_MS))


def test_a_new_topic_is_written_in_kafkas_format() -> None:
    nodes = mirrored(kafka(t=Topic("id1", {0: (1, 2), 1: (2, 1)})))
    assert json.loads(nodes.topics["t"]) == {
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "topic_id": "id1",
        "adding_replicas": {},
        "removing_replicas": {},
        "version": 3,
    }
    assert decode_topic(nodes.topics["t"], 0).partitions == {0, 1}


def test_a_broker_is_an_ephemeral_node_that_clients_can_use() -> None:
    (created,) = plan(kafka(), EMPTY, frozenset(), NOW_MS)[0].operations
    assert isinstance(created, Create)
    assert created.ephemeral
    document = json.loads(created.content)
    assert (document["host"], document["port"], document["endpoints"]) == ("h", 9092, ["PLAINTEXT://h:9092"])


def test_a_tls_broker_has_an_ssl_endpoint_and_no_plain_address() -> None:
    metadata = replace(kafka(), brokers={1: Broker("h", 9093, None, "SSL")})
    nodes = mirrored(metadata)
    document = json.loads(nodes.brokers["1"])
    assert (document["host"], document["port"], document["endpoints"]) == (None, -1, ["SSL://h:9093"])
    assert document["listener_security_protocol_map"] == {"SSL": "SSL"}
    assert plan(metadata, nodes, frozenset(), NOW_MS) == []
    assert len(plan(kafka(), nodes, frozenset(), NOW_MS)) == 1


def test_without_changes_nothing_is_written() -> None:
    metadata = kafka(t=topic("id1", 3))
    assert plan(metadata, mirrored(metadata), frozenset(), NOW_MS + 5) == []


def test_a_topic_that_grows_is_updated() -> None:
    nodes = mirrored(kafka(t=topic("id1", 2)))
    (transaction,) = plan(kafka(t=topic("id1", 4)), nodes, frozenset(), NOW_MS)
    (operation,) = transaction.operations
    assert isinstance(operation, SetContent)
    assert list(json.loads(operation.content)["partitions"]) == ["0", "1", "2", "3"]


def test_older_metadata_never_removes_partitions() -> None:
    nodes = mirrored(kafka(t=topic("id1", 4)))
    assert plan(kafka(t=topic("id1", 2)), nodes, frozenset(), NOW_MS) == []


def test_a_topic_is_deleted_after_missing_for_two_rounds() -> None:
    nodes = mirrored(kafka(t=topic("id1", 1)))
    assert plan(kafka(), nodes, frozenset(), NOW_MS) == []
    assert missing_topics(kafka(), nodes) == {"t"}
    assert plan(kafka(), nodes, {"t"}, NOW_MS) == [Multi((Delete("/brokers/topics/t"),))]


def test_a_topic_that_is_listed_but_not_described_stays() -> None:
    nodes = mirrored(kafka(t=topic("id1", 1)))
    metadata = KafkaMetadata(ONE_BROKER, frozenset({"t"}), {})
    assert plan(metadata, nodes, {"t"}, NOW_MS) == []


def test_a_topic_deleted_and_created_again_becomes_a_new_node_in_one_transaction() -> None:
    nodes = mirrored(kafka(t=topic("id1", 4)))
    (transaction,) = plan(kafka(t=topic("id2", 2)), nodes, frozenset(), NOW_MS)
    assert [type(operation) for operation in transaction.operations] == [Delete, Create]
    assert decode_topic(apply(nodes, [transaction]).topics["t"], 0).incarnation == "id2 czxid-0"


INVALID = [b"\xff", b"[]", b'{"topic_id":{}}', b'{"topic_id":[1],"partitions":{"0":[1]}}', b'{"partitions":5}']


@pytest.mark.parametrize("content", INVALID)
def test_an_invalid_node_is_replaced(content: bytes) -> None:
    """In `_topic_change`, look for the id in a set: a list there ends the mirror, at each start."""
    nodes = Nodes(mirrored(kafka()).brokers, {"t": content})
    assert mirrored(kafka(t=topic("id1", 1))) == apply(
        nodes, plan(kafka(t=topic("id1", 1)), nodes, frozenset(), NOW_MS)
    )


def test_a_broker_that_moves_is_updated_and_one_that_leaves_is_deleted() -> None:
    metadata = replace(kafka(), brokers={1: Broker("h", 1, None), 2: Broker("h", 2, "r")})
    nodes = mirrored(metadata)
    moved = plan(replace(kafka(), brokers={1: Broker("h", 7, None)}), nodes, frozenset(), NOW_MS)
    assert sorted(apply(nodes, moved).brokers) == ["1"]
    assert json.loads(apply(nodes, moved).brokers["1"])["port"] == 7


def test_reading_a_kafka_that_does_not_answer_raises_kafkas_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_metadata, "REQUEST_TIMEOUT_S", 0.3)
    (port,) = free_ports(1)
    with pytest.raises(KafkaException):
        read_kafka(AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}), "PLAINTEXT")


topics = st.builds(topic, st.sampled_from(["id1", "id2"]), st.integers(1, 4))
clusters = st.builds(
    lambda brokers, described: KafkaMetadata(brokers, frozenset(described), described),
    st.dictionaries(st.integers(1, 3), st.builds(Broker, st.just("h"), st.integers(1, 3), st.none() | st.just("r"))),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), topics),
)


@given(before=clusters, after=clusters)
def test_two_rounds_converge_from_any_state_and_the_third_changes_nothing(
    before: KafkaMetadata, after: KafkaMetadata
) -> None:
    shrunk = {
        name
        for name, one in after.topics.items()
        if name in before.topics
        and before.topics[name].topic_id == one.topic_id
        and len(before.topics[name].replicas) > len(one.replicas)
    }
    nodes = mirrored(before)
    missing = missing_topics(after, nodes)
    nodes = apply(nodes, plan(after, nodes, frozenset(), NOW_MS))
    nodes = apply(nodes, plan(after, nodes, missing, NOW_MS))
    assert plan(after, nodes, missing, NOW_MS) == []
    wanted = mirrored(after)
    assert nodes.topics.keys() == wanted.topics.keys()
    assert all(nodes.topics[name] == wanted.topics[name] for name in wanted.topics if name not in shrunk)
    assert nodes.brokers.keys() == wanted.brokers.keys()


def test_what_kafka_3_left_in_zookeeper_stays_and_only_a_reassignment_differs() -> None:
    """In `_topic_change`, compare bytes: after a move to KRaft, the first round rewrites every topic."""
    left = (
        b'{"removing_replicas":{},"partitions":{"0":[1],"1":[1]},"topic_id":"id1","adding_replicas":{%b},"version":3}'
    )
    metadata = kafka(t=topic("id1", 2))
    brokers = mirrored(metadata).brokers
    assert plan(metadata, Nodes(brokers, {"t": left % b""}), frozenset(), NOW_MS) == []
    (change,) = plan(metadata, Nodes(brokers, {"t": left % b'"0":[2]'}), frozenset(), NOW_MS)
    assert [type(one) for one in change.operations] == [SetContent]  # so it must not run beside Kafka's controller
