"""A local cluster on real servers: starting, faults, and clean-up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState

from consumer_agent import Consumer, GroupInUseError
from tests.integration.commands import WarmCommand
from tests.integration.fake_coordinator import Stage
from tests.integration.mirrors import check_pages
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults, kafka, state, zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import ServerStartError
from zkrebalancer.localcluster.ports import is_free
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError, StoredInKafka
from zkrebalancer.runtime.zk_connection import patient_hosts

SESSION_S = 20.0  # on a machine that stalls for seconds, a short session would expire
MAIN_CLASSES = {"kafka": kafka.MAIN_CLASS, "zookeeper-1": zookeeper.MAIN_CLASS}
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "1234",
    "zookeeper.session.timeout.ms": "8000",
    "offsets.topic.replication.factor": "3",  # more than there are brokers
}
COMMAND = [sys.executable, "-c", "from zkrebalancer.cli.main import main; main()", "cluster"]
HOLDER = """
import sys, time
from pathlib import Path
from zkrebalancer.localcluster.cluster import LocalCluster
cluster = LocalCluster(zookeepers=3, broker="none", directory=Path(sys.argv[1]))
cluster.start()
print("ready", flush=True)
time.sleep(600)
"""


def connect(hosts: str) -> KazooClient:
    client = KazooClient(hosts=hosts, timeout=SESSION_S)
    client.start()
    return client


@pytest.fixture
def clients() -> Iterator[Callable[[str], KazooClient]]:
    """Connect kazoo clients and close them at the end."""
    opened: list[KazooClient] = []

    def open_client(hosts: str) -> KazooClient:
        opened.append(connect(hosts))
        return opened[-1]

    yield open_client
    for client in opened:
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def one_zookeeper() -> Iterator[LocalCluster]:
    with LocalCluster(broker="none", chroot="/below/here") as cluster:
        yield cluster


class StandingCluster:
    """The `cluster` command with a separate home folder."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "zkrebalancer" / "cluster"
        self.environment = {**child_environment(), "XDG_STATE_HOME": str(home)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; what starts no server is a fork, which costs less."""
        if arguments[0] in {"status", "down"}:
            return WarmCommand("zkrebalancer", "cluster", *arguments, environment=self.environment).result()
        return subprocess.run(
            [*COMMAND, *arguments], env=self.environment, capture_output=True, text=True, timeout=500, check=False
        )

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*COMMAND, *arguments], env=self.environment, stderr=subprocess.PIPE)


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[StandingCluster]:
    cluster = StandingCluster(tmp_path)
    yield cluster
    cluster.run("down")


def servers_of(directory: Path) -> list[state.ServerState]:
    found = state.read(directory) if directory.exists() else None
    return [] if found is None else list(found.servers)


def all_dead(servers: list[state.ServerState]) -> bool:
    return len(state.dead_servers(state.ClusterState("", "", {}, tuple(servers)))) == len(servers)


def test_up_status_up_again_and_down_leaves_nothing(standing: StandingCluster) -> None:
    assert standing.run("status").returncode == 1
    first = standing.run("up", "--chroot", "/kafka", "--json")
    assert first.returncode == 0, first.stderr
    address = json.loads(first.stdout)
    assert list(address) == ["zookeeper", "bootstrap", "directory"]
    assert address["zookeeper"].endswith("/kafka")
    client = connect(address["zookeeper"])
    assert client.get_children("/brokers/ids") == ["1"]
    client.stop()
    client.close()

    again = standing.run("up", "--chroot", "/kafka", "--json")
    assert (again.returncode, json.loads(again.stdout)) == (0, address)
    other = standing.run("up", "--zookeepers", "3")
    assert other.returncode == 2
    assert "other settings runs already" in other.stderr
    assert len(other.stderr.splitlines()) == 2  # what it does, and the error

    servers = servers_of(standing.directory)
    assert sorted(server.name for server in servers) == ["kafka", "zookeeper-1"]
    faults.kill(next(server.process.pid for server in servers if server.name == "kafka"))
    status = standing.run("status", "--json")
    assert status.returncode == 0
    assert {one["name"]: one["running"] for one in json.loads(status.stdout)["servers"]} == {
        "zookeeper-1": True,
        "kafka": False,
    }
    refused = standing.run("up", "--chroot", "/kafka")
    assert refused.returncode == 1
    assert "not kafka" in refused.stderr

    assert standing.run("down").returncode == 0
    assert all_dead(servers)
    assert not standing.directory.exists()
    assert standing.run("status").returncode == 1
    assert standing.run("down").returncode == 0


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_that_is_interrupted_leaves_nothing(standing: StandingCluster, ending: signal.Signals) -> None:
    with standing.begin("up") as command:
        wait_until(lambda: len(servers_of(standing.directory)) == 2, "ZooKeeper and the broker to be begun")
        servers = servers_of(standing.directory)
        command.send_signal(ending)
        assert command.wait(WITHIN_S) != 0
    wait_until(lambda: all_dead(servers) and not standing.directory.exists(), "the guard to clean up")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kafka-3.9", "kafka-4"])
def test_records_of_three_brokers_outlive_one(standing: StandingCluster, kind: str) -> None:
    up = standing.run("up", "--broker", kind, "--brokers", "3", "--json")
    assert up.returncode == 0, up.stderr
    address = json.loads(up.stdout)
    servers = {server.name: server for server in servers_of(standing.directory)}
    ports = [servers[name].port for name in ("kafka", "kafka-2", "kafka-3")]
    assert address["bootstrap"] == ",".join(f"127.0.0.1:{port}" for port in ports)
    client = connect(address["zookeeper"])
    assert sorted(client.get_children("/brokers/ids")) == ["1", "2", "3"]
    client.stop()
    client.close()
    admin = AdminClient({"bootstrap.servers": address["bootstrap"]})
    admin.create_topics([NewTopic("kept", 3)])["kept"].result(WITHIN_S)
    faults.kill(servers["kafka-3"].process.pid)
    producer = Producer({"bootstrap.servers": address["bootstrap"], "acks": "all"})
    refused: list[object] = []
    for partition in range(3):
        producer.produce(
            "kept", b"value", partition=partition, on_delivery=lambda error, _record: refused.append(error)
        )
    assert producer.flush(WITHIN_S) == 0
    assert refused == [None] * 3
    other = standing.run("up", "--broker", kind, "--brokers", "3")
    assert (other.returncode, "not kafka-3" in other.stderr) == (1, True), other.stderr
    assert standing.run("down").returncode == 0
    assert all_dead([*servers.values()])
    assert not standing.directory.exists()


def test_nothing_survives_a_holder_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        servers = servers_of(folder)
        assert len(servers) == 3
        assert not all_dead(servers)
        holder.kill()
    wait_until(lambda: all_dead(servers) and not folder.exists(), "the guard to clean up")


def test_a_cluster_started_on_a_thread_outlives_the_thread_and_ends_with_its_programs() -> None:
    cluster = LocalCluster(broker="none")
    (thread := threading.Thread(target=cluster.start)).start()
    thread.join()
    assert zookeeper.zxid(cluster.zookeeper) >= 0
    added = cluster.program("added", [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"])
    added.spawn()
    wait_until(lambda: added.log.read_text() == "here\n", "its output")
    assert [server.name for server in servers_of(cluster.directory)] == ["zookeeper-1", "added"]
    wait_until(lambda: added.is_running, "it")
    folder = cluster.directory
    cluster.stop()
    assert not added.is_running
    assert not folder.exists()


def test_a_server_that_dies_at_its_start_is_reported_with_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    cluster = LocalCluster(broker="none", directory=folder, zookeeper_properties={"tickTime": "soon"})
    with pytest.raises(ServerStartError, match=r"zookeeper-1 ended with exit code 2 .*soon.*; log: .*zookeeper-1\.log"):
        cluster.start()
    assert sorted(path.name for path in folder.iterdir()) == ["guard.log", "zookeeper-1.log"]


def test_an_expired_session_is_over_for_its_owner(
    one_zookeeper: LocalCluster, clients: Callable[[str], KazooClient]
) -> None:
    owner, observer = clients(one_zookeeper.zookeeper), clients(one_zookeeper.zookeeper)
    states: list[str] = []
    owner.add_listener(states.append)
    owner.create("/mine", ephemeral=True)
    session_id, password = owner.client_id
    faults.expire_session(one_zookeeper.zookeeper, session_id, password)
    assert observer.exists("/mine") is None
    wait_until(lambda: KazooState.LOST in states, "the owner to learn it")
    wait_until(lambda: owner.connected and owner.client_id[0] != session_id, "a new session")
    faults.expire_session(one_zookeeper.zookeeper, session_id, password)  # over already: fine


def test_a_wrong_password_expires_nobody(one_zookeeper: LocalCluster, clients: Callable[[str], KazooClient]) -> None:
    owner, observer = clients(one_zookeeper.zookeeper), clients(one_zookeeper.zookeeper)
    owner.create("/kept", ephemeral=True)
    faults.expire_session(one_zookeeper.zookeeper, owner.client_id[0], b"0" * 16)
    assert observer.exists("/kept") is not None


def test_sessions_outlive_a_restart_of_zookeeper(
    one_zookeeper: LocalCluster, clients: Callable[[str], KazooClient]
) -> None:
    owner = clients(patient_hosts(one_zookeeper.zookeeper))
    owner.create("/survivor", ephemeral=True)
    session_id = owner.client_id[0]
    (server,) = one_zookeeper.zookeeper_servers
    first_pid = server.pid
    faults.restart_zookeeper(server)
    assert server.pid != first_pid
    wait_until(lambda: owner.connected, "the client to come back")
    assert owner.client_id[0] == session_id
    assert owner.exists("/survivor").ephemeralOwner == session_id


def test_a_frozen_server_answers_again_when_thawed(one_zookeeper: LocalCluster) -> None:
    (server,) = one_zookeeper.zookeeper_servers
    faults.freeze(server.pid)
    try:
        with pytest.raises(TimeoutError):
            zookeeper.ask("127.0.0.1", server.port, "ruok", zookeeper.PROBE_TIMEOUT_S)
    finally:
        faults.thaw(server.pid)
    assert zookeeper.ask("127.0.0.1", server.port, "ruok") == b"imok"


def test_zxid_counts_transactions(one_zookeeper: LocalCluster, clients: Callable[[str], KazooClient]) -> None:
    client = clients(one_zookeeper.zookeeper)
    before = zookeeper.zxid(one_zookeeper.zookeeper)
    for number in range(7):
        client.create(f"/counted-{number}")
    client.get("/counted-0")
    assert zookeeper.zxid(one_zookeeper.zookeeper) - before == 7


def test_an_ensemble_serves_on_without_one_server(clients: Callable[[str], KazooClient]) -> None:
    with LocalCluster(zookeepers=3, broker="none") as cluster:
        assert len(cluster.zookeeper.split(",")) == 3
        client = clients(cluster.zookeeper)
        leader = next(one for one in cluster.zookeeper_servers if zookeeper.leads(one.port))
        faults.stop_zookeeper(leader)
        assert is_free(leader.port)
        client.retry(client.create, "/after", b"")
        faults.restart_zookeeper(leader)
        wait_until(lambda: client.connected, "the client")
        assert client.retry(client.exists, "/after") is not None


@pytest.fixture(scope="module")
def shared_with_properties() -> Iterator[LocalCluster]:
    with LocalCluster(chroot="/kafka", kafka_properties=PROPERTIES) as cluster:
        yield cluster


@pytest.fixture
def with_properties(shared_with_properties: LocalCluster) -> LocalCluster:
    """Start the broker if another test has left it dead, and wait until it is ready."""
    broker = shared_with_properties.broker
    if not broker.is_running:
        broker.spawn()
    broker.wait_ready()
    return shared_with_properties


def test_a_zookeeper_mode_broker_takes_properties_and_comes_back_after_a_kill(
    with_properties: LocalCluster, clients: Callable[[str], KazooClient]
) -> None:
    cluster = with_properties
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    assert "group.initial.rebalance.delay.ms = 1234\n" in cluster.broker.log.read_text()
    for server in (cluster.broker, *cluster.zookeeper_servers):
        assert f"{MAIN_CLASSES[server.name]}.jsa" in Path(f"/proc/{server.pid}/maps").read_text()
    admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(WITHIN_S)
    client = clients(cluster.zookeeper)
    assert list(json.loads(client.get("/brokers/topics/orders")[0])["partitions"]) == ["0", "1", "2"]
    cluster.broker.kill()
    cluster.broker.start()
    wait_until(lambda: "orders" in admin.list_topics(timeout=WITHIN_S).topics, "the topic after the restart")


def _check_agents_beside_new_members(cluster: LocalCluster) -> None:
    """Try to start an agent beside a member of Kafka's own new protocol (KIP-848), and after it."""
    stage = Stage(cluster, 1)
    stage.produce([0], 5)
    plain = KafkaConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": stage.group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    with closing(stage), closing(plain):
        plain.subscribe([stage.topic])
        assert len(plain.consume(3, WITHIN_S)) == 3
        plain.commit(asynchronous=False)
        with pytest.raises(KafkaOffsetsError, match="has members in Kafka"):
            StoredInKafka({"bootstrap.servers": cluster.bootstrap}, stage.group).refuse_members()
        place: dict[str, Any] = {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap, "group": stage.group}
        for storage in ("zookeeper", "kafka"):
            with Consumer(**place, offsets_storage=storage) as agent:
                agent.subscribe([stage.topic])
                agent.poll(0)
                with pytest.raises(GroupInUseError, match="Kafka's own protocol"):
                    agent.poll(WITHIN_S)
        plain.close()
        with Consumer(**place, offsets_storage="kafka") as agent:
            agent.subscribe([stage.topic])
            agent.poll(0)
            stage.start(stage.wait_member(), 0)
            assert [record.offset for record in agent.poll(WITHIN_S)] == [3, 4]


def test_an_agent_starts_at_brokers_that_cannot_store_offsets_of_groups(with_properties: LocalCluster) -> None:
    """Their `offsets.topic.replication.factor`, by default 3, is above their number: no group coordinator ever answers.

    In `LookAtKafka._learned`, believe nothing: the consumer waits for ever.
    """
    cluster = with_properties
    with closing(Stage(cluster, 1)) as stage:
        stage.produce([0], 5)
        with Consumer(zookeeper=cluster.zookeeper, bootstrap=cluster.bootstrap, group=stage.group) as agent:
            agent.subscribe([stage.topic])
            agent.poll(0)
            stage.start(stage.wait_member(), 0)
            assert [record.offset for record in agent.poll(WITHIN_S)] == [0, 1, 2, 3, 4]


def test_the_mirror_follows_kafka_4(clients: Callable[[str], KazooClient]) -> None:
    with LocalCluster(broker="kafka-4", chroot="/kafka") as cluster:
        client = clients(cluster.zookeeper)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

        def partitions() -> list[str]:
            try:
                return sorted(json.loads(client.get("/brokers/topics/orders")[0])["partitions"])
            except NoNodeError:
                return []

        check_pages(cluster)
        broker = json.loads(client.get("/brokers/ids/1")[0])
        assert f"{broker['host']}:{broker['port']}" == cluster.bootstrap
        assert client.exists("/brokers/ids/1").ephemeralOwner != 0
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(WITHIN_S)
        wait_until(lambda: partitions() == ["0", "1"], "the topic")
        assert json.loads(client.get("/brokers/topics/orders")[0])["partitions"]["0"] == [1]
        admin.create_partitions([NewPartitions("orders", 4)])["orders"].result(WITHIN_S)
        wait_until(lambda: partitions() == ["0", "1", "2", "3"], "more partitions")
        first = client.exists("/brokers/topics/orders").czxid
        admin.delete_topics(["orders"])["orders"].result(WITHIN_S)
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WITHIN_S)
        wait_until(lambda: partitions() == ["0"], "the new topic of the same name")
        assert client.exists("/brokers/topics/orders").czxid > first
        admin.delete_topics(["orders"])["orders"].result(WITHIN_S)
        wait_until(lambda: partitions() == [], "the topic to go")
        _check_agents_beside_new_members(cluster)
