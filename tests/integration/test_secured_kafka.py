"""Commands, the topic mirror, the reader of lag and the gateway at a broker that asks for passwords, also with TLS."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic

from consumer_agent import AsyncConsumer, ConsumerStateError
from consumer_agent import Consumer as ConsumerOfAgent
from tests.integration.fake_coordinator import Stage
from tests.integration.gateway_process import GatewayProcess
from tests.integration.tokens import identity_provider, new_token
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.cli import main
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Done, Multi
from zkrebalancer.runtime.kafka import fault
from zkrebalancer.runtime.zk import BlockingZk
from zkrebalancer.topic_mirror.kafka_metadata import read_kafka

GROUP = "g"
WORD = "only-for-operators"
VARIABLE = "ZKREBALANCER_KAFKA_SASL_PASSWORD"
USER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "operator"}
LISTENER, ENCRYPTED = "listener.name.sasl_plaintext", "listener.name.sasl_ssl"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
TLS = Path(__file__).parents[1] / "support" / "tls"
CERTIFICATE = str(TLS / "localhost.pem")
BROKER = {
    f"{LISTENER}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    f"{LISTENER}.oauthbearer.sasl.jaas.config": f'{BEARER_LOGIN} unsecuredLoginStringClaim_sub="-";',
    f"{LISTENER}.oauthbearer.connections.max.reauth.ms": "60000",  # the broker wants to see renewed tokens
    f"{LISTENER}.plain.sasl.jaas.config": f'{LOGIN} user_operator="{WORD}";',
    f"{ENCRYPTED}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{ENCRYPTED}.plain.sasl.jaas.config": f'{LOGIN} user_alice="alices";',
    f"{ENCRYPTED}.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
    f"{ENCRYPTED}.ssl.keystore.type": "PEM",
    f"{ENCRYPTED}.ssl.keystore.location": CERTIFICATE,
    f"{ENCRYPTED}.ssl.truststore.type": "PEM",
    f"{ENCRYPTED}.ssl.truststore.location": str(TLS / "ca.pem"),
    f"{ENCRYPTED}.ssl.client.auth": "required",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:operator",
}
OWN_TLS = {
    "ssl.ca.location": str(TLS / "ca.pem"),
    "ssl.certificate.location": CERTIFICATE,
    "ssl.key.location": CERTIFICATE,
}
ALICE = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "alices",
    "log_level": "0",
    **OWN_TLS,
}
TOKEN_LIFE_S = 6.0  # it is renewed after four fifths of it
# In a separate process: once gevent has started a child, it collects the exit codes of all others too.
READ_LAG = """
import json, sys
from pathlib import Path
from gevent.event import AsyncResult
from zkrebalancer.coordinator.load_reader import LoadReader
from zkrebalancer.rebalance.effects import ReadLoads

answer = AsyncResult()
reader = LoadReader(*json.load(sys.stdin), answer.set)
reader.read(ReadLoads("g", {"t": 1}))
read = answer.get(timeout=150)
seen = [Path(f"/proc/{reader._process._process.pid}/{what}").read_text() for what in ("cmdline", "environ")]
reader.close()
offsets = {"ends": [int(offset) for offset in read.ends["t"]], "committed": [int(o) for o in read.committed["t"]]}
print(json.dumps({"error": read.error, **offsets, "seen": "".join(seen)}))
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command give up on a busy broker."""
    monkeypatch.setattr(kafka_offsets, "REQUEST_TIMEOUT_S", WITHIN_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start a broker with a topic of ten records and a group that has read two."""
    with LocalCluster(chroot="/secured", kafka_properties=BROKER) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        for topic in admin.create_topics([NewTopic("t", 1, 1), NewTopic("secret", 1, 1)]).values():
            topic.result(WITHIN_S)
        producer = Producer({"bootstrap.servers": started.bootstrap})
        for _ in range(10):
            producer.produce("t", b"")
        assert producer.flush(WITHIN_S) == 0
        with BlockingZk(started.zookeeper) as zk:
            made = [Create(paths.GROUPS), Create(paths.group(GROUP), b'{"version":1,"strategy":"balanced"}')]
            made += [Create(f"{paths.group(GROUP)}/{child}") for child in paths.GROUP_CHILDREN]
            made += [Create(paths.offsets(GROUP, "t"), b"incarnation"), Create(paths.offsets(GROUP, "t", 0), b"2")]
            assert isinstance(zk.perform(Multi(tuple(made))), Done)
        yield started


