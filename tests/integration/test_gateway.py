"""The gateway between a real broker and unmodified clients."""

from __future__ import annotations

import itertools
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.away_coordinator import TIMED_OUT, asking
from tests.integration.commands import run
from tests.integration.gateway_process import GatewayProcess, group_of
from tests.integration.kafka_clients import CLASSIC, KIP_848, Reader, close_in_turn, committed, produce
from tests.integration.raw_requests import answer, received, request
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.cli.group_coordinator import OPEN_FILES
from zkrebalancer.gateway.addresses import VIRTUAL_NODE
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST

PARTITIONS = 6
QUOTA_BYTES = 50_000  # a second
SHELLS_OPEN_FILES = 1_024
ALTER_CLIENT_QUOTAS = 49  # a request that the gateway does not know
MAX_GROWTH_BYTES = 50 << 20  # 20 clients could be owed 5 GB
_numbers = itertools.count(1)


@pytest.fixture
def gateway(shared_cluster: LocalCluster, folder: Path) -> Iterator[GatewayProcess]:
    """Start a gateway; its log may show nothing unexpected."""
    one = GatewayProcess(shared_cluster, folder)
    one.start()
    yield one
    one.end()
    assert one.troubles() == []


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """Make a topic, at the broker itself."""
    name = f"behind-the-gateway-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": shared_cluster.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WITHIN_S)
    return name


def values(begin: int, count: int) -> list[str]:
    return [f"{number}" for number in range(begin, begin + count)]


def read(readers: list[Reader]) -> list[str]:
    """Return the values in order, without their padding."""
    return sorted((value.partition(":")[0] for reader in readers for value in reader.values), key=int)


def own_all(readers: list[Reader]) -> bool:
    """Whether the readers share all partitions without overlap, and each has some."""
    held = [partition for reader in readers for partition in reader.assigned]
    return sorted(held) == list(range(PARTITIONS)) and all(reader.assigned for reader in readers)


def test_a_produce_without_acknowledgement_is_not_waited_for(gateway: GatewayProcess) -> None:
    with socket.create_connection((HOST, gateway.port + 1), timeout=WITHIN_S) as client:
        client.sendall(request("Produce", 7, {"acks": 0, "timeout_ms": 1_000}))
        client.sendall(request("Metadata", 5, {"topics": []}))
        client.sendall(request("Heartbeat", 3, {"group_id": "g", "member_id": "m"}))
        assert gateway.port + 1 in {one["port"] for one in answer("Metadata", 5, client)["brokers"]}
        assert (
            answer("Heartbeat", 3, client)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        )  # not the broker's, but in order


