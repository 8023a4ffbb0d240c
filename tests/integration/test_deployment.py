"""Coordinators as systemd runs them: endpoints, signals, the notify socket and the watchdog, on a real ZooKeeper.

The test plays systemd: it listens at the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import command_of, run
from tests.support.answers import get
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Content, Create, Get, Multi
from zkrebalancer.runtime.zk import BlockingZk

WATCHDOG_S = 4
SESSION_MS = 1_000


class Served:
    """A coordinator with a file of settings, started as systemd starts it."""

    def __init__(self, zookeeper: str, folder: Path, broker_id: int) -> None:
        self.http = f"{HOST}:{free_ports(1)[0]}"
        self.file = folder / f"coordinator-{broker_id}.toml"
        self.settings = f'zookeeper = "{zookeeper}"\nhttp = "{self.http}"\nsession_timeout_ms = {SESSION_MS}\n'
        self.file.write_text(self.settings)
        self.log = folder / f"coordinator-{broker_id}.log"
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(str(folder / f"notify-{broker_id}"))
        self._systemd.setblocking(False)  # noqa: FBT003
        self.told: list[str] = []
        environment = {"NOTIFY_SOCKET": str(self._systemd.getsockname()), "WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command_of("zkrebalancer", "coordinator", "--broker-id", broker_id), "--config", str(self.file)],
                env={**child_environment(), **environment},
                stdout=log,
                stderr=log,
            )

    def get(self, path: str) -> tuple[int, str]:
        return get(self.http, path)

    def document(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get(path)[1])
        return found

    def listen(self) -> list[str]:
        """Return what systemd was told since the last call."""
        new: list[str] = []
        while True:
            try:
                new.append(self._systemd.recv(4_096).decode())
            except BlockingIOError:
                self.told += new
                return new

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WITHIN_S)
        self._systemd.close()


@pytest.fixture
def zookeeper(shared_cluster: LocalCluster) -> str:
    """Return another chroot of the shared server."""
    server, _, _ = shared_cluster.zookeeper.partition("/")
    with BlockingZk(server) as zk:
        zk.perform(Multi((Create("/deployment"), Create("/deployment/consumers"))))
        zk.perform(Multi((Create(f"/deployment{paths.GROUPS}"), Create(f"/deployment{paths.group('g')}"))))
    return f"{server}/deployment"


@pytest.fixture
def start(zookeeper: str, tmp_path: Path) -> Iterator[Callable[[int], Served]]:
    started: list[Served] = []

    def begin(broker_id: int) -> Served:
        started.append(Served(zookeeper, tmp_path, broker_id))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def test_a_coordinator_as_systemd_runs_it(
    start: Callable[[int], Served], shared_cluster: LocalCluster, zookeeper: str
) -> None:
    leader = start(1)
    wait_until(lambda: any("READY=1" in told for told in leader.listen()), "systemd is told that it is ready")
    wait_until(lambda: leader.get("leader")[0] == 200, "it leads")
    standby = start(2)
    wait_until(lambda: standby.get("readiness")[0] == 200, "the standby is ready")
    assert standby.get("leader")[0] == 503
    assert leader.document("leader") == {"leader": True, "broker_id": 1, "state": "leading", "epoch": 1}
    with BlockingZk(zookeeper) as zk:
        node = zk.perform(Get(paths.COORDINATOR))
    assert isinstance(node, Content)
    assert str(cluster_nodes.decode_coordinator(node.content).http).endswith(f":{leader.http.rpartition(':')[2]}")
    wait_until(lambda: 'coordinator_groups{state="idle"} 1.0' in leader.get("metrics")[1], "the group is read")

    _check_signals(leader)
    _check_watchdog(leader, shared_cluster)

    wait_until(lambda: 200 in {leader.get("leader")[0], standby.get("leader")[0]}, "one leads again")
    first, other = (leader, standby) if leader.get("leader")[0] == 200 else (standby, leader)
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(WITHIN_S) == 0
    assert first.listen()[-1] == "STOPPING=1"
    wait_until(lambda: other.get("leader")[0] == 200, "the other one leads")


def _check_signals(leader: Served) -> None:
    assert 'group="g"' not in leader.get("metrics")[1]
    leader.file.write_text(f"{leader.settings}metrics_per_group = true\nhost = 'other'\n")
    leader.process.send_signal(signal.SIGHUP)
    wait_until(lambda: 'group_members{group="g"} 0.0' in leader.get("metrics")[1], "metrics of the group")
    assert "a restart is needed for the new values of host" in leader.log.read_text()
    leader.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "group g: idle for " in leader.log.read_text(), "the state in the log")
    assert "coordinator 1: leads; 1 groups; " in leader.log.read_text()
    assert "INFO coordinator 1 leads, epoch 1" in leader.log.read_text()


def _check_watchdog(leader: Served, cluster: LocalCluster) -> None:
    (server,) = cluster.zookeeper_servers
    leader.listen()
    wait_until(lambda: any("WATCHDOG=1" in told for told in leader.listen()), "the watchdog is fed")
    faults.freeze(server.pid)
    try:
        wait_until(lambda: any("WATCHDOG=1" not in told for told in leader.listen()), "the watchdog is not fed")
        status, text = leader.get("liveness")
        assert (status, json.loads(text)["alive"]) == (503, False)
        assert json.loads(text)["faults"][0].startswith("ZooKeeper has not answered for ")
        assert leader.get("readiness")[0] == leader.get("leader")[0] == 503
    finally:
        faults.thaw(server.pid)
    wait_until(lambda: leader.get("liveness")[0] == 200, "it is alive again")
    leader.listen()
    wait_until(lambda: any("WATCHDOG=1" in told for told in leader.listen()), "the watchdog is fed again")


@pytest.mark.parametrize("is_other_server", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_tree_is_kept_and_restored_elsewhere(
    shared_cluster: LocalCluster, tmp_path: Path, is_other_server: bool
) -> None:
    server, _, _ = shared_cluster.zookeeper.partition("/")
    root = f"/kept-{is_other_server}"
    file, group = tmp_path / "tree.backup", paths.group("g")
    nodes = {
        "generation": b"7",
        "offsets": b"",
        "offsets/t": b"id-1 czxid-5",
        "offsets/t/0": b"41",
        "offsets/t/1": b"42",
    }
    creates = [Create(path) for path in (root, f"{root}/consumers", f"{root}{paths.GROUPS}", f"{root}{group}")]
    creates += [Create(f"{root}{group}/{name}", content) for name, content in nodes.items()]
    with BlockingZk(server) as zk:
        zk.perform(Multi(tuple(creates)))
    kept = run("zkrebalancer", "backup", file, "--zookeeper", f"{server}{root}", "--json")
    assert (kept.returncode, json.loads(kept.stdout)["nodes"]) == (0, 3 + len(nodes)), kept.stderr
    assert run("zkrebalancer", "backup", file, "--zookeeper", f"{server}{root}").returncode == 1

    with contextlib.ExitStack() as stack:
        if is_other_server:
            other = stack.enter_context(LocalCluster(broker="none", directory=tmp_path / "other"))
            server, _, _ = other.zookeeper.partition("/")
        topic = '{"version": 3, "topic_id": "id-1", "partitions": {"0": [1], "1": [1]}}'
        with BlockingZk(server) as zk:
            above = [Create(f"{root}-restored{path}") for path in ("", "/brokers", paths.BROKER_TOPICS)]
            zk.perform(Multi((*above, Create(f"{root}-restored{paths.topic('t')}", topic.encode()))))
        elsewhere, began_us = f"{server}{root}-restored", time.time_ns() // 1_000
        done = run("zkrebalancer", "restore", file, "--zookeeper", elsewhere, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["created"] == len(nodes) + 2  # the group, and where generations begin
        refused = run("zkrebalancer", "restore", file, "--zookeeper", elsewhere)
        assert (refused.returncode, "--overwrite" in refused.stderr) == (1, True)
        leader = Served(elsewhere, tmp_path, 3)
        stack.callback(leader.close)
        wait_until(lambda: 'coordinator_groups{state="idle"} 1.0' in leader.get("metrics")[1], "the group is read")
        refused = run("zkrebalancer", "restore", file, "--zookeeper", elsewhere, "--overwrite")
        assert (refused.returncode, "a coordinator leads here" in refused.stderr) == (1, True)
        with BlockingZk(elsewhere) as zk:
            found = zk.perform_all([Get(f"{group}/{name}") for name in ("generation", "offsets/t/0", "offsets/t/1")])
        generation, *offsets = (node.content for node in found if isinstance(node, Content))
        assert (int(generation) > began_us, offsets) == (True, [b"41", b"42"])
