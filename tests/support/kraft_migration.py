"""Moves the broker of a local cluster from ZooKeeper to KRaft, in the steps that Kafka 3.9 documents."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import FORMAT_DEADLINE_S, LocalCluster
from zkrebalancer.localcluster.kafka import MAIN_CLASS, STORAGE_TOOL_CLASS
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import Program
from zkrebalancer.localcluster.zookeeper import render_properties
from zkrebalancer.protocol.calls import Content, Get
from zkrebalancer.runtime.zk import BlockingZk

CONTROLLER_ID = 3_000
ASK_INTERVAL_S = 0.1
MIGRATED = "Completed migration of metadata from ZooKeeper to KRaft"
OF_ZOOKEEPER = ("broker.id", "zookeeper.connect", "zookeeper.session.timeout.ms")


@dataclass
class Migration:
    """One broker that is moved; call the steps in their order."""

    cluster: LocalCluster
    controller: Program | None = None
    _port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def _quorum(self) -> dict[str, str]:
        return {
            "controller.quorum.voters": f"{CONTROLLER_ID}@{HOST}:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    @property
    def _migrating(self) -> dict[str, str]:
        return {"zookeeper.metadata.migration.enable": "true", "zookeeper.connect": self.cluster.zookeeper}

    def begin_controller(self) -> None:
        """Step 1: a KRaft controller, with the cluster's id, that may read ZooKeeper."""
        config = self._write_controller(self._migrating)
        self._run("controller-format", STORAGE_TOOL_CLASS, "format", f"--cluster-id={self._id()}", "--config", config)
        self._begin_controller(config)

    def restart_broker_for_migration(self) -> None:
        """Step 2: the broker, still with ZooKeeper, knows the controller; wait until everything is copied."""
        known = self._read_broker()
        self._restart_broker({**known, **self._quorum, **self._migrating})
        assert self.controller is not None
        log = self.controller.log
        self.controller.wait_until(lambda: MIGRATED in log.read_text(), WITHIN_S)

    def restart_broker_with_kraft(self) -> None:
        """Step 3: the broker without ZooKeeper; the controller still writes topics to ZooKeeper, too."""
        kept = {
            key: value for key, value in self._read_broker().items() if key not in (*OF_ZOOKEEPER, *self._migrating)
        }
        self._restart_broker({**kept, **self._quorum, "process.roles": "broker", "node.id": "1"})

    def finish(self) -> None:
        """Step 4: the controller without ZooKeeper; from now on, nobody writes topics to ZooKeeper."""
        assert self.controller is not None
        self.controller.kill()
        self._begin_controller(self._write_controller({}))

    # ---- files and processes

    def _id(self) -> str:
        with BlockingZk(self.cluster.zookeeper) as zk:
            node = zk.perform(Get("/cluster/id"))
        assert isinstance(node, Content)
        found: str = json.loads(node.content)["id"]
        return found

    def _write_controller(self, more: dict[str, str]) -> str:
        folder = self.cluster.directory
        known = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{HOST}:{self._port}",
            "log.dirs": str(folder / "controller-data"),
        }
        return _write(folder / "controller.properties", {**known, **self._quorum, **more})

    def _begin_controller(self, config: str) -> None:
        self.controller = self.cluster.program("controller", self._java(MAIN_CLASS, config))
        self.controller.spawn()

    def _java(self, *main: str) -> list[str]:
        """Return the broker's command with another main class and other arguments."""
        command = self.cluster.broker._command
        options = [each for each in command[: command.index(MAIN_CLASS)] if not each.startswith("-XX:Shared")]
        return [*options, *main]

    def _run(self, name: str, *main: str) -> None:
        tool = self.cluster.program(name, self._java(*main))
        tool.spawn()
        tool.wait_end(FORMAT_DEADLINE_S)

    def _config(self) -> Path:
        return Path(self.cluster.broker._command[-1])

    def _read_broker(self) -> dict[str, str]:
        lines = self._config().read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _restart_broker(self, known: dict[str, str]) -> None:
        self.cluster.broker.stop()
        _write(self._config(), known)
        self.cluster.broker.start()


def _write(path: Path, known: dict[str, str]) -> str:
    path.write_text(render_properties(known))
    return str(path)
