"""A ZooKeeper ensemble and Kafka brokers on this machine.

    with LocalCluster(zookeepers=3) as cluster:
        use(cluster.zookeeper, cluster.bootstrap)

Each process is recorded in the folder's state file as soon as it runs; a guard process kills them all if this process
dies without calling `stop`. `start` returns when all servers answer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self, get_args

from zkrebalancer.localcluster import class_archives, jars, kafka, state, zookeeper
from zkrebalancer.localcluster.class_archives import ClassArchives
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.guard import RELEASE
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.ports import HOST, FixedPorts, reserve_ports
from zkrebalancer.localcluster.programs import (
    FIRST_PORTS,
    HEAP,
    QUICK_START,
    ProgramFactory,
    mirror_options,
    place_fixed,
)
from zkrebalancer.localcluster.server import STOP_DEADLINE_S, Program, Server, child_environment
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Children, Create, ListChildren, Multi, Refusal, Refused
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.runtime.zk import BlockingZk

BrokerKind = Literal["kafka-3.9", "kafka-4", "none"]
BROKER_KINDS: tuple[BrokerKind, ...] = get_args(BrokerKind)
ENSEMBLE_SIZES = (1, 3)
MAX_BROKERS = 9
FORMAT_DEADLINE_S = 180.0


class LocalCluster:
    """ZooKeeper and optionally Kafka brokers; a context manager.

    While the cluster runs, `zookeeper` is "HOST:PORT[,…][/CHROOT]", `bootstrap` is "HOST:PORT[,…]" ("" without a
    broker), `directory` is the folder of all data and logs, and `zookeeper_servers` and `brokers` are the servers.
    """

    def __init__(
        self,
        *,
        zookeepers: int = 1,
        broker: BrokerKind = "kafka-3.9",
        brokers: int = 1,
        chroot: str = "",
        directory: Path | None = None,
        tick_ms: int = 200,
        zookeeper_properties: Mapping[str, str] | None = None,
        kafka_properties: Mapping[str, str] | None = None,
        zookeeper_options: Sequence[str] = (),
        zookeeper_heap_mb: int = 256,
        kafka_heap_mb: int = 1024,
        jvm_options: Sequence[str] = QUICK_START,
        mirror_interval_s: float = 0.2,
        round_trip_ms: float = 0.0,
        sync_ms: float = 0.0,
        zookeeper_port: int | None = None,
        broker_port: int | None = None,
        cache: Path | None = None,
        kafka_home: Path | None = None,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Configure a cluster; `start` starts it.

        `broker`: "kafka-3.9" keeps its metadata in ZooKeeper, in the same chroot; "kafka-4" runs in KRaft mode, with a
        topic mirror that looks every `mirror_interval_s` (0: without one); "none" starts ZooKeeper only.
        `round_trip_ms`: between every client and every server, as if each were on a host of its own; among ZooKeeper
        servers there is none. `sync_ms`: the least time of a server's sync to disk. `brokers`: how many; the first has
        the id 1, and if there are three or more, each partition has three replicas. `directory` must not exist yet; the
        default is a temporary folder. `tick_ms`: the shortest session timeout is two ticks. The two `…_properties` add
        or override those of the servers; `zookeeper_options` are more options of ZooKeeper's JVM, `jvm_options` of each
        server's. `zookeeper_port`, `broker_port`: the first of a row, by default free ones. Jars come from `kafka_home`
        (default: the environment's KAFKA_HOME), or else the folder `cache`. `report` gets progress lines.

        Raises:
            ConfigurationError: a setting is out of range.

        """
        _check(zookeepers, broker, brokers)
        self.chroot, self.zookeeper, self.bootstrap = normal_chroot(chroot), "", ""
        self.zookeeper_servers: list[Server] = []
        self.brokers: list[Server] = []
        self._broker_count, self._kind, self._ensemble_size = brokers, broker, zookeepers
        self._wanted_directory = directory
        self._tick_ms = tick_ms
        self._zookeeper_properties = dict(zookeeper_properties or {})
        self._zookeeper_options, self._jvm_options = tuple(zookeeper_options), tuple(jvm_options)
        self._kafka_properties = {**(kafka.replicated(brokers) if brokers > 1 else {}), **(kafka_properties or {})}
        self._zookeeper_heap_mb, self._kafka_heap_mb = zookeeper_heap_mb, kafka_heap_mb
        self._mirror_interval_s, self._round_trip_ms, self._sync_ms = mirror_interval_s, round_trip_ms, sync_ms
        self.mirror: Program | None = None  # the topic mirror, once it is started
        self._far: dict[int, int] = {}  # port of a server -> the port to which its clients connect
        self._ports = _fixed_ports(zookeeper_port, zookeepers, broker_port, brokers)
        self._source = jars.JarSource.of(cache, kafka_home, report)
        self._directory: Path | None = None
        self._programs: list[Program] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._reserved: list[socket.socket] = []  # keep the ports for this cluster while a server is down

    @property
    def directory(self) -> Path:
        """The folder of all data and logs; raises LocalClusterError while the cluster is not started."""
        if self._directory is None:
            raise LocalClusterError("the cluster is not started")
        return self._directory

    @property
    def broker(self) -> Server:
        """The first Kafka broker; raises LocalClusterError if there is none."""
        if not self.brokers:
            raise LocalClusterError("this cluster has no broker")
        return self.brokers[0]

    @property
    def has_topics_in_zookeeper(self) -> bool:
        """Whether the broker's topics appear in ZooKeeper, written by the broker or by the mirror."""
        return self._kind == "kafka-3.9" or (self._kind == "kafka-4" and self._mirror_interval_s > 0)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that distinguish this cluster from others."""
        settings = {"zookeepers": str(self._ensemble_size), "broker": self._kind, "chroot": self.chroot}
        if self._ports.zookeepers:
            settings["zookeeper-port"] = str(self._ports.zookeepers[0])
        if self._ports.brokers:
            settings["broker-port"] = str(self._ports.brokers[0])
        if self._broker_count > 1:
            settings["brokers"] = str(self._broker_count)
        return settings

    @property
    def server_settings(self) -> dict[str, dict[str, str]]:
        """The settings of each kind of its programs, without addresses, ids and folders, whether or not it runs."""
        properties = zookeeper.settings(self._ensemble_size, self._tick_ms, self._zookeeper_properties)
        found = {"zookeeper": {**properties, HEAP: f"{self._zookeeper_heap_mb}m"}}
        if self._kind != "none":
            properties = kafka.settings(self._kafka_properties, is_kraft=self._kind == "kafka-4")
            found["broker"] = {**properties, HEAP: f"{self._kafka_heap_mb}m"}
        if self._kind == "kafka-4" and self._mirror_interval_s > 0:
            found["topic_mirror"] = mirror_options(self._mirror_interval_s)
        return found

    def __enter__(self) -> Self:
        """Start and return the cluster."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop the cluster."""
        self.stop()

    def start(self) -> None:
        """Start every server and return when all answer; on failure, no process is left running.

        Raises:
            MissingToolError, JarError: a tool or a jar is missing.
            ServerStartError: a server ended or did not answer; the message names its log, which is kept.
            LocalClusterError: it runs already, the folder cannot be created, a port is in use, or fetching jars failed.

        """
        if self._directory is not None:
            raise LocalClusterError("the cluster is started already")
        java = find_java()
        versions = [jars.KAFKA_3, jars.KAFKA_4] if self._kind == "kafka-4" else [jars.KAFKA_3]
        class_paths = {version: jars.class_path(version, java, self._source) for version in versions}
        archives = self._class_archives(java, class_paths[jars.KAFKA_3])
        self._directory = _make_directory(self._wanted_directory)
        try:
            self._write_state()  # nothing runs yet, but it marks the folder as ours for the guard
            self._guard = _begin_guard(self._directory)
            self._start_servers(java, class_paths, archives)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill every process and remove the folder, except for the logs if a server failed to start.

        Has no effect if the cluster is not started.
        """
        if self._directory is None:
            return
        for program in self._programs:
            program.kill()
        if self._has_failed():
            state.clear(self._directory, keep=".log")
        else:
            state.clear(self._directory)
            self._directory.rmdir()
        self._forget(b"")

    def _has_failed(self) -> bool:
        return any(program.has_failed for program in self._programs)

    def program(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        takes_orders: bool = False,
    ) -> Program:
        """Return a program that belongs to this cluster: it logs to the cluster's folder and is killed by `stop`."""
        log = self.directory / f"{name}.log"
        program = Program(name, command, log, self._write_state, environment, takes_orders=takes_orders)
        self._programs.append(program)
        return program

    def release(self) -> None:
        """Keep the servers running when this process ends; `state.end_cluster` kills them."""
        self._forget(RELEASE)

    def _class_archives(self, java: str, class_path: str) -> ClassArchives | None:
        """Return the archives with which the servers start, made if they are missing."""
        archives = ClassArchives.of(java, class_path, self._source)
        if archives is not None:
            try:
                archives.make_once(lambda recorded: _Recorder(recorded, self._source).record(), self._source)
            except OSError:  # the cache cannot be written, for example with a KAFKA_HOME
                return None
        return archives

    def _start_servers(self, java: str, class_paths: Mapping[str, str], archives: ClassArchives | None) -> None:
        own_count = FIRST_PORTS + self._broker_count - 1
        far_count = self._ensemble_size + self._broker_count if self._round_trip_ms else 0
        self._reserved = reserve_ports(own_count + far_count, self._ports.all())
        ports = place_fixed(self._ports, [one.getsockname()[1] for one in self._reserved])
        about = self.directory, java, class_paths, self._write_state, ports, archives
        factory = ProgramFactory.in_folder(*about, self._sync_ms, self._jvm_options)
        self.zookeeper_servers = factory.zookeepers(
            self._ensemble_size,
            self._tick_ms,
            self._zookeeper_heap_mb,
            self._zookeeper_properties,
            self._zookeeper_options,
        )
        self._programs = [*self.zookeeper_servers]
        if far_count:
            self._begin_delay(factory, ports[own_count:])
        hosts = ",".join(map(self._address, (server.port for server in self.zookeeper_servers)))
        self.zookeeper = hosts + self.chroot
        for server in self.zookeeper_servers:
            server.spawn()
        if self._kind == "kafka-4":
            self._begin_kraft_brokers(factory)
        for server in self.zookeeper_servers:
            server.wait_ready()
        create_chroot(hosts, self.chroot)
        if self._kind == "kafka-3.9":
            settings = self.zookeeper, self._kafka_heap_mb
            brokers = [
                factory.zookeeper_mode_broker(number, *settings, self._properties_of(factory.broker_port(number)))
                for number in self._broker_numbers()
            ]
            self._begin_brokers(brokers)
        for broker in self.brokers:
            broker.wait_ready()
        if self._broker_count > 1:  # else a topic created now may find too few brokers for its replicas
            self.broker.wait_until(kafka.BrokerProbe(self.bootstrap, self._broker_count))
        if self._kind == "kafka-4" and self._mirror_interval_s > 0:
            self._start_mirror(factory)

    def _begin_delay(self, factory: ProgramFactory, listens: Sequence[int]) -> None:
        """Begin to relay, before the first client connects."""
        servers = [server.port for server in self.zookeeper_servers]
        servers += [factory.broker_port(number) for number in self._broker_numbers()]
        self._far = dict(zip(servers, listens, strict=True))
        delay = factory.delay({listen: server for server, listen in self._far.items()}, self._round_trip_ms)
        self._programs.append(delay)
        delay.spawn()

    def _address(self, port: int) -> str:
        """Return where clients connect to the server with this port."""
        return f"{HOST}:{self._far.get(port, port)}"

    def _properties_of(self, port: int) -> Mapping[str, str]:
        """Return the additional properties of the broker with this port: it names the address for its clients."""
        own = {"advertised.listeners": f"PLAINTEXT://{self._address(port)}"} if self._far else {}
        return {**own, **self._kafka_properties}

    def _broker_numbers(self) -> range:
        return range(1, self._broker_count + 1)

    def _begin_kraft_brokers(self, factory: ProgramFactory) -> None:
        settings = kafka.new_cluster_id(), self._kafka_heap_mb
        pairs = [
            factory.kraft_broker(number, *settings, self._properties_of(factory.broker_port(number)))
            for number in self._broker_numbers()
        ]
        for storage_tool, _broker in pairs:
            self._programs.append(storage_tool)
            storage_tool.spawn()
        for storage_tool, _broker in pairs:
            storage_tool.wait_end(FORMAT_DEADLINE_S)
            self._programs.remove(storage_tool)
        self._begin_brokers([broker for _storage_tool, broker in pairs])

    def _begin_brokers(self, brokers: list[Server]) -> None:
        self.brokers = brokers
        self.bootstrap = ",".join(map(self._address, (broker.port for broker in brokers)))
        self._programs += brokers
        for broker in brokers:
            broker.spawn()

    def _start_mirror(self, factory: ProgramFactory) -> None:
        self.mirror = mirror = factory.mirror(self.bootstrap, self.zookeeper, self._mirror_interval_s)
        self._programs.append(mirror)
        mirror.spawn()
        with BlockingZk(self.zookeeper) as client:
            nobody = Children(()), Refused(Refusal.NO_NODE)
            mirror.wait_until(lambda: client.perform(ListChildren(paths.BROKER_IDS), ABSENT) not in nobody)

    def _write_state(self) -> None:
        """Record every process that was spawned so far."""
        servers = tuple(
            state.ServerState(
                program.name, program.process, program.port if isinstance(program, Server) else None, str(program.log)
            )
            for program in self._programs
            if program.process is not None
        )
        hosts, engine = self._hosts_state()
        written = state.ClusterState(self.zookeeper, self.bootstrap, self.settings, servers, hosts, engine)
        state.write(self.directory, written)

    def _hosts_state(self) -> tuple[tuple[state.HostState, ...], str]:
        """Return the hosts and their Docker engine; `HostCluster` has some."""
        return (), ""

    def _forget(self, message: bytes) -> None:
        """Send the guard a last message, which may be empty, wait for its end, and reset all state."""
        if self._guard is not None:
            self._guard.communicate(message, timeout=STOP_DEADLINE_S)
        for one in self._reserved:
            one.close()
        self._reserved = []
        self._guard, self._directory = None, None
        self._programs, self.zookeeper_servers, self.brokers = [], [], []
        self._far = {}
        self.zookeeper, self.bootstrap = "", ""


