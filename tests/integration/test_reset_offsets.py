"""`groups reset-offsets` on a real ZooKeeper: only without consumers, and without starts during the reset."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.deadlines import WITHIN_S
from zkrebalancer.cli import main
from zkrebalancer.coordinator import lag_process
from zkrebalancer.coordinator.held_session import HeldSession
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import OffsetsOutsideLogError
from zkrebalancer.operations.reset_offsets import Change, reset_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import cluster_nodes, paths, settings
from zkrebalancer.protocol.calls import (
    ABSENT,
    Call,
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Reply,
    RightsCall,
    SetContent,
)
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

GROUP = "g"
STORES = ("offset", "offset_in_kafka")
PARTITIONS = 1_200  # more than one transaction carries


@pytest.fixture(scope="module")
def zookeeper(agent_cluster: LocalCluster) -> str:
    """Create a separate chroot, without the cluster's other groups."""
    with BlockingZk(agent_cluster.zookeeper) as client:
        assert isinstance(client.perform(Multi((Create("/reset"),))), Done)
    return f"{agent_cluster.zookeeper}/reset"


@pytest.fixture
def zk(zookeeper: str) -> Iterator[BlockingZk]:
    with BlockingZk(zookeeper) as client:
        made = [Create(paths.CONSUMERS), Create(paths.GROUPS), Create(paths.group(GROUP), b'{"version":1,"custom":7}')]
        made += [Create(f"{paths.group(GROUP)}/{child}") for child in paths.GROUP_CHILDREN]
        made.append(Create(paths.offsets(GROUP, "t"), b"incarnation"))
        made += [Create(paths.offsets(GROUP, "t", number), b"5") for number in range(PARTITIONS)]
        assert isinstance(client.perform(Multi(tuple(made))), Done)
        yield client
        remove(client, paths.CONSUMERS)


def remove(client: BlockingZk, path: str) -> None:
    """Remove a node with everything below it, without waiting for each of a thousand answers."""
    level, found = [path], [path]
    while level:
        replies = zip(level, client.perform_all([ListChildren(above) for above in level], ABSENT), strict=True)
        level = [f"{above}/{name}" for above, reply in replies if isinstance(reply, Children) for name in reply.names]
        found += level
    client.perform_all([Multi((Delete(below),)) for below in reversed(found)])


