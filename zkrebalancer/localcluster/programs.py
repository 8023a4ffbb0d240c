"""How each program of a cluster is set up: its configuration file, its Java command line, its log, its readiness."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster import jars, kafka, zookeeper
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import Program, Server

MAX_PORTS = 3 * 3 + 2  # three ports a ZooKeeper server, two for a broker
TOOL_HEAP_MB = 256
_LOGGING = Path(__file__).parent / "log4j.properties"


@dataclass(frozen=True, slots=True)
class Workshop:
    """Sets up programs in one folder; none of them is begun here."""

    directory: Path
    java: str
    class_paths: Mapping[str, str]  # Kafka version -> class path
    on_begin: Callable[[], None]
    ports: Sequence[int]

    @classmethod
    def in_folder(
        cls, directory: Path, java: str, class_paths: Mapping[str, str], on_begin: Callable[[], None]
    ) -> Workshop:
        """Prepare the folder; all ports are chosen here, so that no two servers get the same one."""
        (directory / "tmp").mkdir()  # native libraries that the servers unpack
        return cls(directory, java, class_paths, on_begin, free_ports(MAX_PORTS))

    def zookeepers(self, count: int, tick_ms: int, heap_mb: int, extra: Mapping[str, str]) -> list[Server]:
        """Return the servers of one ensemble."""
        members = [zookeeper.EnsembleMember(*self.ports[at : at + 3]) for at in range(2, 2 + 3 * count, 3)]
        servers = []
        for index, member in enumerate(members):
            name = f"zookeeper-{index + 1}"
            data = self.directory / name
            data.mkdir()
            (data / "myid").write_text(str(index + 1))
            config = self._config(name, zookeeper.render_config(members, index, data, tick_ms, extra))
            command = self._java_command(jars.KAFKA_3, heap_mb, zookeeper.MAIN_CLASS, config)
            servers.append(self._server(name, command, member.client_port, zookeeper.ServingProbe(member.client_port)))
        return servers

    def zookeeper_mode_broker(self, zookeeper_hosts: str, heap_mb: int, extra: Mapping[str, str]) -> Server:
        """Return a Kafka 3.9 broker whose metadata is in ZooKeeper."""
        text = kafka.render_zookeeper_mode(self.ports[0], zookeeper_hosts, self.directory / "kafka-data", extra)
        return self._broker(jars.KAFKA_3, text, heap_mb)

    def kraft_broker(self, heap_mb: int, extra: Mapping[str, str]) -> tuple[Program, Server]:
        """Return the tool that formats the folder of a Kafka 4 broker, to be run first, and the broker."""
        text = kafka.render_kraft_mode(self.ports[0], self.ports[1], self.directory / "kafka-data", extra)
        broker = self._broker(jars.KAFKA_4, text, heap_mb)
        config = str(self.directory / "kafka.properties")
        arguments = ["format", f"--cluster-id={kafka.new_cluster_id()}", "--config", config]
        command = self._java_command(jars.KAFKA_4, TOOL_HEAP_MB, kafka.STORAGE_TOOL_CLASS, *arguments)
        return self._program("kafka-format", command), broker

    def mirror(self, bootstrap: str, zookeeper_hosts: str) -> Program:
        """Return the topic mirror."""
        command = [sys.executable, "-m", "zkrebalancer.cli.topics", "mirror"]
        return self._program("mirror", [*command, "--bootstrap", bootstrap, "--zookeeper", zookeeper_hosts])

    def _broker(self, version: str, config: str, heap_mb: int) -> Server:
        command = self._java_command(version, heap_mb, kafka.MAIN_CLASS, self._config("kafka", config, "properties"))
        return self._server("kafka", command, self.ports[0], kafka.BrokerProbe(f"{HOST}:{self.ports[0]}"))

    def _config(self, name: str, text: str, ending: str = "cfg") -> str:
        file = self.directory / f"{name}.{ending}"
        file.write_text(text)
        return str(file)

    def _java_command(self, version: str, heap_mb: int, *main: str) -> list[str]:
        options = [f"-Xmx{heap_mb}m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        options += [f"-Djava.io.tmpdir={self.directory / 'tmp'}", f"-Dlog4j.configuration=file:{_LOGGING}"]
        return [self.java, *options, "-cp", self.class_paths[version], *main]

    def _program(self, name: str, command: list[str]) -> Program:
        return Program(name, command, self.directory / f"{name}.log", self.on_begin)

    def _server(self, name: str, command: list[str], port: int, is_ready: Callable[[], bool]) -> Server:
        log = self.directory / f"{name}.log"
        return Server(name, command, log, self.on_begin, port=port, is_ready=is_ready)