class _Recorder(LocalCluster):
    """A cluster whose servers record archives of their classes."""

    def __init__(self, archives: ClassArchives, source: jars.JarSource) -> None:
        super().__init__(cache=source.cache, kafka_home=source.kafka_home)
        self._archives = archives

    def record(self) -> None:
        """Start and stop the servers."""
        with self:
            for server in (self.broker, *self.zookeeper_servers):
                server.stop(class_archives.STOP_DEADLINE_S)

    def _class_archives(self, java: str, class_path: str) -> ClassArchives | None:  # noqa: ARG002  # the overridden one's
        return self._archives


def _check(zookeepers: int, broker: str, brokers: int) -> None:
    if zookeepers not in ENSEMBLE_SIZES:
        raise ConfigurationError(f"an ensemble has 1 or 3 ZooKeeper servers, not {zookeepers}")
    if broker not in BROKER_KINDS:
        raise ConfigurationError(f"broker {broker!r} is not one of {', '.join(BROKER_KINDS)}")
    if not 1 <= brokers <= MAX_BROKERS:
        raise ConfigurationError(f"a cluster has 1 to {MAX_BROKERS} brokers, not {brokers}")


def _fixed_ports(zookeeper: int | None, zookeepers: int, broker: int | None, brokers: int) -> FixedPorts:
    """Return the chosen ports of the servers; raises ConfigurationError if two are the same."""
    ports = FixedPorts(_in_a_row(zookeeper, zookeepers), _in_a_row(broker, brokers))
    for port in sorted({*ports.zookeepers} & {*ports.brokers}):
        raise ConfigurationError(f"ZooKeeper and the broker cannot both listen on port {port}")
    return ports