def test_clients_know_addresses_of_the_gateway_only(gateway: GatewayProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    found = admin.list_topics(timeout=WITHIN_S)
    nodes = {number: f"{broker.host}:{broker.port}" for number, broker in found.brokers.items()}
    virtual = {number: where for number, where in nodes.items() if number >= VIRTUAL_NODE}
    assert list(virtual.values()) == [gateway.bootstrap]
    assert nodes == {1: f"{HOST}:{gateway.port + 1}", **virtual}
    assert len(found.topics[topic].partitions) == PARTITIONS


def test_records_pass_with_and_without_acknowledgement(gateway: GatewayProcess, topic: str) -> None:
    produce(gateway.bootstrap, topic, values(0, 3_000))
    produce(gateway.bootstrap, topic, values(3_000, 300), acks=0)
    large = {"message.max.bytes": 1_000_000, "batch.size": 1_000_000, "linger.ms": 50}
    produce(gateway.bootstrap, topic, [f"{value}:{'x' * 900_000}" for value in values(3_300, 6)], **large)
    reader = Reader("confluent", gateway.bootstrap, f"all-{topic}", topic)
    wait_until(lambda: len(reader.values) >= 3_306, "not all records came")
    reader.close()
    assert read([reader]) == values(0, 3_306)


@pytest.mark.parametrize("kinds", [CLASSIC, (KIP_848, KIP_848)], ids=" and ".join)
def test_clients_share_a_group(
    shared_cluster: LocalCluster, gateway: GatewayProcess, topic: str, kinds: tuple[str, str]
) -> None:
    group = f"shared-{topic}"
    produce(shared_cluster.bootstrap, topic, values(0, 600))
    readers = [Reader(kinds[0], gateway.bootstrap, group, topic)]
    wait_until(lambda: own_all(readers), "the first one does not get all partitions")
    readers.append(Reader(kinds[1], gateway.bootstrap, group, topic))
    wait_until(lambda: own_all(readers), "the partitions are not shared")
    produce(gateway.bootstrap, topic, values(600, 600))
    wait_until(lambda: len(read(readers)) >= 1_200, "not all records came")
    readers[0].close()
    wait_until(lambda: own_all(readers[1:]), "the other one does not take over")
    produce(gateway.bootstrap, topic, values(1_200, 60))
    wait_until(lambda: len(read(readers)) >= 1_260, "not all records came")
    readers[1].close()
    assert read(readers) == values(0, 1_260)
    # The offsets are at the broker, where lag tools and plain consumers find them.
    assert committed(shared_cluster.bootstrap, group) == committed(gateway.bootstrap, group) == 1_260


def test_a_group_changes_its_protocol_and_back_while_it_is_read(
    shared_cluster: LocalCluster, gateway: GatewayProcess, topic: str
) -> None:
    group = f"changes-{topic}"
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    readers: list[Reader] = []
    former: list[Reader] = []
    produced = 0

    def settle(kind: ConsumerGroupType) -> None:
        """Wait until all partitions are shared, and everything is read, in a group of this kind."""
        nonlocal produced
        wait_until(lambda: own_all(readers), "the partitions are not shared")
        listed = {one.group_id: one.type for one in admin.list_consumer_groups().result(WITHIN_S).valid or ()}
        assert listed[group] == kind
        produce(gateway.bootstrap, topic, values(produced, 60))
        produced += 60
        wait_until(lambda: len(read([*readers, *former])) >= produced, "not all records came")

    def join(kind: str) -> None:
        readers.append(Reader(kind, gateway.bootstrap, group, topic))

    def first_leaves() -> None:
        former.append(readers.pop(0))
        former[-1].close()

    join("confluent")
    settle(ConsumerGroupType.CLASSIC)
    join(KIP_848)
    settle(ConsumerGroupType.CONSUMER)
    first_leaves()
    settle(ConsumerGroupType.CONSUMER)
    join("confluent")
    settle(ConsumerGroupType.CONSUMER)
    first_leaves()
    settle(ConsumerGroupType.CLASSIC)
    first_leaves()
    assert read(former) == values(0, produced)
    assert committed(shared_cluster.bootstrap, group) == produced


def test_a_group_that_has_only_offsets_is_listed_as_at_the_broker(
    shared_cluster: LocalCluster, gateway: GatewayProcess, topic: str
) -> None:
    group = f"offsets-{topic}"
    kept = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})

    def is_stored() -> bool:
        """Whether it is; a gateway that has just begun to serve refuses a commit that may be older."""
        (stored,) = admin.alter_consumer_group_offsets([kept])[group].result(WITHIN_S).topic_partitions
        return stored.error is None

    def listed(bootstrap: str) -> list[tuple[ConsumerGroupState, ConsumerGroupType, bool]]:
        asking = AdminClient({"bootstrap.servers": bootstrap})
        found = asking.list_consumer_groups().result(WITHIN_S)
        return [
            (one.state, one.type, one.is_simple_consumer_group) for one in found.valid or () if one.group_id == group
        ]

    wait_until(is_stored, "the offset is not stored")
    expected = [(ConsumerGroupState.EMPTY, ConsumerGroupType.CLASSIC, True)]
    for bootstrap in (shared_cluster.bootstrap, gateway.bootstrap):
        assert listed(bootstrap) == expected


@pytest.mark.parametrize("kind", [*CLASSIC, KIP_848])
def test_members_keep_what_they_have_when_the_gateway_is_killed(
    shared_cluster: LocalCluster, gateway: GatewayProcess, topic: str, kind: str
) -> None:
    readers = [Reader(kind, gateway.bootstrap, f"kept-{topic}", topic) for _ in range(2)]
    wait_until(lambda: own_all(readers), "the partitions are not shared")
    held = [(reader.assigned, reader.revocations) for reader in readers]
    gateway.kill()
    produce(shared_cluster.bootstrap, topic, values(0, 600))
    gateway.start()
    wait_until(lambda: len(read(readers)) >= 600, "not all records came")
    assert [(reader.assigned, reader.revocations) for reader in readers] == held
    for reader in readers:
        reader.close()
    assert read(readers) == values(0, 600)


