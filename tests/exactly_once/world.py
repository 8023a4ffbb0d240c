"""The servers of a run: ZooKeeper, Kafka, coordinators, a database; and how they fail."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import gevent
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.exactly_once import own_state
from tests.exactly_once.databases import Database
from tests.exactly_once.judging import Log
from tests.support import postgres
from tests.support.warm import COMMANDS, WarmCluster, close_starter
from zkrebalancer.experiments.lab import Lab, NotReachedError
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.server import Program
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Children, ListChildren
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.region import documents

TOPIC = "numbers"
FIRST_PARTITIONS, MOST_PARTITIONS, GROWTH = 4, 12, 2
COORDINATORS = 2
FAULT_PAUSE_S = (6.0, 15.0)  # between faults of servers
READ_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0
MESSAGES_AT_ONCE = 10_000
STOP_DEADLINE_S = 60.0
# "merge" and "reset": the leader, while a checkpoint or a reset of the group with a state of its own is open.
WEIGHTS = {"leader": 4, "merge": 2, "reset": 2, "zookeeper": 2, "broker": 2, "topic growth": 1}
ROUND_DEADLINE_S = 3.0  # for such a round to be open
LOOK_INTERVAL_S = 0.005


class Cluster(WarmCluster):
    """A cluster whose workers and producer are forks, too."""

    warm = (*COMMANDS, "tests.exactly_once.worker", "tests.exactly_once.producer")


@dataclass(slots=True)
class World:
    """The running servers."""

    cluster: Cluster
    lab: Lab
    database: Database
    random_: random.Random
    copies: Path  # of the states of members
    partitions: int = FIRST_PARTITIONS
    faults: Counter[str] = field(default_factory=Counter)
    _next_fault_s: float = 0.0
    _producer: Program | None = None

    def open(self, rate: int, records: int) -> None:
        """Start coordinators and producer."""
        for number in range(1, COORDINATORS + 1):
            self.lab.start_coordinator(number)
        self.lab.wait_leader()
        self.lab.create_topic(TOPIC, self.partitions)
        command = [sys.executable, "-m", "tests.exactly_once.producer", "--bootstrap", self.cluster.bootstrap]
        command += ["--topic", TOPIC, "--rate", str(rate), "--records", str(records)]
        self._producer = self.cluster.program("producer", command)
        self._producer.spawn()
        self._plan_fault()

    def tick(self) -> None:
        """Let a server fail if it is time, and a killed broker come back."""
        with suppress(RebalancerError):  # ZooKeeper is away
            self._bring_broker_back()
        if self._producer is not None and self._producer.exit_code:
            self._producer.wait_end(0)  # raises
        if time.monotonic() < self._next_fault_s:
            return
        kind = self.random_.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        actions: dict[str, Callable[[], bool]] = {
            "leader": self._kill_leader,
            "merge": lambda: self._kill_leader_in(documents.CHECKPOINT),
            "reset": lambda: self._kill_leader_in(documents.RESET),
            "zookeeper": lambda: _restart(self.cluster.zookeeper_servers[0]),
            "broker": self._kill_broker,
            "topic growth": self._grow,
        }
        with suppress(RebalancerError, KafkaException):  # a server is still away: the next time
            self.faults[kind] += actions[kind]()
        self._plan_fault()

    def repair(self) -> None:
        """Wait until every server runs."""
        self.lab.wait_for("the broker", self._bring_broker_back)
        self.cluster.zookeeper_servers[0].wait_ready()
        self.cluster.broker.wait_ready()
        self.lab.wait_for("all partitions", self._is_served)  # a broker that has just restarted may know no topic

    def end_producer(self) -> None:
        """Stop producing; raises LocalClusterError if not all records were written."""
        producer = self._producer
        if producer is None:
            return
        if producer.is_running:
            os.kill(producer.pid, signal.SIGTERM)
        self.lab.wait_for("the end of the producer", lambda: not producer.is_running)
        producer.wait_end(0)

    def log(self) -> Log:
        """Read all records of the topic: the number in each, by partition and offset."""
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "log", "enable.auto.commit": False}
        reader = Consumer(settings)
        try:
            ends = self._ends(reader)
            reader.assign([TopicPartition(TOPIC, number, 0) for number in ends])
            found = {number: array("q") for number in ends}
            left = sum(ends.values())
            while left > 0:
                messages = reader.consume(min(left, MESSAGES_AT_ONCE), timeout=READ_TIMEOUT_S)
                if not messages:
                    raise NotReachedError(f"{left} records of the log cannot be read")
                for message in messages:
                    if message.error() is None:
                        found[message.partition() or 0].append(int(message.value() or b"-1"))
                        left -= 1
            return found
        finally:
            reader.close()

    def ends(self) -> dict[int, int]:
        """Return the end of each partition of the topic that has records."""
        reader = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "log"})
        try:
            return {number: end for number, end in self._ends(reader).items() if end}
        finally:
            reader.close()

    def _ends(self, reader: Consumer) -> dict[int, int]:
        known = reader.list_topics(TOPIC, timeout=READ_TIMEOUT_S).topics[TOPIC].partitions
        marks = {n: reader.get_watermark_offsets(TopicPartition(TOPIC, n), timeout=READ_TIMEOUT_S) for n in known}
        return {number: end for number, (_low, end) in sorted(marks.items())}

    def _is_served(self) -> bool:
        reader = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "log"})
        try:
            known = reader.list_topics(TOPIC, timeout=ASK_TIMEOUT_S).topics[TOPIC].partitions.values()
        except KafkaException:
            return False
        finally:
            reader.close()
        return len(known) >= self.partitions and all(partition.leader >= 0 for partition in known)

    def _plan_fault(self) -> None:
        self._next_fault_s = time.monotonic() + self.random_.uniform(*FAULT_PAUSE_S)

    def _kill_broker(self) -> bool:
        was_running = self.cluster.broker.is_running
        self.cluster.broker.kill()
        return was_running

    def _bring_broker_back(self) -> bool:
        """Start a killed broker once its old ZooKeeper session is over; return whether it runs."""
        broker = self.cluster.broker
        if not broker.is_running:
            registered = self.lab.zk.perform(ListChildren(paths.BROKER_IDS), ABSENT)
            if not (isinstance(registered, Children) and registered.names):
                broker.spawn()
        return broker.is_running

    def _kill_leader(self) -> bool:
        leader = self.lab.leader()
        program = self.lab.programs.get(f"coordinator-{leader}")
        if program is None or not program.is_running:
            return False
        program.kill()
        program.spawn()
        return True

    def _kill_leader_in(self, kind: str) -> bool:
        """Kill the leader while it waits for the members' answers, or merges them."""
        leader = self.lab.programs.get(f"coordinator-{self.lab.leader()}")
        give_up_at_s = time.monotonic() + ROUND_DEADLINE_S
        while leader is not None and time.monotonic() < give_up_at_s:
            order = own_state.read_order(self.lab.zk, "state")
            if order.open is not None and order.open.kind == kind:
                leader.kill()
                leader.spawn()
                return True
            gevent.sleep(LOOK_INTERVAL_S)
        return False

    def _grow(self) -> bool:
        if self.partitions >= MOST_PARTITIONS:
            return False
        self.lab.grow_topic(TOPIC, self.partitions + GROWTH)
        self.partitions += GROWTH
        return True


