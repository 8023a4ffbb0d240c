"""Rounds of the topic mirror on a ZooKeeper in memory: what it may not read, or not delete, concerns no other topic."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import gevent
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from gevent import socket

from tests.support.deadlines import WITHIN_S
from tests.support.futures import ended
from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from tests.unit.topic_mirror.test_topic_mirror import kafka, topic
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Multi, Refusal, Reply, SetContent
from zkrebalancer.protocol.cluster_nodes import decode_topic, is_same_topic
from zkrebalancer.protocol.errors import ConfigurationError, ZooKeeperUnavailableError
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.runtime.kafka import ConnectionErrors
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.zk import BlockingZk
from zkrebalancer.topic_mirror import mirror
from zkrebalancer.topic_mirror.kafka_metadata import KafkaMetadata, read_kafka
from zkrebalancer.topic_mirror.mirror import Mirror


class MirrorClient(ModelClient):
    """A client with a mirror's rights: those that the model denies."""

    def __init__(self) -> None:
        super().__init__()
        self.performed: list[Call] = []
        self.is_connected = True

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if not self.is_connected:
            raise ZooKeeperUnavailableError("the connection broke")
        self.performed.append(call)
        reply = self.model.perform(call)
        require_expected(call, reply, expected)
        return reply

    def topics(self) -> dict[str, tuple[int, str]]:
        """Return topic -> partitions and incarnation."""
        nodes = {name: self.model.nodes[paths.topic(name)] for name in self.model.children(paths.BROKER_TOPICS)}
        known = {name: decode_topic(node.content, node.created_zxid) for name, node in nodes.items()}
        return {name: (one.count, one.incarnation) for name, one in known.items()}


def new_mirror() -> Mirror:
    return Mirror({"bootstrap.servers": "kafka:9092"}, "zookeeper:2181", 1.0, Notifier({}))


def test_a_setting_that_is_refused_at_the_start_is_one_line() -> None:
    one = Mirror({"bootstrap.servers": "kafka:9092", "debug": "nonsense"}, "zookeeper:2181", 1.0, Notifier({}))
    with pytest.raises(ConfigurationError, match=r"^no client of Kafka at kafka:9092: "):
        one.run()


def test_between_rounds_the_watchdog_is_fed_and_zookeeper_is_asked(tmp_path: Path) -> None:
    """In `Mirror.rest`, sleep once: from 60 s on, systemd ends each mirror before its second round."""
    address, asked = str(tmp_path / "notify"), list[Call]()

    class Client(MirrorClient):
        def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
            asked.append(call)
            return super().perform(call, expected)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(WITHIN_S)
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000"})
        one = Mirror({"bootstrap.servers": "kafka:9092"}, "zookeeper:2181", 3_600.0, notifier)
        resting = gevent.spawn(one.rest, cast("BlockingZk", Client()))
        for count in range(1, 4):
            assert systemd.recv(4_096).endswith(b"WATCHDOG=1")
            assert len(asked) >= count
        resting.kill()


def rounds(one: Mirror, client: MirrorClient, metadata: KafkaMetadata, count: int = 3) -> None:
    for _ in range(count):
        one.write(cast("BlockingZk", client), metadata)


def mirrored(metadata: KafkaMetadata) -> tuple[Mirror, MirrorClient]:
    one, client = new_mirror(), MirrorClient()
    rounds(one, client, metadata, 2)  # the first one makes the parents
    assert client.topics().keys() == metadata.topics.keys()
    return one, client


def as_zookeeper_mode_left_it(client: MirrorClient, name: str, partitions: int = 2) -> None:
    for number in range(partitions):
        client.create(f"{paths.topic(name)}/partitions/{number}/state", b"{}")


