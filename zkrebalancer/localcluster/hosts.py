"""A cluster of Docker hosts: each runs a ZooKeeper server, a Kafka broker and a coordinator.

A host is a container without files of its own: it sees this machine's files, read-only and at the same paths, and the
cluster's folder. So there is no image to build or to fetch, and the same Java, jars and Python run inside and outside.
Hosts have fixed addresses in a network of their own, which this machine can reach.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from zkrebalancer.localcluster import host_init, jars, kafka, zookeeper
from zkrebalancer.localcluster.class_archives import ClassArchives
from zkrebalancer.localcluster.cluster import LocalCluster, create_chroot
from zkrebalancer.localcluster.containers import Engine, Host, visible_folders
from zkrebalancer.localcluster.errors import ServerStartError
from zkrebalancer.localcluster.programs import LOGGING, java_command
from zkrebalancer.localcluster.server import ASK_INTERVAL_S, START_DEADLINE_S, child_environment
from zkrebalancer.localcluster.state import HostState
from zkrebalancer.protocol.errors import ConfigurationError

HOST_COUNTS = (1, 3, 5)
FIRST_ADDRESS = 11  # of the first host, within the network; Docker gives this machine the address 1
ZOOKEEPER_PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888
BROKER_PORT = 9092
HTTP_PORT = 8080
HTTP_TIMEOUT_S = 2.0
LAG_MS = 8_000  # a ZooKeeper server that is silent for longer leaves the ensemble
ZOOKEEPER_CONNECT_MS = 60_000  # a broker waits this long for the ensemble
_GIVE_NUMBER = 'mkdir -p "$2" && cp "$1" "$2" && shift 2 && exec "$@"'
_KEPT = ("HOME", "LANG", "PATH", "PYTHONPATH")  # of this process's environment


class HostCluster(LocalCluster):
    """Docker hosts; a context manager. `hosts` are the hosts, `hosts[0]` has the ids 1 of its servers."""

    def __init__(
        self,
        *,
        hosts: int = 3,
        chroot: str = "",
        directory: Path | None = None,
        events: Path | None = None,
        session_timeout_ms: int = 8_000,
        disk_mb: int | None = None,
        kafka_properties: Mapping[str, str] | None = None,
        cache: Path | None = None,
        kafka_home: Path | None = None,
        engine: str = "",
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Configure a cluster; `start` starts it.

        `events`: where coordinators write their events; the folder must exist. `session_timeout_ms` is that of
        coordinators and brokers. `disk_mb`: each host keeps its data in memory, at most this much, and loses it when it
        is stopped or killed; by default the data is in the cluster's folder. `engine`: the address of a Docker engine
        (default: DOCKER_HOST, or else the machine's). The rest is as for `LocalCluster`.

        Raises:
            ConfigurationError: a setting is out of range.

        """
        if hosts not in HOST_COUNTS:
            raise ConfigurationError(f"a cluster has {', '.join(map(str, HOST_COUNTS))} hosts, not {hosts}")
        super().__init__(
            chroot=chroot,
            directory=directory,
            kafka_properties=kafka_properties,
            cache=cache,
            kafka_home=kafka_home,
            report=report,
        )
        self.hosts: list[Host] = []
        self._host_count = hosts
        self._events = events
        self._session_timeout_ms = session_timeout_ms
        self._disk_mb = disk_mb
        self._engine_address = engine
        self._has_failed_host = False

    @property
    def settings(self) -> dict[str, str]:
        """The settings that distinguish this cluster from others."""
        return {"hosts": str(self._host_count), "chroot": self.chroot}

    def start(self) -> None:
        """Start every host and return when all servers answer; on failure, nothing is left but logs.

        Raises:
            MissingToolError, LocalClusterError: there is no Docker engine, or it refuses something.
            And what `LocalCluster.start` raises.

        """
        self._engine_address = Engine(self._engine_address, "").address  # before anything is created
        super().start()

    def stop(self) -> None:
        """Remove every host, kill every process and remove the folder, except for the logs if a start failed."""
        if self._directory is not None:
            Engine(self._engine_address, str(self._directory)).remove_all()
        super().stop()
        self.hosts = []

    def wait_ready(self, *hosts: Host) -> None:
        """Wait until all servers of these hosts answer, and their brokers know each other (default: all hosts).

        Raises:
            ServerStartError: a host has ended, or a server did not answer in time.

        """
        for host in hosts or self.hosts:
            self._wait(host, "zookeeper", zookeeper.ServingProbe(ZOOKEEPER_PORT, host.address))
            self._wait(host, "kafka", kafka.BrokerProbe(f"{host.address}:{BROKER_PORT}", self._host_count))
            self._wait(host, "coordinator", partial(is_coordinator_ready, host.address))

    def _start_servers(self, java: str, class_paths: Mapping[str, str], archives: ClassArchives | None) -> None:
        engine = Engine(self._engine_address, str(self.directory))
        engine.remove_all()  # left by an earlier cluster in this folder
        network = engine.create_network()
        addresses = [str(network[FIRST_ADDRESS + index]) for index in range(self._host_count)]
        servers = ",".join(f"{address}:{ZOOKEEPER_PORT}" for address in addresses)
        self.zookeeper = servers + self.chroot
        self.bootstrap = ",".join(f"{address}:{BROKER_PORT}" for address in addresses)
        (self.directory / "tmp").mkdir()
        class_path = class_paths[jars.KAFKA_3]
        needed = [java, sys.prefix, sys.base_prefix, str(LOGGING), *child_environment()["PYTHONPATH"].split(os.pathsep)]
        needed += [*class_path.split(":"), *([str(archives.folder)] if archives else [])]
        mounts = dict.fromkeys(visible_folders(needed), "ro")
        mounts |= {str(folder): "rw" for folder in (self.directory, self._events) if folder is not None}
        environment = {name: text for name, text in child_environment().items() if name in _KEPT}
        image = engine.import_base()
        for index, address in enumerate(addresses):
            folder = self.directory / f"host-{index + 1}"
            data = folder / "data"
            data.mkdir(parents=True)
            init = self._write_programs(index, addresses, folder, (java, class_path, archives))
            disk = None if self._disk_mb is None else (str(data), self._disk_mb)
            self.hosts.append(engine.create_host(folder.name, address, image, init, mounts, environment, disk))
        self._write_state()
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            self._wait(host, "zookeeper", zookeeper.ServingProbe(ZOOKEEPER_PORT, host.address))
        create_chroot(servers, self.chroot)
        self.wait_ready()

    def _write_programs(
        self, index: int, addresses: list[str], folder: Path, jvm: tuple[str, str, ClassArchives | None]
    ) -> list[str]:
        """Write the configuration of a host's programs; return the command of its first process."""
        java, class_path, archives = jvm
        address, number, data = addresses[index], str(index + 1), folder / "data"
        members = [zookeeper.EnsembleMember(ZOOKEEPER_PORT, PEER_PORT, ELECTION_PORT, each) for each in addresses]
        own = {"dataLogDir": str(data / "zookeeper-log"), "syncLimit": str(LAG_MS // self._tick_ms)}
        kafka_own = {
            "listeners": f"PLAINTEXT://{address}:{BROKER_PORT}",
            "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
            "zookeeper.connection.timeout.ms": str(ZOOKEEPER_CONNECT_MS),
            **kafka.replicated(self._host_count),
            **self._kafka_properties,
        }
        texts = {
            "zookeeper": zookeeper.render_config(members, index, data / "zookeeper", self._tick_ms, own),
            "kafka": kafka.render_zookeeper_mode(index + 1, BROKER_PORT, self.zookeeper, data / "kafka", kafka_own),
        }
        for name, text in texts.items():
            (folder / f"{name}.properties").write_text(text)
        (folder / "myid").write_text(number)
        servers = {"zookeeper": (self._zookeeper_heap_mb, zookeeper.MAIN_CLASS)}
        servers["kafka"] = (self._kafka_heap_mb, kafka.MAIN_CLASS)
        commands = {
            name: java_command(
                java, class_path, heap, self.directory / "tmp", archives, main, str(folder / f"{name}.properties")
            )
            for name, (heap, main) in servers.items()
        }
        # On an empty disk, ZooKeeper needs its number first.
        give_number = ["/bin/sh", "-c", _GIVE_NUMBER, "sh", str(folder / "myid"), str(data / "zookeeper")]
        commands["zookeeper"] = give_number + commands["zookeeper"]
        commands["coordinator"] = self._coordinator(number, address)
        programs = [
            {"command": command, "log": str(self.directory / f"{folder.name}-{name}.log")}
            for name, command in commands.items()
        ]
        file = folder / "programs.json"
        file.write_text(json.dumps(programs, indent=1))
        return [sys.executable, "-I", "-S", str(Path(host_init.__file__).resolve()), str(file)]

    def _coordinator(self, number: str, address: str) -> list[str]:
        options = {
            "--zookeeper": self.zookeeper,
            "--broker-id": number,
            "--host": address,
            "--bootstrap": self.bootstrap,
            "--session-timeout-ms": str(self._session_timeout_ms),
            "--http": f"{address}:{HTTP_PORT}",
        }
        if self._events is not None:
            options["--events"] = str(self._events)
        command = [sys.executable, "-m", "zkrebalancer.cli.main", "coordinator"]
        return command + [text for option in options.items() for text in option]

    def _wait(self, host: Host, server: str, is_ready: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + START_DEADLINE_S
        while not is_ready():
            problem = None
            if not host.is_running:
                problem = f"{host.name} has ended"
            elif time.monotonic() > give_up_at:
                problem = f"{server} on {host.name} was not ready within {START_DEADLINE_S:g} s"
            if problem is not None:
                self._has_failed_host = True
                raise ServerStartError(f"{problem}; logs: {self.directory / host.name}-*.log")
            time.sleep(ASK_INTERVAL_S)

    def _hosts_state(self) -> tuple[tuple[HostState, ...], str]:
        hosts = tuple(HostState(host.name, host.address, str(self.directory / host.name)) for host in self.hosts)
        return hosts, self._engine_address

    def _has_failed(self) -> bool:
        return self._has_failed_host or super()._has_failed()


def answering(address: str) -> list[str]:
    """Return which servers of the host with this address accept connections."""
    ports = {"zookeeper": ZOOKEEPER_PORT, "kafka": BROKER_PORT, "coordinator": HTTP_PORT}
    return [name for name, port in ports.items() if _accepts(address, port)]


def _accepts(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), HTTP_TIMEOUT_S):
            return True
    except OSError:
        return False


def is_coordinator_ready(address: str) -> bool:
    """Whether the coordinator of the host with this address is ready to lead."""
    try:
        with urlopen(f"http://{address}:{HTTP_PORT}/readiness", timeout=HTTP_TIMEOUT_S):
            return True
    except OSError:
        return False