@pytest.fixture(scope="module")
def addresses(cluster: LocalCluster) -> tuple[str, str]:
    """Open two more listeners, which ask for passwords, the second one with TLS; return their addresses."""
    address, encrypted = (f"{HOST}:{port}" for port in free_ports(2))
    listeners = f"PLAINTEXT://{cluster.bootstrap},SASL_PLAINTEXT://{address},SASL_SSL://{encrypted}"
    entry = ConfigEntry("listeners", listeners, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([broker])[broker].result(WITHIN_S)
    client = AdminClient({"bootstrap.servers": address, "sasl.password": WORD, **USER})
    # The listener answers before the broker knows its address for it.
    wait_until(lambda: client.list_topics(timeout=WITHIN_S).brokers, "the broker to list itself")
    assert client.list_topics(timeout=WITHIN_S).brokers[1].port == int(address.rpartition(":")[2])
    return address, encrypted


@pytest.fixture(scope="module")
def secured(addresses: tuple[str, str]) -> str:
    """Return the address that asks for a password."""
    return addresses[0]


@pytest.fixture(scope="module")
def gateway(
    cluster: LocalCluster, addresses: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run a gateway with TLS on both sides, which logs in itself; return its address."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    scram = UserScramCredentialUpsertion(
        "operator", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), WORD.encode()
    )
    admin.alter_user_scram_credentials([scram])["operator"].result(WITHIN_S)
    rights = [acl(ResourceType.GROUP, "allowed"), acl(ResourceType.TOPIC, "t")]
    for done in admin.create_acls(rights).values():
        done.result(WITHIN_S)
    settings = {
        **OWN_TLS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "operator",
    }
    one = GatewayProcess(
        cluster,
        tmp_path_factory.mktemp("gateway"),
        *(
            "--upstream",
            addresses[1],
            *(text for key, value in settings.items() for text in ("--kafka", f"{key}={value}")),
        ),
        *("--tls-certificate", CERTIFICATE, "--tls-client-ca", TLS / "ca.pem"),
        environment={VARIABLE: WORD},
    )
    one.start()
    yield one.bootstrap
    assert one.stop() == 0
    assert one.troubles() == []


def acl(kind: ResourceType, name: str) -> AclBinding:
    """Let Alice read something."""
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW
    )


def groups(cluster: LocalCluster, secured: str, password: str, *arguments: str) -> Result:
    """Run a command, with the password hidden from other users."""
    options = ["--zookeeper", cluster.zookeeper, "--bootstrap", secured, "--json"]
    options += [text for key, value in USER.items() for text in ("--kafka", f"{key}={value}")]
    return CliRunner().invoke(main.zkrebalancer, ["groups", *arguments, *options], env={VARIABLE: password})


def test_offsets_are_read_and_reset_by_who_has_the_password(cluster: LocalCluster, secured: str) -> None:
    assert fault(USER) is not None  # librdkafka itself wants a password with the name
    described = groups(cluster, secured, WORD, "describe", GROUP, "--offsets")
    assert described.exit_code == 0, described.output
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
        timeout=WITHIN_S,
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