def _restart(server: Program) -> bool:
    server.kill()
    server.spawn()
    return True


@contextmanager
def new_world(sink: str, seed: int, session_timeout_ms: int) -> Iterator[World]:
    """Start the servers; nothing of them is left at the end."""
    with Cluster(chroot="/exactly-once", tick_ms=200) as cluster:
        try:
            with (
                Lab(cluster, cluster.directory / "events", session_timeout_ms) as lab,
                _database(cluster, sink) as database,
            ):
                database.create()
                copies = cluster.directory / "copies"
                copies.mkdir()
                yield World(cluster, lab, database, random.Random(f"{seed}-servers"), copies)
        finally:
            close_starter()


@contextmanager
def _database(cluster: Cluster, sink: str) -> Iterator[Database]:
    if sink == "sqlite":
        yield Database(f"sqlite:{cluster.directory / 'sink.db'}")
        return
    programs = postgres.find_programs()
    folder = cluster.directory / "postgres"
    cluster.directory.chmod(0o711)
    postgres.make_data(programs, folder)
    server = cluster.program("postgres", postgres.server_command(programs, folder))
    server.spawn()
    try:
        server.wait_until(lambda: postgres.is_ready(folder))
        yield Database(postgres.address(folder))
    finally:
        if server.is_running:
            os.kill(server.pid, signal.SIGINT)  # it ends its sessions
            _wait_end(server)


def _wait_end(server: Program) -> None:
    try:
        server.wait_end(STOP_DEADLINE_S)
    except LocalClusterError:
        server.kill()