@pytest.mark.parametrize("kind", ["confluent", pytest.param(KIP_848, marks=pytest.mark.long)])
def test_another_gateway_serves_the_groups_of_one_that_is_killed(
    shared_cluster: LocalCluster, gateway: GatewayProcess, folder: Path, topic: str, kind: str
) -> None:
    second = GatewayProcess(shared_cluster, folder)
    second.start()
    group = group_of(shared_cluster, [gateway, second], second, f"moved-{topic}")
    readers = [Reader(kind, f"{gateway.bootstrap},{second.bootstrap}", group, topic) for _ in range(2)]
    wait_until(lambda: own_all(readers), "the partitions are not shared")
    held = [(reader.assigned, reader.revocations) for reader in readers]
    second.kill()
    produce(shared_cluster.bootstrap, topic, values(0, 600))
    wait_until(lambda: len(read(readers)) >= 600, "not all records came")
    assert [(reader.assigned, reader.revocations) for reader in readers] == held
    for reader in readers:
        reader.close()
    assert read(readers) == values(0, 600)
    assert second.troubles() == []


def test_the_broker_restarts(shared_cluster: LocalCluster, gateway: GatewayProcess, topic: str) -> None:
    group = f"patient-{topic}"
    readers = [Reader("confluent", gateway.bootstrap, group, topic) for _ in range(2)]
    wait_until(lambda: own_all(readers), "the partitions are not shared")
    produce(gateway.bootstrap, topic, values(0, 300))
    wait_until(lambda: len(read(readers)) >= 300, "not all records came")
    with asking(shared_cluster.bootstrap) as go_on:
        shared_cluster.broker.stop()
        try:
            with socket.create_connection((HOST, gateway.port), timeout=WITHIN_S) as client:  # members can go on
                client.sendall(request("ApiVersions", 3, {}))
                assert answer("ApiVersions", 3, client)["error_code"] == 0
                client.sendall(request("FindCoordinator", 3, {"key": "any"}))
                assert answer("FindCoordinator", 3, client)["port"] == gateway.port
            assert go_on() == TIMED_OUT
        finally:
            shared_cluster.broker.start()  # the next tests need it
        assert go_on() == "answered"  # librdkafka would abort the process as soon as it is connected again
    produce(gateway.bootstrap, topic, values(300, 300))
    wait_until(lambda: len(read(readers)) >= 600, "not all records came")
    close_in_turn(readers)
    assert read(readers) == values(0, 600)
    assert committed(shared_cluster.bootstrap, group) == 600


