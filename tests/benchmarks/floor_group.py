"""A join in a whole group with everything but decisions: `python -m tests.benchmarks.floor_group [--members 50]`.

Each member (`floor_agents.py`) is a process as in `rebalance.py`, with the threads, clients and calls of an agent. The
leader makes a coordinator's calls, and writes its events before each transaction as the coordinator does. Nothing is
checked, nothing is planned, and every fault ends the benchmark.

Prints two times of a join: since the newcomer was told to join, and since the leader has read its registration. Compare
them with `settled`, and with `planned` to `last start acked`, of
`python -m tests.benchmarks.rebalance --protocols central-incremental --sizes 50`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gevent
from gevent.queue import SimpleQueue

from tests.benchmarks.floor import RECORD, ROUND_DEADLINE_S, start
from tests.benchmarks.floor_agents import GROUP, TOPIC, Session, run_member
from tests.benchmarks.rebalance import PARTITIONS_PER_MEMBER, SECONDS_PER_RECORD
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol import calls

PARENTS = "/channel", "/owners", "/ids", "/offsets", "/given", "/generation"
ROUNDS = 7
REST_S = 2.0  # before each join and each leave, and three times that after the start: all have committed by then
START_DEADLINE_S = 300.0
MAX_OPERATIONS = 100  # of a transaction that prepares
GIVEN_BY = 12  # members that give up a partition each
STOP, START = "stop", "start"


@dataclass(frozen=True, slots=True)
class Command:
    """What a member has to do with partitions."""

    member: str
    option: str
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class Join:
    """The times of one join, in seconds of the monotonic clock, and how many starts the newcomer got."""

    began_s: float
    read_s: float
    ended_s: float
    starts: int


class Leader:
    """Sends commands and reads what is acknowledged."""

    def __init__(self, hosts: str, log: EventLog, partitions: int) -> None:
        """Connect, and create the nodes."""
        self._log = log
        self._events: SimpleQueue[calls.ZooKeeperEvent] = SimpleQueue()
        self.session = Session(hosts, self._events.put)
        self.owned: dict[str, list[int]] = {}  # of each member that is registered
        self._pending: dict[str, Command] = {}
        self._queue: list[Command] = []
        self._free: list[int] = []
        self._newcomer = ""
        self._is_sending = False
        self.starts = 0
        if not isinstance(self._events.get(timeout=ROUND_DEADLINE_S), calls.Connected):
            raise ConnectionError(hosts)
        creates = [calls.Create(path) for path in PARENTS]
        creates += [calls.Create(f"/offsets/{number}", b"0") for number in range(partitions)]
        made: list[calls.Reply] = []
        portions = range(0, len(creates), MAX_OPERATIONS)
        for begin in portions:
            self.session.request(calls.Multi(tuple(creates[begin : begin + MAX_OPERATIONS])), made.append)
        self.run_until(lambda: len(made) == len(portions))
        self._list()

    def run_until(self, is_so: Callable[[], bool], deadline_s: float = ROUND_DEADLINE_S) -> None:
        """Handle events until then."""
        while not is_so():
            match self._events.get(timeout=deadline_s):
                case calls.Replied() as event:
                    self.session.replied(event)
                case calls.Watched(children=True):
                    self._list()
                case calls.Watched(path):
                    self._read(path.rpartition("/")[2])
                case event:
                    raise ConnectionError(event)

    def begin(self, members: list[str], each: int) -> None:
        """Wait for the members, and give each so many partitions."""
        self.run_until(lambda: len(self.owned) == len(members), START_DEADLINE_S)
        starts = [(name, list(range(n * each, (n + 1) * each))) for n, name in enumerate(members)]
        self._queue = [Command(name, START, partitions) for name, partitions in starts]
        self._serve()
        self.run_until(lambda: all(self.owned.values()), START_DEADLINE_S)

    def join(self, newcomer: str, tell: Callable[[], None], leaving: list[str]) -> Join:
        """Let a member join, to which each of some others gives up a partition."""
        self._newcomer, self.starts = newcomer, 0
        began_s = time.monotonic()
        tell()
        self.run_until(lambda: newcomer in self.owned)
        read_s = time.monotonic()
        self._log.write("rebalance_planned", group=GROUP)
        self._queue = [Command(name, STOP, self.owned[name][-1:]) for name in leaving]
        self._serve()
        self.run_until(lambda: len(self.owned[newcomer]) == len(leaving))
        return Join(began_s, read_s, time.monotonic(), self.starts)

    def leave(self, newcomer: str, tell: Callable[[], None], former: list[str]) -> None:
        """Let the newcomer end, and give its partitions to their former owners."""
        partitions = self.owned[newcomer]
        tell()
        self.run_until(lambda: newcomer not in self.owned)
        self._queue = [Command(name, START, [number]) for name, number in zip(former, partitions, strict=True)]
        self._serve()
        self.run_until(lambda: not self._queue and not self._pending)

    def _list(self) -> None:
        self.session.request(calls.ListChildren("/ids", watch=True), self._listed)

    def _listed(self, reply: calls.Reply) -> None:
        for name in reply.names if isinstance(reply, calls.Children) else ():
            if name not in self.owned:
                self.session.request(calls.Get(f"/ids/{name}", watch=True))
                self._read(name)

    def _read(self, name: str) -> None:
        self.session.request(calls.Get(f"/owners/{name}", watch=True), lambda reply: self._owners_read(name, reply))

    def _owners_read(self, name: str, reply: calls.Reply) -> None:
        done = self._pending.pop(name, None)
        if not isinstance(reply, calls.Content):
            self.owned.pop(name, None)  # it has left
            return
        owned = self.owned.setdefault(name, [])
        if done is None:
            return
        self._log.write("command_acked", group=GROUP, member=name, option=done.option)
        if done.option == START:
            owned += done.partitions
        else:
            self.owned[name] = [number for number in owned if number not in done.partitions]
            self._free += done.partitions
        self._serve()

    def _serve(self) -> None:
        """Send what can be sent in one transaction; at most one is in flight."""
        if self._is_sending:
            return
        if self._free and self._newcomer not in self._pending:
            self._queue.append(Command(self._newcomer, START, self._free))
            self._free = []
            self.starts += 1
        batch, self._queue = self._queue, []
        if not batch:
            return
        self._is_sending = True
        self._pending.update((command.member, command) for command in batch)
        operations: list[calls.Operation] = [calls.SetContent("/generation", RECORD, -1)]
        operations += [calls.SetContent("/given", RECORD, -1) for command in batch if command.option == START]
        for command in batch:
            content = json.dumps({"option": command.option, "partitions": command.partitions}).encode()
            operations.append(calls.Create(f"/channel/{command.member}/command-", content, sequence=True))
        self._log.flush()
        self.session.request(calls.Multi(tuple(operations)), lambda reply: self._sent(batch, reply))

    def _sent(self, batch: list[Command], reply: calls.Reply) -> None:
        if not isinstance(reply, calls.Done):
            raise ConnectionError(reply)
        self._is_sending = False
        for command in batch:
            self._log.write("command_sent", group=GROUP, member=command.member, option=command.option)
        self._serve()


class Child:
    """The process of a member."""

    def __init__(self, name: str, servers: tuple[str, str, str]) -> None:
        """Start it; it joins when it is told to. `servers`: ZooKeeper, Kafka, and the folder for events."""
        command = [sys.executable, "-m", "tests.benchmarks.floor_group", "--member", name, *servers]
        self.name = name
        self.process: subprocess.Popen[str] = start(command)

    def wait(self) -> None:
        """Wait until it has loaded its modules; other greenlets run meanwhile."""
        if self.process.stdout is not None:
            gevent.get_hub().threadpool.apply(self.process.stdout.readline)

    def join(self) -> None:
        """Tell it to join."""
        if self.process.stdin is not None:
            self.process.stdin.write("join\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Tell it to leave."""
        if self.process.stdin is not None:
            self.process.stdin.close()