def consumer(gateway: str, group: str, **settings: str) -> Consumer:
    own = {
        "bootstrap.servers": gateway,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    return Consumer({**ALICE, **own, **settings})


def first_error(one: Consumer) -> KafkaError:
    """Return why a consumer gets nothing."""
    one.subscribe(["t"])
    while True:
        message = one.poll(WITHIN_S)
        assert message is not None
        error = message.error()
        if error is not None:
            one.close()
            return error


def error_of(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def test_a_client_has_its_own_rights_behind_the_gateway(cluster: LocalCluster, gateway: str) -> None:
    reader = consumer(gateway, "allowed")
    reader.subscribe(["t"])
    assert len(reader.consume(10, WITHIN_S)) == 10
    reader.commit(asynchronous=False)
    kept = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "allowed"})  # at the broker itself
    assert [one.offset for one in kept.committed([TopicPartition("t", 0)], timeout=WITHIN_S)] == [10]
    both = [TopicPartition("t", 0, 9), TopicPartition("secret", 0, 5)]
    refused = error_of(lambda: reader.commit(offsets=both, asynchronous=False))
    assert refused == KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = kept.committed([TopicPartition("t", 0), TopicPartition("secret", 0)], timeout=WITHIN_S)
    assert [one.offset for one in found] == [9, -1001]  # the second one has none
    kept.close()
    alice = AdminClient({"bootstrap.servers": gateway, **ALICE})
    delete = alice.delete_consumer_groups(["allowed"])["allowed"]
    assert error_of(lambda: delete.result(WITHIN_S)) == KafkaError.GROUP_AUTHORIZATION_FAILED
    reader.close()


def test_groups_of_others_are_refused_and_not_shown(gateway: str) -> None:
    assert first_error(consumer(gateway, "of-others")).code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert first_error(consumer(gateway, "of-others", **{"group.protocol": "consumer"})).code() == (
        KafkaError.GROUP_AUTHORIZATION_FAILED
    )
    operator = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "operator", "sasl.password": WORD}
    other = consumer(gateway, "of-others", **operator)
    other.subscribe(["t"])
    assert len(other.consume(10, WITHIN_S)) == 10
    listed = {
        name: {one.id for one in AdminClient({"bootstrap.servers": gateway, **user}).list_groups(timeout=WITHIN_S)}
        for name, user in (("alice", ALICE), ("operator", ALICE | operator))
    }
    assert "of-others" in listed["operator"] - listed["alice"]
    other.close()


def test_a_client_that_has_not_shown_who_it_is_is_not_answered(gateway: str) -> None:
    host, _, port = gateway.rpartition(":")
    context = ssl.create_default_context(cafile=OWN_TLS["ssl.ca.location"])
    context.load_cert_chain(CERTIFICATE)
    heartbeat = struct.pack(">ihhih", 21, 12, 0, 1, -1) + b"\0\7allowed" + b"\0\0\0\0"
    for number in range(2):  # at the gateway, and at the broker's port
        plain = socket.create_connection((host, int(port) + number), timeout=WITHIN_S)
        with context.wrap_socket(plain, server_hostname=host) as client:
            client.sendall(heartbeat)
            assert client.recv(100) == b""
    wrong = AdminClient({"bootstrap.servers": gateway, **ALICE, "sasl.password": "guessed"})
    assert error_of(lambda: wrong.list_topics(timeout=3)) == KafkaError._TRANSPORT


def test_a_client_without_a_certificate_is_refused(gateway: str) -> None:
    host, _, port = gateway.rpartition(":")
    context = ssl.create_default_context(cafile=OWN_TLS["ssl.ca.location"])
    plain = socket.create_connection((host, int(port)), timeout=WITHIN_S)
    with pytest.raises(ssl.SSLError), context.wrap_socket(plain, server_hostname=host) as client:
        client.recv(1)


@pytest.fixture
def stage_of_tokens(cluster: LocalCluster) -> Iterator[Stage]:
    """Create a topic and a group; the test plays the coordinator."""
    stage = Stage(cluster)
    yield stage
    stage.close()


def with_tokens(oauth_cb: Callable[[str], object], **settings: Any) -> dict[str, Any]:
    own = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": oauth_cb}
    return own | settings