def to_nine(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
    return dict.fromkeys(partitions, 9)


def stored(client: BlockingZk, path: str) -> bytes:
    reply = client.perform(Get(path))
    assert isinstance(reply, Content)
    return reply.content


def test_every_offset_is_replaced_and_the_settings_are_as_before(zk: BlockingZk) -> None:
    changes = reset_offsets(zk, GROUP, to_nine, dry_run=False)
    assert len(changes) == PARTITIONS
    assert changes["t", 0] == Change(5, None, 9)
    assert {stored(zk, paths.offsets(GROUP, "t", number)) for number in range(PARTITIONS)} == {b"9"}
    assert not settings.decode(stored(zk, paths.group(GROUP))).starts_paused
    assert b'"custom":7' in stored(zk, paths.group(GROUP))


def test_a_dry_run_writes_nothing(zk: BlockingZk) -> None:
    assert reset_offsets(zk, GROUP, to_nine, dry_run=True)["t", 3] == Change(5, None, 9)
    assert stored(zk, paths.offsets(GROUP, "t", 3)) == b"5"
    assert stored(zk, paths.group(GROUP)) == b'{"version":1,"custom":7}'


def test_a_group_with_a_consumer_is_refused(zk: BlockingZk) -> None:
    zk.perform(Multi((Create(paths.ids(GROUP, "c-1"), ephemeral=True),)))
    with pytest.raises(OffsetsRefusedError, match="has consumers"):
        reset_offsets(zk, GROUP, to_nine, dry_run=False)
    assert stored(zk, paths.offsets(GROUP, "t", 0)) == b"5"


def test_a_consumer_that_registers_meanwhile_is_noticed_and_the_pause_is_taken_back(zk: BlockingZk) -> None:
    """Fails if there is no second check after the pause, or if the pause stays."""
    performed = zk.perform

    def perform(call: Call | RightsCall, expected: Collection[Refusal] = ()) -> Reply:
        reply = performed(call, expected)
        if isinstance(call, Multi) and isinstance(call.operations[0], SetContent):
            performed(Multi((Create(paths.ids(GROUP, "late"), ephemeral=True),)), {Refusal.NODE_EXISTS})
        return reply

    zk.perform = perform  # type: ignore[method-assign]
    with pytest.raises(OffsetsRefusedError, match="late"):
        reset_offsets(zk, GROUP, to_nine, dry_run=False)
    assert stored(zk, paths.offsets(GROUP, "t", 0)) == b"5"
    assert not settings.decode(stored(zk, paths.group(GROUP))).starts_paused


def test_an_operator_who_interferes_stops_the_reset(zk: BlockingZk) -> None:
    """Fails if the writes do not check the version of the settings."""

    def interfering(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        zk.perform(Multi((SetContent(paths.group(GROUP), b'{"version":1,"starts_paused":false}'),)))
        return to_nine(partitions)

    with pytest.raises(OffsetsRefusedError, match="changed"):
        reset_offsets(zk, GROUP, interfering, dry_run=False)
    assert cluster_nodes.decode_counter("offset", stored(zk, paths.offsets(GROUP, "t", 0))) == 5


# ---- with offsets in Kafka


def zkrebalancer(servers: tuple[str, str], *arguments: str) -> dict[str, Any]:
    """Run a command with --json and return what it prints."""
    options = ["--zookeeper", servers[0], "--bootstrap", servers[1], "--json"]
    result = CliRunner().invoke(main.zkrebalancer, ["groups", *arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def offset_of(document: dict[str, Any], number: int) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in document["offsets"] if row["partition"] == number)
    return row


def require_lag_times(servers: tuple[str, str], admin: AdminClient, producer: Producer) -> None:
    """Require the ages of first unread records; one partition has only a marker, one is read to its end."""
    admin.create_topics([NewTopic("aged", 4, 1)])["aged"].result(WITHIN_S)
    now_ms = int(time.time() * 1_000)
    for partition, age_s in ((0, 9_000), (0, 7_200), (0, 60), (1, 5)):
        producer.produce("aged", b"x" * 100_000, partition=partition, timestamp=now_ms - age_s * 1_000)
    assert producer.flush(WITHIN_S) == 0
    marking = Producer({"bootstrap.servers": servers[1], "transactional.id": "lag"})
    marking.init_transactions(WITHIN_S)
    marking.begin_transaction()
    marking.produce("aged", b"", partition=2)
    marking.commit_transaction(WITHIN_S)
    with BlockingZk(servers[0]) as zk:
        made = [Create(paths.offsets(GROUP, "aged"), b"incarnation")]
        made += [Create(paths.offsets(GROUP, "aged", number), b"1") for number in range(3)]
        assert isinstance(zk.perform(Multi(tuple(made))), Done)
    described = zkrebalancer(servers, "describe", GROUP, "--offsets", "--lag-time", "--verdict", "10")
    found = {(each["topic"], each["partition"]): (each["lag"], each["lag_s"]) for each in described["offsets"]}
    assert found["aged", 0][0] == 2
    assert 7_200 <= found["aged", 0][1] < 7_200 + WITHIN_S
    assert found["aged", 1] == (0, 0.0)
    assert found["aged", 2] == (1, 0.0)
    assert 0 <= found["t", 0][1] < WITHIN_S
    verdicts = {(each["topic"], each["partition"]): each["verdict"] for each in described["offsets"]}
    assert [verdicts["aged", number] for number in range(3)] == ["STOP", "OK", "OK"]  # the last one has only a marker
    assert described["verdict"] == "STOP"
    (level,) = described["slo"]
    assert (level["name"], level["breached"] >= 1, level["worst"] >= 7_200) == ("lag_s", True, True)
    with closing(HeldSession()) as session:  # as the leader reads
        kafka = {"bootstrap.servers": servers[1]}
        assert lag_process.lag(session, servers[0], kafka, GROUP)["lag_s"] >= 7_200
        assert "there is no group" in lag_process.lag(session, servers[0], kafka, "nobody")["error"]
    with BlockingZk(servers[0]) as zk:
        removed = [Delete(paths.offsets(GROUP, "aged", number)) for number in range(3)]
        assert isinstance(zk.perform(Multi((*removed, Delete(paths.offsets(GROUP, "aged"))))), Done)
    admin.delete_topics(["aged"])["aged"].result(WITHIN_S)


def test_offsets_in_both_stores_are_described_with_their_lag_and_reset(
    zookeeper: str, agent_cluster: LocalCluster
) -> None:
    servers = (zookeeper, agent_cluster.bootstrap)
    admin = AdminClient({"bootstrap.servers": agent_cluster.bootstrap})
    admin.create_topics([NewTopic("t", 3, 1)])["t"].result(WITHIN_S)
    producer = Producer({"bootstrap.servers": agent_cluster.bootstrap})
    for number in range(30):
        producer.produce("t", b"", partition=number % 3)
    assert producer.flush(WITHIN_S) == 0
    StoredInKafka({"bootstrap.servers": agent_cluster.bootstrap}, GROUP).write({("t", 1): 4, ("t", 2): 6})
    with BlockingZk(zookeeper) as zk:
        made = [Create(paths.CONSUMERS), Create(paths.GROUPS)]
        made += [Create(paths.group(GROUP), settings.encode(settings.GroupSettings(slo={"lag_s": 30})))]
        made += [Create(f"{paths.group(GROUP)}/{child}") for child in paths.GROUP_CHILDREN]
        made += [Create(paths.offsets(GROUP, "t"), b"incarnation")]
        made += [Create(paths.offsets(GROUP, "t", number), b"5") for number in (0, 1)]
        assert isinstance(zk.perform(Multi(tuple(made))), Done)
    described = zkrebalancer(servers, "describe", GROUP, "--offsets")
    known = {"topic": "t", "partition": 1, "offset": 5, "offset_in_kafka": 4, "log_end_offset": 10, "lag": 5}
    assert offset_of(described, 1) == known
    assert [offset_of(described, number)["lag"] for number in range(3)] == [5, 5, 4]
    require_lag_times(servers, admin, producer)
    before = zkrebalancer(servers, "reset-offsets", GROUP, "--to-earliest", "--dry-run")
    assert offset_of(before, 1) == {"topic": "t", "partition": 1, "before": 5, "before_in_kafka": 4, "after": 0}
    assert zkrebalancer(servers, "describe", GROUP, "--offsets") == described
    assert offset_of(zkrebalancer(servers, "reset-offsets", GROUP, "--to-offset", "9"), 2)["after"] == 9
    with pytest.raises(OffsetsOutsideLogError, match="11 for t/0, which has 0 to 10"):
        zkrebalancer(servers, "reset-offsets", GROUP, "--to-offset", "11")
    described = zkrebalancer(servers, "describe", GROUP, "--offsets")
    stored = {key: [offset_of(described, number)[key] for number in range(3)] for key in STORES}
    assert stored == {"offset": [9, 9, None], "offset_in_kafka": [None, 9, 9]}
