"""Kafka brokers: configuration in ZooKeeper mode (3.9) and KRaft mode (4.x), and a readiness probe."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.localcluster.server import ASK_INTERVAL_S, START_DEADLINE_S, Server
from zkrebalancer.localcluster.zookeeper import render_properties
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.runtime.zk import BlockingZk

MAIN_CLASS = "kafka.Kafka"
STORAGE_TOOL_CLASS = "kafka.tools.StorageTool"
CONTROLLER = 1  # id of the broker in KRaft mode that is the controller, too
ZOOKEEPER_SESSION_TIMEOUT_MS = 6_000
METADATA_TIMEOUT_S = 1.0
MAX_REPLICAS = 3

_ONE_BROKER = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",  # the default of 128 MiB is too much for a small heap
}

_ZOOKEEPER_MODE = {"zookeeper.session.timeout.ms": str(ZOOKEEPER_SESSION_TIMEOUT_MS)}
_KRAFT_MODE = {
    "broker.session.timeout.ms": "3000",  # a killed broker can register again only after that
    "broker.heartbeat.interval.ms": "500",
}


def settings(extra: Mapping[str, str], *, is_kraft: bool) -> dict[str, str]:
    """Return a broker's properties without its addresses, ids and folders; `extra` adds or overrides some."""
    return {**(_KRAFT_MODE if is_kraft else _ZOOKEEPER_MODE), **_ONE_BROKER, **extra}


def render_zookeeper_mode(number: int, port: int, zookeeper: str, data: Path, extra: Mapping[str, str]) -> str:
    """Return `server.properties` of a 3.9 broker with metadata in ZooKeeper; `number` is its id.

    `extra` adds or overrides properties.
    """
    properties = {
        "broker.id": str(number),
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "zookeeper.connect": zookeeper,
        "log.dirs": str(data),
    }
    return render_properties({**properties, **settings(extra, is_kraft=False)})


def render_kraft_mode(number: int, port: int, controller_port: int, data: Path, extra: Mapping[str, str]) -> str:
    """Return `server.properties` of a 4.x broker; `number` is its id, and the first one is the controller, too.

    `extra` adds or overrides properties.
    """
    roles, listeners = "broker", f"PLAINTEXT://{HOST}:{port}"
    if number == CONTROLLER:
        roles, listeners = f"{roles},controller", f"{listeners},CONTROLLER://{HOST}:{controller_port}"
    properties = {
        "process.roles": roles,
        "node.id": str(number),
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"{CONTROLLER}@{HOST}:{controller_port}",
        "log.dirs": str(data),
    }
    return render_properties({**properties, **settings(extra, is_kraft=True)})


def replicated(brokers: int) -> dict[str, str]:
    """Return the properties with which `brokers` brokers keep replicas; with three, records outlive one broker."""
    replicas = str(min(brokers, MAX_REPLICAS))
    in_sync = str(max(1, min(brokers, MAX_REPLICAS) - 1))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "transaction.state.log.min.isr": in_sync,
    }


def broker_name(number: int) -> str:
    """Return the name of a broker's process: "kafka", "kafka-2", …."""
    return "kafka" if number == 1 else f"kafka-{number}"


def new_cluster_id() -> str:
    """Return a new cluster id in Kafka's format: a UUID in unpadded URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class BrokerProbe:
    """Checks whether one broker serves metadata; keeps its client between calls until the broker answers."""

    def __init__(self, bootstrap: str, count: int = 1) -> None:
        """Prepare to probe the broker at "HOST:PORT"; sends nothing yet. It must know `count` brokers."""
        self._bootstrap = bootstrap
        self._count = count
        self._client: AdminClient | None = None

    def __call__(self) -> bool:
        """Whether the broker answers within METADATA_TIMEOUT_S and lists enough brokers, itself included."""
        if self._client is None:
            self._client = AdminClient(
                {
                    "bootstrap.servers": self._bootstrap,
                    "log_level": 0,  # refused connections are expected here
                    "reconnect.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 100,
                }
            )
        try:
            answered = len(self._client.list_topics(timeout=METADATA_TIMEOUT_S).brokers) >= self._count
        except KafkaException:
            return False
        if answered:
            self._client = None
        return answered


class ZooKeeperModeBroker(Server):
    """A 3.9 broker; after a kill, it can start again only when its old ZooKeeper session has expired."""

    def __init__(
        self,
        number: int,
        command: list[str],
        log: Path,
        on_spawn: Callable[[], None],
        port: int,
        zookeeper: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the broker with the id `number`; `zookeeper` is "HOST:PORT[,…][/CHROOT]"."""
        name, probe = broker_name(number), BrokerProbe(f"{HOST}:{port}")
        super().__init__(name, command, log, on_spawn, port=port, is_ready=probe, environment=environment)
        self._registration = Get(f"{paths.BROKER_IDS}/{number}")
        self._zookeeper = zookeeper

    def spawn(self) -> None:
        """Spawn the process; raises LocalClusterError if its port is in use or its old registration remains."""
        if self.process is not None:
            self._wait_until_unregistered()
        super().spawn()

    def _wait_until_unregistered(self) -> None:
        give_up_at = time.monotonic() + START_DEADLINE_S
        with BlockingZk(self._zookeeper) as client:
            while isinstance(client.perform(self._registration, ABSENT), Content):
                if time.monotonic() > give_up_at:
                    raise LocalClusterError(f"{self._registration.path} still exists: does another broker own it?")
                time.sleep(ASK_INTERVAL_S)