def _in_a_row(first: int | None, count: int) -> tuple[int, ...]:
    return () if first is None else tuple(range(first, first + count))


def normal_chroot(chroot: str) -> str:
    """Return the chroot as "/A/B", or "" for none; raises ConfigurationError if it is not a ZooKeeper path."""
    if chroot in {"", "/"}:
        return ""
    for segment in chroot.removeprefix("/").split("/"):
        if (
            not chroot.startswith("/")
            or segment in {"", ".", ".."}
            or set(segment) & set(", ")
            or not segment.isprintable()
        ):
            raise ConfigurationError(f"chroot {chroot!r} is not a path like /a/b")
    return chroot


def create_chroot(hosts: str, chroot: str) -> None:
    """Create the nodes of a chroot at "HOST:PORT[,…]", unless they exist."""
    if not chroot:
        return
    segments = chroot.split("/")
    with BlockingZk(hosts) as client:
        for end in range(2, len(segments) + 1):
            client.perform(Multi((Create("/".join(segments[:end])),)), {Refusal.NODE_EXISTS})


def _make_directory(wanted: Path | None) -> Path:
    try:
        if wanted is None:
            return Path(tempfile.mkdtemp(prefix="zkrebalancer-")).resolve()
        wanted.mkdir(parents=True)
    except OSError as error:
        raise LocalClusterError(f"the cluster's folder cannot be created: {error}") from None
    return wanted.resolve()


def _begin_guard(directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "guard.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "zkrebalancer.localcluster.guard", str(directory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            start_new_session=True,
        )