def test_an_agent_reads_with_tokens_and_hears_of_events(
    cluster: LocalCluster, secured: str, stage_of_tokens: Stage
) -> None:
    """Tokens are renewed while nothing is polled, and a failure is reported; the reports wait for a poll."""
    stage, asked, told = stage_of_tokens, list[tuple[str, int]](), dict[str, tuple[int, Any]]()
    is_broken = threading.Event()

    def oauth_cb(config: str) -> tuple[str, float]:
        asked.append((config, threading.get_ident()))
        if is_broken.is_set():
            raise PermissionError("no more tokens")
        return new_token("operator", TOKEN_LIFE_S)

    def tell(name: str) -> Callable[[Any], None]:
        return lambda report: told.update({name: (threading.get_ident(), report)})

    more = {"sasl.oauthbearer.config": "scope=read", "statistics.interval.ms": 50, "debug": "security"}
    functions = {"stats_cb": tell("stats"), "error_cb": tell("error"), "logger": logging.getLogger("of-the-test")}
    kafka_config = with_tokens(oauth_cb, **more, **functions)
    servers: dict[str, Any] = {"zookeeper": cluster.zookeeper, "bootstrap": secured, "group": stage.group}
    with ConsumerOfAgent(**servers, offsets_storage="dual", kafka_config=kafka_config) as one:
        one.subscribe([stage.topic])
        wait_until(lambda: one.poll(0.05) or "stats" in told, "statistics without partitions")
        waiting = one._frontend.shared._notices
        wait_until(lambda: waiting, "statistics after the poll")
        former = waiting[-1].call
        wait_until(lambda: waiting[-1].call is not former, "newer statistics while nothing is polled")
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        stage.produce([0], 5)
        wait_until(lambda: one.poll(0.05), "records")
        one.commit()
        count = len(asked)
        wait_until(lambda: len(asked) > count + 1, "tokens to be renewed")
        is_broken.set()
        # A poll may return records that were left.
        wait_until(
            lambda: (one.poll(0.05), "OAuth callback" in str(told.get("error")))[1], "the failure to be reported"
        )
        thread, error = told["error"]  # closing may report another one
    assert (thread, error.code()) == (threading.get_ident(), KafkaError._AUTHENTICATION)
    assert told["stats"][0] == threading.get_ident()
    assert json.loads(told["stats"][1])["type"] == "consumer"
    assert {config for config, _ in asked} == {"scope=read"}
    assert threading.get_ident() not in {thread for _, thread in asked}


def test_tokens_do_not_block_an_event_loop(cluster: LocalCluster, secured: str, stage_of_tokens: Stage) -> None:
    """Kafka's clients wait for their first token, while other tasks run; a consumer may be closed meanwhile."""
    stage = stage_of_tokens
    stage.produce([0], 5)
    kafka_config = with_tokens(lambda _: new_token("operator", 60.0))

    def new_consumer() -> AsyncConsumer:
        servers: dict[str, Any] = {"zookeeper": cluster.zookeeper, "bootstrap": secured, "group": stage.group}
        one = AsyncConsumer(**servers, kafka_config=kafka_config)
        one.subscribe([stage.topic])
        return one

    async def consume() -> list[int]:
        closed = new_consumer()
        first = asyncio.create_task(closed.poll(0))
        turns = 0
        while not first.done():
            turns += 1
            await asyncio.sleep(0.01)
            if turns == 5:
                await closed.close()
        assert turns > 10
        with pytest.raises(ConsumerStateError, match="closed"):
            await first
        async with new_consumer() as one:
            async for batch in one:
                return [record.offset for record in batch]
        return []

    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(asyncio.run, consume())
        stage.start(stage.wait_member(), 0)
        assert reading.result(WITHIN_S) == [0, 1, 2, 3, 4]
    wait_until(lambda: not any("consumer-agent" in one.name for one in threading.enumerate()), "threads to end")


def test_a_command_gets_its_token_from_an_identity_provider(cluster: LocalCluster, secured: str) -> None:
    """By librdkafka's own settings (OIDC), as `consumer-agent run --kafka` and all commands may have them."""
    with identity_provider("operator") as url:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "operators",
            "sasl.oauthbearer.client.secret": WORD,
            "sasl.oauthbearer.token.endpoint.url": url,
        }
        options = ["--zookeeper", cluster.zookeeper, "--bootstrap", secured, "--json"]
        options += [text for key, value in settings.items() for text in ("--kafka", f"{key}={value}")]
        found = CliRunner().invoke(main.zkrebalancer, ["groups", "describe", GROUP, "--offsets", *options])
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)["offsets"]
    assert (row["log_end_offset"], row["lag"]) == (10, 8)
