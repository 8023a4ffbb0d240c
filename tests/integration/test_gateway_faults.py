"""A gateway that hangs past its session, a ZooKeeper that is away for a while, addresses of IPv6, and names."""

from __future__ import annotations

import itertools
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.gateway_process import GatewayProcess, group_of
from tests.integration.kafka_clients import KIP_848, Reader, produce
from tests.integration.raw_requests import answer, request
from tests.support.waiting import wait_until
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports

PARTITIONS = 6
WAIT_S = 30.0
SESSION_MS = 60_000
_numbers = itertools.count(1)


def make_topic(cluster: LocalCluster) -> str:
    name = f"faults-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)
    return name


def ask(client: socket.socket, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    client.sendall(request(name, version, fields))
    return answer(name, version, client)


def connected(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection((HOST, gateway.port), timeout=WAIT_S)


@pytest.fixture
def two(shared_cluster: LocalCluster, folder: Path) -> Iterator[list[GatewayProcess]]:
    """Start two gateways."""
    both = [GatewayProcess(shared_cluster, folder) for _ in range(2)]
    for one in both:
        one.start()
    yield both
    for one in both:
        one.kill()
        assert one.troubles() == []


def test_a_gateway_that_wakes_after_its_session_serves_nothing_that_another_one_has(
    shared_cluster: LocalCluster, two: list[GatewayProcess]
) -> None:
    topic = make_topic(shared_cluster)
    sleeper, heir = two
    group = group_of(shared_cluster, two, sleeper, "served")
    with connected(sleeper) as client, connected(heir) as other:
        wait_until(
            lambda: ask(other, "FindCoordinator", 3, {"key": group})["port"] == sleeper.port, "nobody serves the group"
        )
        fields = {
            "group_id": group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": SESSION_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        joined = ask(client, "JoinGroup", 3, fields)
        member = {"group_id": group, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
        own = {**member, "assignments": [{"member_id": joined["member_id"], "assignment": b"all"}]}
        assert ask(client, "SyncGroup", 2, own)["error_code"] == ErrorCode.NONE
        offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
        committed = ask(
            client,
            "OffsetCommit",
            5,
            {**member, "generation_id_or_member_epoch": member["generation_id"], "topics": offsets},
        )
        assert committed["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE

        psutil.Process(sleeper.pid).send_signal(signal.SIGSTOP)
        wait_until(lambda: ask(other, "Heartbeat", 2, member)["error_code"] == ErrorCode.NONE, "nobody takes over")
        # These requests wait for the suspended gateway; meanwhile the other one serves the group.
        offsets[0]["partitions"] = [{"partition_index": 0, "committed_offset": 3}]
        client.sendall(request("Heartbeat", 2, member))
        client.sendall(
            request(
                "OffsetCommit",
                5,
                {**member, "generation_id_or_member_epoch": member["generation_id"], "topics": offsets},
            )
        )
        psutil.Process(sleeper.pid).send_signal(signal.SIGCONT)
        # The heartbeat waits a moment for the group to come back; the commit behind it is as old, and refused anyhow.
        assert answer("Heartbeat", 2, client)["error_code"] in {ErrorCode.NOT_COORDINATOR, ErrorCode.NONE}
        refused = answer("OffsetCommit", 5, client)["topics"][0]["partitions"][0]["error_code"]
        assert refused == ErrorCode.NOT_COORDINATOR
        wanted = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}

        def is_back() -> bool:
            """Whether it has taken its share back, and found the group and its offsets as they were."""
            found = ask(client, "OffsetFetch", 5, wanted)
            if found["error_code"] or ask(client, "Heartbeat", 2, member)["error_code"]:
                return False
            assert found["topics"][0]["partitions"][0]["committed_offset"] == 7, found
            return True

        wait_until(is_back, "it does not come back")


@pytest.mark.parametrize("kinds", [("confluent", "kafka-python"), (KIP_848, KIP_848)], ids=" and ".join)
def test_zookeeper_is_away_for_longer_than_the_gateways_session(
    shared_cluster: LocalCluster, folder: Path, kinds: tuple[str, str]
) -> None:
    topic = make_topic(shared_cluster)
    gateway = GatewayProcess(shared_cluster, folder)
    gateway.start()
    readers = [Reader(kind, gateway.bootstrap, f"away-{topic}", topic) for kind in kinds]

    def are_shared() -> bool:
        held = [partition for reader in readers for partition in reader.assigned]
        return sorted(held) == list(range(PARTITIONS)) and all(reader.assigned for reader in readers)

    def read() -> list[int]:
        return sorted(int(value) for reader in readers for value in reader.values)

    wait_until(are_shared, "the partitions are not shared")
    (zookeeper,) = shared_cluster.zookeeper_servers
    zookeeper.kill()
    try:
        wait_until(lambda: not gateway.is_ready(), "the gateway thinks that it has a session")
        produce(gateway.bootstrap, topic, [f"{number}" for number in range(300)])
    finally:
        zookeeper.start()
    produce(gateway.bootstrap, topic, [f"{number}" for number in range(300, 600)])
    wait_until(lambda: len(set(read())) == 600, "not all records came")
    wait_until(are_shared, "the partitions are not shared afterwards")
    produce(gateway.bootstrap, topic, [f"{number}" for number in range(600, 900)])
    wait_until(lambda: len(set(read())) == 900, "not all records came in the end")
    for reader in readers:
        reader.close()
    gateway.kill()
    assert gateway.troubles() == []


def test_clients_and_brokers_with_addresses_of_ipv6(folder: Path) -> None:
    port, six = free_ports(2)
    listeners = f"PLAINTEXT://{HOST}:{port},SIX://[::1]:{six}"
    properties = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with LocalCluster(chroot="/six", broker_port=port, kafka_properties=properties) as cluster:
        topic = make_topic(cluster)
        gateway = GatewayProcess(cluster, folder, "--upstream", f"[::1]:{six}", host="[::1]")
        gateway.start()
        produce(gateway.bootstrap, topic, [f"{number}" for number in range(60)])
        readers = [Reader(kind, gateway.bootstrap, "six", topic) for kind in ("confluent", "kafka-python")]
        wait_until(lambda: all(reader.assigned for reader in readers), "the partitions are not shared")
        wait_until(lambda: sum(len(reader.values) for reader in readers) == 60, "not all records came")
        # Every connection upstream, the gateway's own and those of clients, is one of IPv6.
        ends = {
            one.raddr.ip
            for one in psutil.Process(gateway.pid).net_connections()
            if one.raddr and one.raddr.port in {port, six}
        }
        for reader in readers:
            reader.close()
        gateway.kill()
    assert ends == {"::1"}
    assert gateway.troubles() == []


def test_clients_and_brokers_with_names(shared_cluster: LocalCluster, folder: Path) -> None:
    topic = make_topic(shared_cluster)
    _host, _, port = shared_cluster.bootstrap.rpartition(":")
    gateway = GatewayProcess(shared_cluster, folder, "--upstream", f"localhost:{port}", "--advertise", "localhost")
    gateway.start()
    with connected(gateway) as client:
        nodes = ask(client, "Metadata", 5, {"topics": []})["brokers"]
    assert {(one["host"], one["port"]) for one in nodes} == {("localhost", gateway.port + at) for at in (0, 1)}
    produce(f"localhost:{gateway.port}", topic, [f"{number}" for number in range(60)])
    readers = [Reader(kind, f"localhost:{gateway.port}", "named", topic) for kind in ("confluent", "kafka-python")]
    wait_until(lambda: all(reader.assigned for reader in readers), "the partitions are not shared")
    wait_until(lambda: sum(len(reader.values) for reader in readers) == 60, "not all records came")
    with connected(gateway) as client:
        found = ask(client, "FindCoordinator", 3, {"key": "named"})
    assert (found["host"], found["port"]) == ("localhost", gateway.port)
    for reader in readers:
        reader.close()
    gateway.kill()
    assert gateway.troubles() == []
