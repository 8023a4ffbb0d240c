"""Operators' commands, the topic mirror and the coordinator's reader of lag at a broker that asks for a password."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from zkrebalancer.cli import main
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.mirror import read_kafka
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Done, Multi
from zkrebalancer.runtime.kafka import fault
from zkrebalancer.runtime.zk import BlockingZk

GROUP = "g"
WORD = "only-for-operators"
VARIABLE = "ZKREBALANCER_KAFKA_SASL_PASSWORD"
USER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "operator"}
LISTENER = "listener.name.sasl_plaintext"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BROKER = {
    f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN",
    f"{LISTENER}.plain.sasl.jaas.config": f'{LOGIN} required user_operator="{WORD}";',
}
WAIT_S = 20.0
# In a process of its own: where gevent has begun a child, it takes the exit codes of all others too.
READ_LAG = """
import json, sys
from pathlib import Path
from gevent.event import AsyncResult
from zkrebalancer.coordinator.load_reader import LoadReader
from zkrebalancer.rebalance.effects import ReadLoads

answer = AsyncResult()
reader = LoadReader(*json.load(sys.stdin), answer.set)
reader.read(ReadLoads("g", {"t": 1}))
read = answer.get(timeout=20)
seen = [Path(f"/proc/{reader._process.pid}/{what}").read_text() for what in ("cmdline", "environ")]
reader.close()
offsets = {"ends": [int(offset) for offset in read.ends["t"]], "committed": [int(o) for o in read.committed["t"]]}
print(json.dumps({"error": read.error, **offsets, "seen": "".join(seen)}))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start a broker with a topic of ten records and a group that has read two."""
    with LocalCluster(chroot="/secured", kafka_properties=BROKER) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        producer = Producer({"bootstrap.servers": started.bootstrap})
        for _ in range(10):
            producer.produce("t", b"")
        assert producer.flush(WAIT_S) == 0
        with BlockingZk(started.zookeeper) as zk:
            made = [Create(paths.GROUPS), Create(paths.group(GROUP), b'{"version":1,"strategy":"balanced"}')]
            made += [Create(f"{paths.group(GROUP)}/{child}") for child in paths.GROUP_CHILDREN]
            made += [Create(paths.offsets(GROUP, "t"), b"incarnation"), Create(paths.offsets(GROUP, "t", 0), b"2")]
            assert isinstance(zk.perform(Multi(tuple(made))), Done)
        yield started


@pytest.fixture(scope="module")
def secured(cluster: LocalCluster) -> str:
    """Open a second listener, which asks for a password; return its address."""
    address = f"{HOST}:{free_ports(1)[0]}"
    listeners = f"PLAINTEXT://{cluster.bootstrap},SASL_PLAINTEXT://{address}"
    entry = ConfigEntry("listeners", listeners, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([broker])[broker].result(WAIT_S)
    client = AdminClient({"bootstrap.servers": address, "sasl.password": WORD, **USER})
    assert client.list_topics(timeout=WAIT_S).brokers[1].port == int(address.rpartition(":")[2])
    return address


def groups(cluster: LocalCluster, secured: str, password: str, *arguments: str) -> Result:
    """Run a command, with the password where others do not see it."""
    options = ["--zookeeper", cluster.zookeeper, "--bootstrap", secured, "--json"]
    options += [text for key, value in USER.items() for text in ("--kafka", f"{key}={value}")]
    return CliRunner().invoke(main.zkrebalancer, ["groups", *arguments, *options], env={VARIABLE: password})


def test_offsets_are_read_and_reset_by_who_has_the_password(cluster: LocalCluster, secured: str) -> None:
    assert fault(USER) is not None  # librdkafka itself wants a password with the name
    described = groups(cluster, secured, WORD, "describe", GROUP, "--offsets")
    (row,) = json.loads(described.stdout)["offsets"]
    assert (row["log_end_offset"], row["lag"]) == (10, 8)
    planned = groups(cluster, secured, WORD, "plan", GROUP)
    assert json.loads(planned.stdout)["notes"] == ["rates are known to the coordinator only; lag is as of now"]
    reset = groups(cluster, secured, WORD, "reset-offsets", GROUP, "--to-earliest", "--dry-run")
    assert [offset["after"] for offset in json.loads(reset.stdout)["offsets"]] == [0]


def test_a_wrong_password_is_the_reason_that_is_told(
    cluster: LocalCluster, secured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_offsets, "REQUEST_TIMEOUT_S", 1.0)
    refused = groups(cluster, secured, "guessed", "describe", GROUP, "--offsets")
    assert isinstance(refused.exception, kafka_offsets.KafkaOffsetsError), refused.output
    assert "Authentication failed" in str(refused.exception)
    assert "guessed" not in str(refused.exception)
    with pytest.raises(kafka_offsets.KafkaOffsetsError, match="Authentication failed"):
        kafka_offsets.known_log_ends({"bootstrap.servers": secured, "sasl.password": "guessed", **USER}, [("t", 0)])


def test_the_coordinator_reads_lag_and_keeps_the_password_to_itself(cluster: LocalCluster, secured: str) -> None:
    kafka = {"bootstrap.servers": secured, "sasl.password": WORD, **USER}
    ran = subprocess.run(
        [sys.executable, "-c", READ_LAG],
        input=json.dumps([cluster.zookeeper, kafka]),
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=60,
        check=True,
    )
    read = json.loads(ran.stdout)
    assert (read["error"], read["ends"], read["committed"]) == (None, [10], [2])
    assert "load_process" in read["seen"]
    assert WORD not in read["seen"]


def test_the_mirror_tells_how_brokers_are_reached(secured: str) -> None:
    admin = AdminClient({"bootstrap.servers": secured, "sasl.password": WORD, **USER})
    assert [broker.endpoint for broker in read_kafka(admin, "SASL_PLAINTEXT").brokers.values()] == [
        f"SASL_PLAINTEXT://{secured}"
    ]
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": secured, "log_level": 0}).list_topics(timeout=1)
