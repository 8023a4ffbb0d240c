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

import gevent
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.exactly_once.databases import Database
from tests.exactly_once.groups import COPIES, DATABASE, GROUPS, KAFKA
from tests.exactly_once.judging import Log
from tests.exactly_once.kafka_results import KafkaResults
from tests.exactly_once.members import Members
from tests.exactly_once.own_state import OwnStates, read_order
from tests.exactly_once.results import Results
from tests.support import postgres
from tests.support.warm import COMMANDS, WarmCluster, ending_starter
from zkrebalancer.coordinator import failpoints
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
# After which transaction a coordinator dies: any, or one that writes or deletes a piece of a merge, an order, or the
# answers to a round.
LEADER_STEPS = {"multi": "multi", "merged": "/region/merged/", "order": "/region/order", "round": "/contributions/"}
LEADER_SHARE = 0.5  # of coordinators that die so
LEADER_COUNTS = (10, 60)  # after so many of them
FAULT_PAUSE_S = (6.0, 15.0)  # between faults of servers
READ_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0
MESSAGES_AT_ONCE = 10_000
STOP_DEADLINE_S = 60.0
# "merge" and "reset": the leader, while a checkpoint or a reset of a group with a state of its own is open.
WEIGHTS = {"leader": 4, "merge": 2, "reset": 2, "zookeeper": 2, "broker": 2, "topic growth": 1}
ROUND_DEADLINE_S = 3.0  # for such a round to be open
LOOK_INTERVAL_S = 0.005
KAFKA_PROPERTIES = {"group.min.session.timeout.ms": "1000"}


class Cluster(WarmCluster):
    """A cluster whose workers and producer are forks, too."""

    warm = (*COMMANDS, "tests.exactly_once.worker", "tests.exactly_once.producer")


@dataclass(slots=True)
class World:
    """The running servers."""

    cluster: Cluster
    lab: Lab
    results: dict[str, Results]  # by where they are
    own_states: list[str]  # groups whose members have states of their own
    random_: random.Random
    partitions: int = FIRST_PARTITIONS
    faults: Counter[str] = field(default_factory=Counter)
    _steps: dict[int, str] = field(default_factory=dict)  # coordinator -> where it dies
    _next_fault_s: float = 0.0
    _producer: Program | None = None

    def open(self, rate: int, records: int) -> None:
        """Start coordinators and producer."""
        for number in range(1, COORDINATORS + 1):
            self._start_coordinator(number)
        self.lab.wait_leader()
        self.lab.create_topic(TOPIC, self.partitions)
        command = [sys.executable, "-m", "tests.exactly_once.producer", "--bootstrap", self.cluster.bootstrap]
        command += ["--topic", TOPIC, "--rate", str(rate), "--records", str(records)]
        self._producer = self.cluster.program("producer", command)
        self._producer.spawn()
        self._plan_fault()

    def tick(self) -> None:
        """Let a server fail if it is time, and those come back that have failed."""
        with suppress(RebalancerError):  # ZooKeeper is away
            self._bring_broker_back()
        self._replace_coordinators()
        if self._producer is not None and self._producer.exit_code:
            self._producer.wait_end(0)  # raises
        if time.monotonic() < self._next_fault_s:
            return
        actions: dict[str, Callable[[], bool]] = {
            "leader": self._kill_leader,
            "merge": lambda: self._kill_leader_in(documents.CHECKPOINT),
            "reset": lambda: self._kill_leader_in(documents.RESET),
            "zookeeper": lambda: _restart(self.cluster.zookeeper_servers[0]),
            "broker": self._kill_broker,
            "topic growth": self._grow,
        }
        if not self.own_states:  # there are no rounds
            del actions["merge"], actions["reset"]
        kind = self.random_.choices(list(actions), [WEIGHTS[name] for name in actions])[0]
        with suppress(RebalancerError, KafkaException):  # a server is still away: the next time
            self.faults[kind] += actions[kind]()
        self._plan_fault()

    def repair(self) -> None:
        """Wait until every server runs; coordinators live on."""
        for number in list(self._steps):
            self.lab.programs[f"coordinator-{number}"].kill()
            self._start_coordinator(number, lives=True)
        self.lab.wait_for("the broker", self._bring_broker_back)
        self.cluster.zookeeper_servers[0].wait_ready()
        self.cluster.broker.wait_ready()
        self.lab.wait_for("all partitions", self._is_served)  # a broker that has just restarted may know no topic

    def stored(self, members: Members) -> dict[int, int]:
        """Return how far a group has stored each partition."""
        return self.results[members.way.results].next_offsets(members.group)

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

    def _start_coordinator(self, number: int, *, lives: bool = False) -> None:
        """Start a coordinator, which may die by itself."""
        self._steps.pop(number, None)
        environment: dict[str, str] = {}
        if not lives and self.random_.random() < LEADER_SHARE:
            step = self._steps[number] = self.random_.choice(list(LEADER_STEPS) if self.own_states else ["multi"])
            environment[failpoints.VARIABLE] = f"{LEADER_STEPS[step]}:{self.random_.randint(*LEADER_COUNTS)}"
        self.lab.start_coordinator(number, environment)

    def _replace_coordinators(self) -> None:
        """Note which coordinators have died where they were to, and start others."""
        for number in range(1, COORDINATORS + 1):
            program = self.lab.programs[f"coordinator-{number}"]
            if not program.is_running:
                if number not in self._steps or program.exit_code != -signal.SIGKILL:
                    program.wait_end(0)  # raises
                self.faults[f"leader-{self._steps[number]}"] += 1
                self._start_coordinator(number)

    def _kill_leader(self) -> bool:
        leader = self.lab.leader()
        program = self.lab.programs.get(f"coordinator-{leader}")
        if leader is None or program is None or not program.is_running:
            return False
        program.kill()
        self._start_coordinator(leader)
        return True

    def _kill_leader_in(self, kind: str) -> bool:
        """Kill the leader while it waits for the members' answers, or merges them."""
        group = self.random_.choice(self.own_states)
        give_up_at_s = time.monotonic() + ROUND_DEADLINE_S
        while time.monotonic() < give_up_at_s:
            order = read_order(self.lab.zk, group)
            if order.open is not None and order.open.kind == kind:
                return self._kill_leader()
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
def new_world(sink: str, seed: int, session_timeout_ms: int, groups: tuple[str, ...]) -> Iterator[World]:
    """Start the servers; nothing of them is left at the end."""
    with (
        ending_starter(),
        Cluster(chroot="/exactly-once", tick_ms=200, kafka_properties=KAFKA_PROPERTIES) as cluster,
        Lab(cluster, cluster.directory / "events", session_timeout_ms) as lab,
        _database(cluster, sink) as database,
    ):
        database.create()
        copies = cluster.directory / "copies"
        copies.mkdir()
        results: dict[str, Results] = {
            DATABASE: database,
            COPIES: OwnStates(lab.zk, copies),
            KAFKA: KafkaResults(cluster.bootstrap, TOPIC, MOST_PARTITIONS),
        }
        own_states = [group for group in groups if GROUPS[group].results == COPIES]
        yield World(cluster, lab, results, own_states, random.Random(f"{seed}-servers"))


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