def set_quota(gateway: GatewayProcess, client_id: str, bytes_per_s: float) -> None:
    """Limit what clients of this name may produce; through the gateway, as any other request."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    entity = struct.pack(">i", 1) + text("client-id") + text(client_id)
    operation = struct.pack(">i", 1) + text("producer_byte_rate") + struct.pack(">dx", bytes_per_s)
    header = struct.pack(">hhi", ALTER_CLIENT_QUOTAS, 0, 7) + text("raw")
    content = header + struct.pack(">i", 1) + entity + operation + b"\0"
    with socket.create_connection((HOST, gateway.port + 1), timeout=WITHIN_S) as client:
        client.sendall(struct.pack(">i", len(content)) + content)
        (size,) = struct.unpack(">i", received(client, 4))
        correlation_id, _throttled_ms, _count, error = struct.unpack_from(">iiih", received(client, size))
        assert (correlation_id, error) == (7, ErrorCode.NONE)


def test_a_quota_slows_down_its_client_and_no_other_one(gateway: GatewayProcess, topic: str) -> None:
    set_quota(gateway, "limited", QUOTA_BYTES)
    throttled: list[float] = []
    limited = Producer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "client.id": "limited",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )

    def is_throttled() -> bool:
        limited.produce(topic, b"x" * QUOTA_BYTES)
        limited.flush(WITHIN_S)
        return bool(throttled)

    wait_until(is_throttled, "the quota is not applied")  # the broker lets ten seconds' worth pass at once
    assert throttled[0] > 0
    produce(gateway.bootstrap, topic, values(0, 60), **{"client.id": "free"})
    assert limited.flush(WITHIN_S) == 0


def test_a_malformed_frame_ends_one_connection_with_one_line(gateway: GatewayProcess, topic: str) -> None:
    bad = [
        struct.pack(">i", -5),
        struct.pack(">ihhi", 3, 0, 0, 0),
        struct.pack(">ihhi", 30, 12, 4, 1) + b"\xff" * 22,  # a heartbeat that is none
        struct.pack(">ihhi", 8, 1, 17, 1),  # a Fetch in a version that was not offered
    ]
    for frame in bad:
        with socket.create_connection((HOST, gateway.port), timeout=WITHIN_S) as client:
            client.sendall(frame)
            assert client.recv(100) == b""
    lines = [line for line in gateway.log.read_text().splitlines() if "was ended" in line]
    assert len(lines) == len(bad)
    assert f"zkrebalancer_gateway_malformed_frames_total {len(bad):.1f}" in gateway.metrics()
    produce(gateway.bootstrap, topic, values(0, 6))


def test_a_slow_client_costs_little_memory_and_delays_nobody(gateway: GatewayProcess, topic: str) -> None:
    large = {"message.max.bytes": 1_000_000, "linger.ms": 50}
    produce(gateway.bootstrap, topic, [f"{value}:{'x' * 900_000}" for value in values(0, 60)], **large)
    before = gateway.resident_bytes()
    clients = [socket.create_connection((HOST, gateway.port + 1), timeout=WITHIN_S) for _ in range(20)]
    for client in clients:
        client.sendall(fetch_of_all(topic) * 5)  # the answers are not read
    for client in clients:
        assert client.recv(4, socket.MSG_PEEK) > b""
    reader = Reader("confluent", gateway.bootstrap, f"quick-{topic}", topic)
    wait_until(lambda: len(reader.values) >= 60, "not all records came")
    assert gateway.resident_bytes() - before < MAX_GROWTH_BYTES
    for client in clients:
        client.close()
    reader.close()


def fetch_of_all(topic: str) -> bytes:
    """Return a frame that asks for all records of the topic, 50 MiB at most."""
    text = topic.encode()
    partitions = b"".join(struct.pack(">iiqqi", number, -1, 0, -1, 10 << 20) for number in range(PARTITIONS))
    body = struct.pack(">iiii b ii i", -1, 500, 1, 50 << 20, 0, 0, -1, 1) + struct.pack(">h", len(text)) + text
    body += struct.pack(">i", PARTITIONS) + partitions + struct.pack(">i", 0) + struct.pack(">h", 0)
    content = struct.pack(">hhih", 1, 11, 7, -1) + body
    return struct.pack(">i", len(content)) + content


def test_one_of_two_that_announce_the_same_address_stops(
    shared_cluster: LocalCluster, gateway: GatewayProcess, folder: Path
) -> None:
    other = GatewayProcess(shared_cluster, folder, "--advertise", HOST, host="127.0.0.2", port=gateway.port)
    other.start()
    assert gateway.wait() == 1
    assert f"Error: another gateway announces {gateway.bootstrap} too" in gateway.log.read_text().splitlines()
    gateway.log.write_text("")  # it was expected
    assert other.stop() == 0


def test_a_gateway_ends_cleanly(gateway: GatewayProcess, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": f"ends-{topic}", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0)])
    consumer.poll(0.5)
    assert gateway.stop() == 0
    consumer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, gateway.port)).close()


def test_a_gateway_may_open_as_many_files_as_the_system_allows(shared_cluster: LocalCluster, folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    one = GatewayProcess(shared_cluster, folder, environment={})
    resource.setrlimit(resource.RLIMIT_NOFILE, (SHELLS_OPEN_FILES, hard))  # it gets the limits of this process
    try:
        one.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed, _hard = resource.prlimit(one.pid, resource.RLIMIT_NOFILE)
    assert one.stop() == 0
    assert allowed == (OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard))


def test_what_a_user_gets_wrong_is_one_line(shared_cluster: LocalCluster, gateway: GatewayProcess) -> None:
    there = ("--upstream", shared_cluster.bootstrap, "--zookeeper", shared_cluster.zookeeper)
    wrong: list[tuple[tuple[object, ...], int, str]] = [
        (("--listen", "0.0.0.0:9192", *there), 2, "--advertise"),
        (("--listen", f"{HOST}:1,{HOST}:2", *there), 2, "names several"),
        (("--listen", HOST, *there), 2, "is not HOST:PORT"),
        (("--listen", gateway.bootstrap, *there), 2, f"{gateway.bootstrap} cannot be listened at"),
        (("--listen", f"{HOST}:9192", *there[:3], f"{shared_cluster.zookeeper}/none"), 2, "chroot"),
    ]
    for arguments, code, text in wrong:
        result = run("zkrebalancer", "group-coordinator", *arguments)
        assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
        assert text in result.stderr
