"""A lab: a local cluster with coordinators, agents and producers as processes that write events into one folder.

The demo, the experiments, the integration tests and the benchmarks use it. Every wait polls, with a named deadline.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import gevent
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.localcluster.server import Program
from zkrebalancer.observe import inspection
from zkrebalancer.observe.events import EventLog
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.topics import BROKERS_DEFAULT
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import ABSENT, Children, Create, Get, ListChildren, Multi, Refusal, Refused, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

ASK_INTERVAL_S, LONGEST_ASK_INTERVAL_S = 0.05, 0.5  # a twentieth of the time waited so far, within these
ADMIN_DEADLINE_S = 120.0
OWN_SESSION_TIMEOUT_MS = 30_000  # its thread sends no heartbeat while a Kafka call blocks it, for seconds
METADATA_TIMEOUT_S = 1.0  # blocks the lab's ZooKeeper session
SETTLE_DEADLINE_S = 180.0
END_DEADLINE_S = 120.0
GATEWAY_PORTS = 5  # of a gateway: for itself, for up to three brokers, and for HTTP
HTTP_TIMEOUT_S = 5.0


class NotReachedError(RebalancerError):
    """A condition was not reached within its deadline."""


def session_options(timeout_ms: int) -> dict[str, int]:
    """Return the options of coordinators and gateways that are no addresses."""
    return {"--session-timeout-ms": timeout_ms}


@dataclass(slots=True)
class Lab:
    """Starts processes in a running `LocalCluster` and causes faults; a context manager."""

    cluster: LocalCluster
    events: Path
    session_timeout_ms: int = 4_000
    programs: dict[str, Program] = field(default_factory=dict)
    _zk: BlockingZk | None = None
    _log: EventLog | None = None
    _started: float = 0.0

    def __enter__(self) -> Self:
        """Connect to the cluster's ZooKeeper and open the lab's event file; creates the `events` folder if missing."""
        self.events.mkdir(parents=True, exist_ok=True)
        self._zk = BlockingZk(self.cluster.zookeeper, OWN_SESSION_TIMEOUT_MS)
        self._log = EventLog(self.events, "lab")
        self._started = time.monotonic()
        return self

    def __exit__(self, *_error: object) -> None:
        """Kill every process that still runs."""
        for program in self.programs.values():
            program.kill()
        if self._zk is not None:
            self._zk.close()
        if self._log is not None:
            self._log.close()

    @property
    def zk(self) -> BlockingZk:
        """The lab's own ZooKeeper session."""
        if self._zk is None:
            raise LocalClusterError("the lab is not open")
        return self._zk

    def elapsed_s(self) -> float:
        """Seconds since the lab was opened."""
        return time.monotonic() - self._started

    def note(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  # what JSON can hold
        """Write an event of the run itself, such as its scenario or a fault."""
        if self._log is not None:
            self._log.write(kind, **fields)

    # Processes ------------------------------------------------------------------------------------------------------

    def start_coordinator(self, broker_id: int, environment: Mapping[str, str] | None = None) -> Program:
        """Start a coordinator, which leads or stands by."""
        command = [sys.executable, "-m", "zkrebalancer.cli.main", "coordinator"]
        options = {"--zookeeper": self.cluster.zookeeper, "--broker-id": broker_id, "--events": self.events}
        options |= session_options(self.session_timeout_ms)
        if self.cluster.bootstrap:
            options["--bootstrap"] = self.cluster.bootstrap
        return self._spawn(f"coordinator-{broker_id}", command, options, environment)

    def start_gateway(self, name: str, port: int, options: Mapping[str, str]) -> Program:
        """Start a gateway, which Kafka clients can use instead of the broker; `wait_gateway` waits for it.

        It writes no events: members write their own, under their own names.
        """
        command = [sys.executable, "-m", "zkrebalancer.cli.main", "group-coordinator"]
        all_options: dict[str, object] = {
            "--listen": f"{HOST}:{port}",
            "--upstream": self.cluster.bootstrap,
            "--zookeeper": self.cluster.zookeeper,
            "--http": f"{HOST}:{port + GATEWAY_PORTS - 1}",
            **session_options(self.session_timeout_ms),
            **options,
        }
        return self._spawn(name, command, all_options, None)

    def wait_gateway(self, name: str, port: int) -> None:
        """Wait until a gateway serves its groups."""

        def is_ready() -> bool:
            self.require_running(name)
            try:
                with urlopen(f"http://{HOST}:{port + GATEWAY_PORTS - 1}/readiness", timeout=HTTP_TIMEOUT_S):
                    return True
            except OSError:  # it does not listen yet, or says that it is not ready
                return False

        self.wait_for(f"{name} ready", is_ready)

    def start_agent(
        self,
        name: str,
        group: str,
        topics: tuple[str, ...] = (),
        *,
        pattern: str | None = None,
        options: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Start a consumer agent with the client id `name`."""
        command = [sys.executable, "-m", "consumer_agent.sidecar.cli", "run", "--quiet"]
        for topic in topics:
            command += ["--topic", topic]
        if pattern is not None:
            command += ["--pattern", pattern]
        all_options: dict[str, object] = {
            "--zookeeper": self.cluster.zookeeper,
            "--bootstrap": self.cluster.bootstrap,
            "--group": group,
            "--client-id": name,
            "--session-timeout-ms": self.session_timeout_ms,
            "--events": self.events,
            **(options or {}),
        }
        return self._spawn(name, command, all_options, environment)

    def start_members(self, name: str, command: Sequence[str], options: Mapping[str, object]) -> Program:
        """Start a process of group members with `command`; `Program.tell` sends it orders."""
        all_options: dict[str, object] = {
            "--process": name,
            "--zookeeper": self.cluster.zookeeper,
            "--bootstrap": self.cluster.bootstrap,
            "--events": self.events,
            **options,
        }
        return self._spawn(name, list(command), all_options, None, takes_orders=True)

    def wait_events_of(self, program: Program) -> None:
        """Wait until a process has opened its event file, which means that it is ready."""
        file = self.events / f"{program.name}-{program.pid}.jsonl"

        def is_there() -> bool:
            self.require_running(program.name)
            return file.exists()

        self.wait_for(f"{program.name} ready", is_there)

    def start_producer(
        self,
        name: str,
        topics: Mapping[str, int | range],
        records_per_s: int,
        skew: float = 0.0,
        seed: int = 0,
        first_bytes: int = 0,
    ) -> Program:
        """Start a producer of numbered records to topics (name -> number of partitions, or a range of them).

        `skew` is the exponent of the partitions' shares: 0 makes them equal; `seed` decides which are hot. The number
        of a record equals its offset only in partitions that have no other producer. First records are longer by up to
        `first_bytes`.
        """
        command = [sys.executable, "-m", "zkrebalancer.experiments.producer"]
        for topic, wanted in topics.items():
            partitions = range(wanted) if isinstance(wanted, int) else wanted
            command += ["--topic", f"{topic}:{partitions.start}-{partitions.stop - 1}"]
        options = {"--bootstrap": self.cluster.bootstrap, "--events": self.events, "--rate": records_per_s}
        load = {"--skew": skew, "--seed": seed, "--first-bytes": first_bytes}
        return self._spawn(name, command, {**options, "--name": name, **load}, None)

    def start_bulk_producer(
        self, name: str, topic: str, partitions: range, records_per_s: int, record_bytes: int, backlog: int
    ) -> Program:
        """Start a producer of many records without numbers; its event file appears when the backlog is there."""
        command = [sys.executable, "-m", "zkrebalancer.experiments.bulk_producer"]
        command += ["--topic", f"{topic}:{partitions.start}-{partitions.stop - 1}"]
        options = {"--bootstrap": self.cluster.bootstrap, "--events": self.events, "--rate": records_per_s}
        return self._spawn(
            name, command, {**options, "--name": name, "--record-bytes": record_bytes, "--backlog": backlog}, None
        )

    def start_pulse(self) -> Program:
        """Start the process that notices when the machine stands still."""
        command = [sys.executable, "-m", "zkrebalancer.experiments.pulse"]
        return self._spawn("pulse", command, {"--events": self.events, "--name": "pulse"}, None)

    def _spawn(
        self,
        name: str,
        command: list[str],
        options: Mapping[str, object],
        environment: Mapping[str, str] | None,
        *,
        takes_orders: bool = False,
    ) -> Program:
        arguments = [text for key, value in options.items() for text in (key, str(value))]
        command = command + arguments
        program = self.programs[name] = self.cluster.program(name, command, environment, takes_orders=takes_orders)
        program.spawn()
        return program

    def stop(self, *names: str) -> None:
        """Stop processes with SIGTERM, all at once; raises ServerStartError if one of them fails."""
        programs = [self.programs[name] for name in names]
        for program in programs:
            if program.is_running:
                os.kill(program.pid, signal.SIGTERM)
        self.wait_for(f"end of {', '.join(names)}", lambda: not any(p.is_running for p in programs), END_DEADLINE_S)
        for program in programs:
            program.wait_end(0)

    # Faults ---------------------------------------------------------------------------------------------------------

    def fault(self, name: str, target: str) -> None:
        """Write a fault event, right before the fault is caused."""
        self.note("fault", name=name, target=target)

    def kill(self, name: str, fault_name: str = "kill") -> None:
        """Kill a process with SIGKILL."""
        self.fault(fault_name, name)
        self.programs[name].kill()

    def freeze(self, name: str) -> None:
        """Suspend a process."""
        self.fault("freeze", name)
        faults.freeze(self.programs[name].pid)

    def thaw(self, name: str) -> None:
        """Resume a suspended process."""
        self.fault("thaw", name)
        faults.thaw(self.programs[name].pid)

    # Topics and groups ----------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until producers can write to it and the coordinator can see it."""
        self.resize_topic(topic, 0, partitions)
        self.wait_seen(topic)

    def wait_seen(self, topic: str) -> None:
        """Wait until the coordinator can see a topic, where one looks."""
        if self.cluster.has_topics_in_zookeeper:
            self.wait_for(f"topic {topic}", lambda: self._is_topic_there(topic))

    def create_topics(self, *topics: NewTopic) -> None:
        """Ask the broker for topics, and wait for its answer only."""
        self._administer(lambda admin: admin.create_topics([*topics]))

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions and wait until producers can write to all."""
        self._administer(lambda admin: admin.create_partitions([NewPartitions(topic, partitions)]))
        self._wait_served(topic, partitions)

    def resize_topic(self, topic: str, known: int, partitions: int) -> None:
        """Create a topic, or grow it if it already has `known` partitions; wait until producers can write to all."""
        if known:
            self.grow_topic(topic, partitions)
        else:
            self.create_topics(NewTopic(topic, partitions, BROKERS_DEFAULT))
            self._wait_served(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._administer(lambda admin: admin.delete_topics([topic]))
        self.wait_for(f"deletion of topic {topic}", lambda: not self._is_topic_there(topic))

    def _is_topic_there(self, topic: str) -> bool:
        return not isinstance(self.zk.perform(Get(paths.topic(topic)), ABSENT), Refused)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap})

    def _administer(self, request: Callable[[AdminClient], Mapping[str, Future[None]]]) -> None:
        admin = self._admin()  # referenced until the answer: a collected client drops its requests
        for topic, future in request(admin).items():
            self.wait_for(f"the broker's answer about topic {topic}", future.done, ADMIN_DEADLINE_S)
            problem = future.exception(0)
            if problem is not None:
                raise LocalClusterError(f"topic {topic}: {problem}")

    def _wait_served(self, topic: str, partitions: int) -> None:
        """Wait until every partition has a leader; earlier, the broker rejects records."""
        admin = self._admin()

        def is_served() -> bool:
            try:
                found = admin.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].partitions.values()
            except KafkaException:
                return False  # the broker is busy or away: try again
            return len(found) >= partitions and all(partition.leader >= 0 for partition in found)

        self.wait_for(f"{partitions} partitions of topic {topic}", is_served)

    def configure(self, group: str, group_settings: GroupSettings) -> None:
        """Create the group with these settings, or change its settings."""
        content = settings.encode(group_settings)
        exists = {Refusal.NODE_EXISTS}
        if isinstance(self.zk.perform(ListChildren(paths.GROUPS), ABSENT), Refused):
            for path in (paths.CONSUMERS, paths.GROUPS):
                self.zk.perform(Multi((Create(path),)), exists)
        if isinstance(self.zk.perform(Multi((Create(paths.group(group), content),)), exists), Refused):
            self.zk.perform(Multi((SetContent(paths.group(group), content),)))

    # Waiting --------------------------------------------------------------------------------------------------------

    def wait_for(
        self,
        what: str,
        is_so: Callable[[], bool],
        deadline_s: float = SETTLE_DEADLINE_S,
        *,
        longest_s: float = LONGEST_ASK_INTERVAL_S,
    ) -> None:
        """Poll until `is_so` holds, less often the longer that takes; raises NotReachedError."""
        began = time.monotonic()
        while not is_so():
            waited_s = time.monotonic() - began
            if waited_s > deadline_s:
                raise NotReachedError(f"{what}: not reached within {deadline_s:g} s")
            gevent.sleep(max(ASK_INTERVAL_S, min(longest_s, waited_s / 20)))

    def require_running(self, *names: str) -> None:
        """Raise an error if one of these processes has ended, with the reason; unknown names are ignored."""
        for name in names:
            program = self.programs.get(name)
            if program is not None and not program.is_running:
                program.wait_end(0)
                raise NotReachedError(f"{name} has ended although it should run")

    def leader(self) -> int | None:
        """Return the broker id of the leading coordinator."""
        address = inspection.read_leader(self.zk)
        return address.brokerid if address else None

    def wait_leader(self, other_than: int | None = None) -> int:
        """Wait until a coordinator leads (other than the given one) and return its broker id."""
        self.wait_for("a leading coordinator", lambda: self.leader() not in {None, other_than})
        leader = self.leader()
        if leader is None:
            raise NotReachedError("the leader is gone again")
        return leader

    def group(self, group: str) -> GroupReport:
        """Read a group."""
        return inspection.read_group(self.zk, group)

    def is_settled(self, group: str, partitions: Mapping[str, int], clients: frozenset[str]) -> bool:
        """Whether exactly these clients are members and own all partitions of the topics, with no rebalance under way.

        Each client owns at least one partition if there are enough.
        """
        names = self.zk.perform(ListChildren(paths.GROUPS), ABSENT)
        if not isinstance(names, Children) or group not in names.names:
            return False
        report = self.group(group)
        registered = [member.registration.client_id for member in report.members if member.registration]
        wanted = {(topic, number) for topic, count in partitions.items() for number in range(count)}
        shares = [member.owners.partitions.keys() if member.owners else set() for member in report.members]
        is_total = sum(map(len, shares)) == len(wanted) and wanted == set().union(*shares)
        # A consumer that has just registered owns nothing while the others still own all partitions.
        is_balanced = all(shares) or len(wanted) < len(shares)
        return is_total and is_balanced and report.state != inspection.MOVING and sorted(registered) == sorted(clients)

    def wait_settled(
        self, group: str, partitions: Mapping[str, int], *clients: str, deadline_s: float = SETTLE_DEADLINE_S
    ) -> None:
        """Wait until `is_settled`; raises NotReachedError, also if one of the clients has ended."""
        wanted = frozenset(clients)

        def is_so() -> bool:
            self.require_running(*clients)
            return self.is_settled(group, partitions, wanted)

        self.wait_for(f"group {group} settled on {', '.join(sorted(wanted)) or 'no clients'}", is_so, deadline_s)
