"""Sets up the programs of a cluster: configuration file, Java command line, log, readiness probe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zkrebalancer.localcluster import jars, kafka, slow_disk, zookeeper
from zkrebalancer.localcluster.class_archives import ClassArchives
from zkrebalancer.localcluster.ports import HOST, FixedPorts
from zkrebalancer.localcluster.server import Program, Server

FIRST_PORTS = 2 + 3 * 3  # two for the first broker, three for each ZooKeeper server; further brokers have one each
TOOL_HEAP_MB = 256
HEAP = "-Xmx"  # a JVM's option: the most memory of its heap
IN_PRODUCTION = ("-XX:+UseSerialGC",)  # with the optimizing compiler; two processors have this collector by default
QUICK_START = ("-XX:TieredStopAtLevel=1", *IN_PRODUCTION)  # for short-lived JVMs: no optimizing compiler
LOGGING = Path(__file__).parent / "log4j.properties"


def place_fixed(fixed: FixedPorts, ports: Sequence[int]) -> list[int]:
    """Return `ports` for a `ProgramFactory`, with the fixed ones in their places."""
    placed = [*ports]
    for index, port in enumerate(fixed.brokers):
        placed[_broker_place(index + 1)] = port
    for index, port in enumerate(fixed.zookeepers):
        placed[2 + 3 * index] = port
    return placed


def _broker_place(number: int) -> int:
    return 0 if number == 1 else FIRST_PORTS + number - 2


def java_command(
    java: str,
    class_path: str,
    heap_mb: int,
    temporary: Path,
    archives: ClassArchives | None,
    *main: str,
    jvm_options: Sequence[str] = QUICK_START,
) -> list[str]:
    """Return the command of a server's JVM; `main` is the main class and its arguments."""
    options = [f"{HEAP}{heap_mb}m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    options += jvm_options
    options += [f"-Djava.io.tmpdir={temporary}", f"-Dlog4j.configuration=file:{LOGGING}"]
    if archives is not None:
        options += archives.options(main[0])
    return [java, *options, "-cp", class_path, *main]


def mirror_options(interval_s: float) -> dict[str, str]:
    """Return the topic mirror's options without addresses."""
    return {"--interval": str(interval_s), "--log-level": "info"}


@dataclass(frozen=True, slots=True)
class ProgramFactory:
    """Sets up programs in one folder, without starting them."""

    directory: Path
    java: str
    class_paths: Mapping[str, str]  # Kafka version -> class path
    on_spawn: Callable[[], None]
    ports: Sequence[int]
    archives: ClassArchives | None  # of KAFKA_3
    environment: Mapping[str, str] = field(default_factory=dict)  # of servers, beside this process's own
    jvm_options: Sequence[str] = QUICK_START  # of each server

    @classmethod
    def in_folder(
        cls,
        directory: Path,
        java: str,
        class_paths: Mapping[str, str],
        on_spawn: Callable[[], None],
        ports: Sequence[int],
        archives: ClassArchives | None,
        sync_ms: float = 0.0,
        jvm_options: Sequence[str] = QUICK_START,
    ) -> ProgramFactory:
        """Prepare the folder; `ports` are free ports: FIRST_PORTS, and one for each further broker.

        `sync_ms`: how long each sync of a server to disk takes at least; compiles a library for it.
        """
        (directory / "tmp").mkdir()  # native libraries that the servers unpack
        environment = slow_disk.environment(directory, sync_ms) if sync_ms else {}
        return cls(directory, java, class_paths, on_spawn, ports, archives, environment, jvm_options)

    def zookeepers(
        self, count: int, tick_ms: int, heap_mb: int, extra: Mapping[str, str], options: Sequence[str] = ()
    ) -> list[Server]:
        """Return the servers of one ensemble; `options` are for their JVMs."""
        places = [self.ports[at : at + 3] for at in range(2, 2 + 3 * count, 3)]
        members = [zookeeper.EnsembleMember(client, peer, election) for client, peer, election in places]
        servers = []
        for index, member in enumerate(members):
            name = f"zookeeper-{index + 1}"
            data = self.directory / name
            data.mkdir()
            (data / "myid").write_text(str(index + 1))
            config = self._config(name, zookeeper.render_config(members, index, data, tick_ms, extra))
            java, *rest = self._java_command(jars.KAFKA_3, heap_mb, zookeeper.MAIN_CLASS, config)
            command = [java, *options, *rest]
            servers.append(self._server(name, command, member.client_port, zookeeper.ServingProbe(member.client_port)))
        return servers

    def zookeeper_mode_broker(
        self, number: int, zookeeper_hosts: str, heap_mb: int, extra: Mapping[str, str]
    ) -> Server:
        """Return a Kafka 3.9 broker with its metadata in ZooKeeper; `number` counts from 1 and is its id."""
        name, port = kafka.broker_name(number), self.broker_port(number)
        text = kafka.render_zookeeper_mode(number, port, zookeeper_hosts, self.directory / f"{name}-data", extra)
        command = self._java_command(jars.KAFKA_3, heap_mb, kafka.MAIN_CLASS, self._config(name, text))
        own = self._log(name), self.on_spawn, port
        return kafka.ZooKeeperModeBroker(number, command, *own, zookeeper_hosts, self.environment)

    def kraft_broker(
        self, number: int, cluster_id: str, heap_mb: int, extra: Mapping[str, str]
    ) -> tuple[Program, Server]:
        """Return a Kafka 4 broker and the tool that formats its folder: (tool, broker). Run the tool first.

        The broker with number 1 is the controller, too.
        """
        name, port, controller_port = kafka.broker_name(number), self.broker_port(number), self.ports[1]
        text = kafka.render_kraft_mode(number, port, controller_port, self.directory / f"{name}-data", extra)
        config = self._config(name, text)
        arguments = ["format", f"--cluster-id={cluster_id}", "--config", config]
        storage_tool = self._java_command(jars.KAFKA_4, TOOL_HEAP_MB, kafka.STORAGE_TOOL_CLASS, *arguments)
        command = self._java_command(jars.KAFKA_4, heap_mb, kafka.MAIN_CLASS, config)
        broker = self._server(name, command, port, kafka.BrokerProbe(f"{HOST}:{port}"))
        return self._program(f"{name}-format", storage_tool), broker

    def broker_port(self, number: int) -> int:
        """Return the port of a broker; `number` counts from 1."""
        return self.ports[_broker_place(number)]

    def delay(self, pairs: Mapping[int, int], round_trip_ms: float) -> Program:
        """Return the program that relays to servers as if they were far away: its port -> the server's."""
        command = [sys.executable, "-m", "zkrebalancer.localcluster.delay", "--round-trip-ms", str(round_trip_ms)]
        return self._program("delay", [*command, *(f"{listen}={target}" for listen, target in pairs.items())])

    def mirror(self, bootstrap: str, zookeeper_hosts: str, interval_s: float) -> Program:
        """Return the topic mirror."""
        command = [sys.executable, "-m", "zkrebalancer.cli.topics", "mirror"]
        command += ["--bootstrap", bootstrap, "--zookeeper", zookeeper_hosts]
        return self._program(
            "mirror", [*command, *(text for pair in mirror_options(interval_s).items() for text in pair)]
        )

    def _config(self, name: str, text: str) -> str:
        file = self.directory / f"{name}.properties"
        file.write_text(text)
        return str(file)

    def _java_command(self, version: str, heap_mb: int, *main: str) -> list[str]:
        archives = self.archives if version == jars.KAFKA_3 else None
        place = self.java, self.class_paths[version], heap_mb, self.directory / "tmp", archives
        return java_command(*place, *main, jvm_options=self.jvm_options)

    def _program(self, name: str, command: list[str]) -> Program:
        return Program(name, command, self._log(name), self.on_spawn)

    def _server(self, name: str, command: list[str], port: int, is_ready: Callable[[], bool]) -> Server:
        about = name, command, self._log(name), self.on_spawn
        return Server(*about, port=port, is_ready=is_ready, environment=self.environment)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"