@pytest.mark.parametrize("limit", [1_000, 100_000])
def test_a_topic_that_is_created_again_gets_a_new_node_although_kafka_left_nodes_below_it(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In `carry_out`, only note what is not empty: the offsets of the former topic would be those of the new one."""
    one, client = mirrored(kafka(t=topic("id1", 20), u=topic("id2", 1)))
    monkeypatch.setattr(client, "request_limit", RequestLimit(limit), raising=False)
    as_zookeeper_mode_left_it(client, "t", 20)
    before = client.topics()["t"][1]
    client.create("/controller", b"{}")  # KRaft's controller leaves a persistent one
    rounds(one, client, kafka(t=topic("id3", 2), u=topic("id2", 1)))
    count, after = client.topics()["t"]
    assert count == 2
    assert not is_same_topic(before, after)
    assert not client.model.children(paths.topic("t"))

    as_zookeeper_mode_left_it(client, "t")
    rounds(one, client, kafka(u=topic("id2", 1)))
    assert client.topics().keys() == {"u"}


def test_while_kafka_keeps_its_topics_in_zookeeper_nothing_of_them_is_deleted() -> None:
    """In `_carry_out_above_others`, do not look who is the controller."""
    one, client = mirrored(kafka(t=topic("id1", 1)))
    as_zookeeper_mode_left_it(client, "t")
    session = client.model.open()
    client.model.perform(Multi((Create("/controller", b"{}", ephemeral=True),)), session.session_id)
    nodes = {path for path in client.model.nodes if path.startswith(paths.topic("t"))}
    rounds(one, client, kafka())
    assert {path for path in client.model.nodes if path.startswith(paths.topic("t"))} == nodes
    assert one.health().faults == ["ZooKeeper refuses 1 nodes or topics"]
    client.model.end(session)
    rounds(one, client, kafka())
    assert not client.topics()


def test_a_mirror_beside_brokers_that_write_these_nodes_themselves_writes_none() -> None:
    """In `Mirror._make_equal`, do not look whose nodes they are: a broker that starts loses its registration."""
    one, client = new_mirror(), MirrorClient()
    session = client.model.open()
    client.model.perform(Multi((Create("/controller", b"{}", ephemeral=True),)), session.session_id)
    client.create(f"{paths.BROKER_IDS}/2")  # it registers before others know it
    client.create(paths.topic("u"))
    before = dict(client.model.nodes)
    rounds(one, client, kafka(t=topic("id1", 1)))
    assert client.model.nodes == before
    assert one.health().faults == ["ZooKeeper refuses 1 nodes or topics"]
    client.model.end(session)
    rounds(one, client, kafka(t=topic("id1", 1)))
    assert client.topics().keys() == {"t"}


def test_a_mirror_that_is_led_to_another_cluster_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """In `Mirror._make_equal`, believe any cluster: all groups lose their topics, and then their offsets."""
    client = MirrorClient()
    rounds_with(new_mirror(), client, Guarded(t="id1"), 2)
    before = dict(client.model.nodes)
    assert json.loads(before["/cluster/id"].content) == {"version": "1", "id": "cluster-1"}
    other = Guarded(u="id2")
    other.cluster_id = "cluster-2"
    one = new_mirror()
    with caplog.at_level(logging.WARNING, mirror.__name__):
        rounds_with(one, client, other, 5)
    assert client.model.nodes == before
    assert one._seen.refused == 1
    told = "/cluster/id: it names the Kafka cluster 'cluster-1', and the one behind --bootstrap is cluster-2: "
    assert [line.partition("nothing is mirrored")[0] for line in caplog.messages] == [told]
    client.perform(Multi((Delete("/cluster/id"),)))  # as the line says
    rounds_with(one, client, other, 3)
    assert client.topics().keys() == {"u"}


def test_a_name_that_brokers_of_a_former_cluster_have_left_stops_no_mirror() -> None:
    """In `_whose`, believe the name alone: after an upgrade, a mirror that had worked would write nothing."""
    client = MirrorClient()
    rounds_with(new_mirror(), client, Guarded(t="id1", u="id2"), 2)
    client.set("/cluster/id", b'{"version":"1","id":"former"}')
    rounds_with(new_mirror(), client, Guarded(t="id1", v="id3"), 3)
    assert client.topics().keys() == {"t", "v"}


@pytest.mark.parametrize("content", [b"", b'{"id":["cluster-1"]}', b"\xff", None])
def test_a_cluster_that_nobody_names_is_mirrored(content: bytes | None) -> None:
    """In `_whose`, look for the name in a set, or end if the right to note it is missing."""
    client = MirrorClient()
    if content is None:
        client.model.denied.add(("", "/cluster", Right.CREATE))
    else:
        client.create("/cluster/id", content)
    rounds_with(new_mirror(), client, Guarded(t="id1"), 2)
    assert client.topics().keys() == {"t"}


def test_after_a_round_without_zookeeper_nothing_counts_that_was_found_before() -> None:
    """In `Mirror.write`, go on with the topics that were missing, or with a state that had nothing to do."""
    both, one_left = kafka(t=topic("id1", 1), u=topic("id2", 1)), kafka(u=topic("id2", 1))
    one, client = mirrored(both)
    for is_connected, is_there in ((True, True), (False, True), (True, True), (True, False)):
        client.is_connected = is_connected
        rounds(one, client, one_left, 1)
        assert ("t" in client.topics()) is is_there
    rounds(one, client, both)
    client.is_connected = False
    rounds(one, client, both, 1)
    client.is_connected = True
    client.perform(Multi((SetContent(paths.topic("t"), b"{}"),)))
    rounds(one, client, both, 1)
    assert client.topics()["t"][0] == 1


def test_a_broker_that_lags_does_not_bring_a_former_topic_back() -> None:
    """In `Mirror.write`, plan with all that Kafka says."""
    old, new = kafka(t=topic("id1", 1)), kafka(t=topic("id2", 1))
    one, client = mirrored(old)
    rounds(one, client, new, 2)
    _count, after = client.topics()["t"]
    assert after.startswith("id2 ")
    for _ in range(10):
        rounds(one, client, old, 4)
        rounds(one, client, new, 1)
    assert client.topics()["t"][1] == after


@pytest.mark.parametrize("path", [paths.topic("t"), f"{paths.BROKER_IDS}/1"])
def test_a_node_that_may_not_be_read_concerns_no_other(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """In `_contents`, expect only that a node is gone; in `plan`, take a refused node for a missing one."""
    one, client = mirrored(kafka(t=topic("id1", 1), u=topic("id2", 1)))
    client.model.denied.add(("", path, Right.READ))
    with caplog.at_level(logging.WARNING, mirror.__name__):
        rounds(one, client, kafka(t=topic("id1", 1), v=topic("id3", 1)))
    assert client.topics().keys() == {"t", "v"}
    assert sum(path in record.getMessage() for record in caplog.records) == 1
    assert one.health().faults == ["ZooKeeper refuses 1 nodes or topics"]
    client.model.denied.clear()
    rounds(one, client, kafka(t=topic("id1", 3), v=topic("id3", 1)), 1)
    assert client.topics()["t"][0] == 3
    assert not one.health().faults


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"\xff"], ids=lambda b: b[:5])
def test_other_bytes_end_no_mirror(content: bytes) -> None:
    """In `_read_document`, expect only a ValueError."""
    metadata = kafka(t=topic("id1", 1), u=topic("id2", 1))
    one, client = mirrored(metadata)
    before = client.topics()
    for path in (paths.topic("t"), f"{paths.BROKER_IDS}/1"):
        client.set(path, content)
    one._look_us = 0  # so that the next round reads contents
    rounds_with(one, client, Guarded(t="id1", u="id2"), 3)
    assert client.topics()["u"] == before["u"]
    assert is_same_topic(client.topics()["t"][1], before["t"][1])
    assert json.loads(client.model.nodes[f"{paths.BROKER_IDS}/1"].content)["host"] == "h"


def test_a_topic_that_gets_an_id_keeps_its_node_and_its_offsets() -> None:
    """In `_topic_change`, let no id differ from an id: marks from before Kafka 2.8 name only the node."""
    one, client = mirrored(kafka(t=topic("id1", 1)))
    document = json.loads(client.model.nodes[paths.topic("t")].content)
    del document["topic_id"]
    client.set(paths.topic("t"), json.dumps(document).encode())
    before = client.topics()["t"][1]
    rounds(one, client, kafka(t=topic("id1", 2)))
    count, after = client.topics()["t"]
    assert count == 2
    assert is_same_topic(before, after)


def test_a_topic_whose_node_would_be_too_large_concerns_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `carry_out`, send what does not fit."""
    one, client = mirrored(kafka(u=topic("id2", 1)))
    monkeypatch.setattr(client, "request_limit", RequestLimit(1_000), raising=False)
    rounds(one, client, kafka(t=topic("id1", 500), u=topic("id2", 2)))
    assert client.topics()["u"][0] == 2
    assert "t" not in client.topics()
    assert one.health().faults == ["ZooKeeper refuses 1 nodes or topics"]


def test_a_topic_that_kafka_does_not_describe_stays_and_concerns_no_other() -> None:
    """In `read_kafka`, raise whatever is the error of a topic."""
    admin = cast(
        "AdminClient", Described(t=KafkaError.TOPIC_AUTHORIZATION_FAILED, u=None, gone=KafkaError.UNKNOWN_TOPIC_OR_PART)
    )
    metadata = read_kafka(admin, "PLAINTEXT")
    assert metadata.names == {"t", "u", "gone"}
    assert metadata.topics.keys() == {"u"}
    assert metadata.refused.keys() == {"t"}
    one, client = mirrored(kafka(t=topic("id1", 1)))
    rounds(one, client, metadata)
    assert client.topics().keys() == {"t", "u"}
    assert one.health().faults == ["Kafka refuses 1 nodes or topics"]


def test_if_kafka_describes_nothing_the_round_fails() -> None:
    codes = dict.fromkeys("tu", KafkaError._TIMED_OUT)  # the only name
    with pytest.raises(KafkaException):
        read_kafka(cast("AdminClient", Described(**codes)), "PLAINTEXT")


def rounds_with(one: Mirror, client: MirrorClient, cluster: Guarded, count: int) -> None:
    for _ in range(count):
        one._round(cast("BlockingZk", client), cast("AdminClient", cluster), ConnectionErrors())


def test_topics_that_may_no_longer_be_described_are_not_taken_for_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """In `read_kafka`, ask for listed topics only: a rule that was removed stops all groups, silently.

    In `Mirror.write`, count such a round as refused: `TopicMirrorFails` would say that no topic is mirrored.
    """
    one, client = mirrored(kafka(t=topic("id1", 1), u=topic("id2", 1), v=topic("id3", 1)))
    cluster, before = Guarded(t="id1", u="id2", v="id3"), client.topics()
    cluster.hidden |= {"t", "u"}
    with caplog.at_level(logging.WARNING, mirror.__name__):
        rounds_with(one, client, cluster, 5)
    assert client.topics() == before
    assert one.health().faults == ["Kafka refuses 2 nodes or topics"]
    assert one._seen.undescribed == 2
    assert one._seen.rounds["refused"] == 0
    assert [line.partition("), ")[2] for line in caplog.messages] == ["which stay as they are: t, u"]
    del cluster.topics["v"]
    rounds_with(one, client, cluster, 2)
    assert client.topics().keys() == {"t", "u"}

    del cluster.topics["t"]
    cluster.hidden.clear()
    rounds_with(one, client, cluster, 1)
    assert client.topics().keys() == {"t", "u"}  # a broker that lags may not know it yet
    rounds_with(one, client, cluster, 1)
    assert client.topics().keys() == {"u"}
    assert not one.health().faults
    assert one._seen.undescribed == 0


def test_a_login_without_any_right_deletes_nothing_and_is_told_so() -> None:
    """In `read_kafka`, raise if no topic can be described, whatever the reason: Kafka does answer."""
    one, client = mirrored(kafka(t=topic("id1", 1), u=topic("id2", 1)))
    cluster = Guarded(t="id1", u="id2")
    cluster.hidden |= {"t", "u"}
    rounds_with(one, client, cluster, 4)
    assert client.topics().keys() == {"t", "u"}
    assert one.health().faults == ["Kafka refuses 2 nodes or topics"]


def test_a_node_that_can_be_no_topic_is_removed_and_kafka_is_not_asked_for_it() -> None:
    """In `Mirror.write`, ask for all names: one that is too long for Kafka's protocol breaks each request."""
    one, client = mirrored(kafka(t=topic("id1", 1)))
    cluster = Guarded(t="id1")
    client.create(f"{paths.BROKER_TOPICS}/{'x' * 40_000}", b"{}")
    rounds_with(one, client, cluster, 3)
    assert client.topics().keys() == {"t"}
    assert cluster.asked == {"t"}


class Guarded:
    """Kafka with rules, as an AdminClient shows it: a list of all topics leaves out those that may not be described."""

    def __init__(self, **ids: str) -> None:
        self.topics = ids
        self.brokers: dict[int, Any] = {1: Named(id=1, host="h", port=9092, rack=None)}
        self.hidden: set[str] = set()
        self.asked: set[str] = set()  # for by name
        self.cluster_id: str | None = "cluster-1"
        self.requests: Counter[str] = Counter()

    def describe_cluster(self, **_options: Any) -> Future[Any]:
        self.requests["describe_cluster"] += 1
        return ended(Named(nodes=[Named(**vars(one)) for one in self.brokers.values()]))

    def list_topics(self, **_options: Any) -> Any:
        self.requests["list_topics"] += 1
        brokers = {one.id: Named(id=one.id, host=one.host, port=one.port) for one in self.brokers.values()}
        listed = {name: None for name in self.topics if name not in self.hidden}
        return Named(topics=listed, brokers=brokers, cluster_id=self.cluster_id)

    def describe_topics(self, names: TopicCollection, **_options: Any) -> dict[str, Future[Any]]:
        self.requests["describe_topics"] += 1
        self.asked |= set(names.topic_names)
        return {name: ended(self._description(name)) for name in names.topic_names}

    def _description(self, name: str) -> object:
        if name in self.hidden:  # whether it exists or not
            return KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        if name not in self.topics:
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return Named(topic_id=self.topics[name], partitions=[Named(id=0, replicas=[Named(id=1)])])

    def poll(self, _timeout_s: float) -> None:
        """Call back nobody."""


class Described:
    """Kafka's answers: topic -> error code, None for a description."""

    def __init__(self, **codes: int | None) -> None:
        self._codes = codes

    def describe_cluster(self, **_options: Any) -> Future[Any]:
        return ended(Named(nodes=[Named(id=1, host="h", port=9092, rack=None)]))

    def list_topics(self, **_options: Any) -> Any:
        return Named(topics=self._codes, brokers={1: Named(id=1, host="h", port=9092)}, cluster_id=None)

    def describe_topics(self, *_names: Any, **_options: Any) -> dict[str, Future[Any]]:
        partitions = [Named(id=0, replicas=[Named(id=1)])]
        described = Named(topic_id="id9", partitions=partitions)
        return {
            name: ended(described if code is None else KafkaException(KafkaError(code)))
            for name, code in self._codes.items()
        }


class Named:
    """An object with these attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)