def measure(lab: Lab, size: int, rounds: int, rest_s: float) -> list[Join]:
    """Return the times of joins to a group at rest."""
    root = f"/{TOPIC}-{os.getpid()}"
    lab.zk.perform(calls.Multi((calls.Create(root),)))
    servers = lab.cluster.zookeeper + root, lab.cluster.bootstrap, str(lab.events)
    log = EventLog(lab.events, "leader")
    leader = Leader(servers[0], log, size * PARTITIONS_PER_MEMBER)
    children = [Child(f"m{number}", servers) for number in range(size)]
    joins: list[Join] = []
    try:
        for child in children:
            child.wait()
            child.join()
        leader.begin([child.name for child in children], PARTITIONS_PER_MEMBER)
        gevent.sleep(3 * rest_s)
        for number in range(rounds):
            newcomer = Child(f"new{number}", servers)
            children.append(newcomer)
            newcomer.wait()
            gevent.sleep(rest_s)
            leaving = [f"m{(number * GIVEN_BY + one) % size}" for one in range(min(GIVEN_BY, size))]
            joins.append(leader.join(newcomer.name, newcomer.join, leaving))
            gevent.sleep(rest_s)
            leader.leave(newcomer.name, newcomer.end, leaving)
    finally:
        for child in children:
            child.end()
        for child in children:
            child.process.wait(ROUND_DEADLINE_S)
        leader.session.zk.close()
        log.close()
    return joins


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rest-s", type=float, default=REST_S)
    parser.add_argument("--member", nargs=4, metavar=("NAME", "ZOOKEEPER", "KAFKA", "EVENTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        run_member(*arguments.member)
        return
    partitions = arguments.members * PARTITIONS_PER_MEMBER
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(kafka_properties={"offsets.topic.num.partitions": "1"}) as cluster,
        Lab(cluster, Path(scratch) / "events") as lab,
    ):
        lab.create_topic(TOPIC, partitions)
        lab.start_producer("producer", {TOPIC: partitions}, partitions // SECONDS_PER_RECORD)
        joins = measure(lab, arguments.members, arguments.rounds, arguments.rest_s)
        lab.stop("producer")
        lab.delete_topic(TOPIC)
    for what, times in (
        ("settled after", [join.ended_s - join.began_s for join in joins]),
        ("since its registration was read,", [join.ended_s - join.read_s for join in joins]),
    ):
        found = sorted(1_000 * time_s for time_s in times)
        print(f"{what} {statistics.median(found):.0f} ms ({found[0]:.0f} to {found[-1]:.0f}, {len(found)} joins)")
    print(f"{statistics.median(join.starts for join in joins):.0f} starts of the newcomer")


if __name__ == "__main__":
    main()
