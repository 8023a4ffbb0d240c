"""The processes of a swarm's lab: one ZooKeeper, coordinators, and players."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import gevent

from tests.benchmarks.swarm.members import wait_until
from tests.benchmarks.swarm.player import Answer, Cast, group_name
from tests.benchmarks.swarm.processes import Seen, cpu_s, of_zookeeper, seen
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import reserve_ports
from zkrebalancer.localcluster.server import Program, child_environment
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

NODES_AT_ONCE = 500
LOOK_S = 1.0
QUIET_PACKETS = 60  # in LOOK_S: pings, beats and histories, but no reading of groups
END_DEADLINE_S = 120.0
PATIENCE_MS = 300_000  # a member waits for its turn that long when all start at once


class Player:
    """A process of members, which answers each order with one line."""

    def __init__(self, cast: Cast) -> None:
        """Start the process."""
        sizes = (cast.members, cast.partitions, cast.topics, cast.session_timeout_ms)
        numbers = (cast.groups.start, cast.groups.stop, *sizes)
        command = [sys.executable, "-m", "tests.benchmarks.swarm", "--player", cast.zookeeper, *map(str, numbers)]
        self.cast = cast
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def order(self, name: str, *arguments: float) -> Answer:
        """Give an order and wait for its answer; raises RuntimeError if the process has ended."""
        self.begin(name, *arguments)
        return self.answer()

    def begin(self, name: str, *arguments: float) -> None:
        """Give an order; `answer` must follow."""
        if self._child.stdin is None:
            raise TypeError("the player has no pipes")
        self._child.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._child.stdin.flush()

    def answer(self) -> Answer:
        """Wait for the answer to an order; raises RuntimeError if the process has ended."""
        line = "" if self._child.stdout is None else self._child.stdout.readline()
        if not line:
            raise RuntimeError("a player has ended during an order")
        answer: Answer = json.loads(line)
        return answer

    def kill(self) -> None:
        """Let all members die: their sessions expire."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End the process, and the sessions."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate(timeout=END_DEADLINE_S)


@dataclass(slots=True)
class Coordinator:
    """A coordinator's process, and where it shows its metrics."""

    program: Program
    port: int

    def seen(self) -> Seen:
        """Return its groups."""
        return seen(self.port)


@dataclass(slots=True)
class SwarmLab:
    """Everything that runs."""

    cluster: LocalCluster
    zookeeper: str
    coordinators: list[Coordinator]
    players: list[Player]
    partitions: int  # of a group
    shards: int = 1  # of groups

    @property
    def leader(self) -> Coordinator:
        """The first coordinator that leads; raises LookupError if none does."""
        for one in self.running:
            if one.seen().is_leader:
                return one
        raise LookupError("no coordinator leads")

    @property
    def running(self) -> list[Coordinator]:
        """The coordinators that run."""
        return [one for one in self.coordinators if one.program.is_running]

    @property
    def are_led(self) -> bool:
        """Whether each shard of groups has a leader."""
        return sum(one.seen().shards_led for one in self.running) == self.shards

    def end_coordinators(self) -> None:
        """Kill those that still run."""
        for one in self.coordinators:
            one.program.kill()

    def look(self) -> Answer:
        """Return what all members own together; raises RuntimeError if some member lost its session."""
        answers = [player.order("look") for player in self.players]
        faults = [fault for answer in answers for fault in answer["faults"]]
        if faults:
            raise RuntimeError(f"the swarm is not what it should be: {faults[0]}")
        sums = {name: sum(answer[name] for answer in answers) for name in ("registered", "owned", "commands")}
        return {**sums, "last_change_us": max(answer["last_change_us"] for answer in answers)}

    def wait_owned(self, groups: int, members: int, deadline_s: float) -> Answer:
        """Wait until so many members are registered and own all partitions of so many groups; return `look`."""
        wanted = groups * self.partitions

        def is_so() -> bool:
            found = self.look()
            return found["registered"] >= members and bool(found["owned"] == wanted)

        wait_until(is_so, deadline_s, f"{wanted} partitions owned by {members} members")
        return self.look()

    def wait_adopted(self, groups: int, deadline_s: float) -> None:
        """Wait until ZooKeeper is quiet, and the leaders have then read all groups and rest.

        For its metrics a coordinator counts in every group: they are asked for only then.
        """

        def is_so() -> bool:
            before = self._packets()
            gevent.sleep(LOOK_S)
            if self._packets() - before > QUIET_PACKETS:
                return False
            found = [one.seen() for one in self.running]
            are_led = sum(one.shards_led for one in found) == self.shards
            return are_led and sum(one.groups for one in found) == groups and all(one.is_quiet for one in found)

        wait_until(is_so, deadline_s, f"{groups} groups adopted")

    def _packets(self) -> int:
        return of_zookeeper(self.cluster.zookeeper)["zk_packets_received"]

    def used(self) -> dict[str, float]:
        """Return the processor time of each kind of process so far, of each coordinator with several shards.

        Also the number of transactions.
        """
        coordinators = {one.program.name: cpu_s(one.program.pid) for one in self.running}
        return {
            "coordinators": sum(coordinators.values()),
            **(coordinators if self.shards > 1 else {}),
            "zookeeper": cpu_s(self.cluster.zookeeper_servers[0].pid),
            "players": sum(cpu_s(player.pid) for player in self.players),
            "transactions": float(zookeeper.zxid(self.cluster.zookeeper) & 0xFFFFFFFF),
            "at": time.monotonic(),
        }

    def during(self, act: Callable[[], object]) -> dict[str, float]:
        """Do something; return how long it took, and what each kind of process used."""
        before = self.used()
        act()
        after = self.used()
        used = {name: round(after[name] - before.get(name, 0.0), 2) for name in after if name != "at"}
        return {"seconds": round(after["at"] - before["at"], 2), **used}


def make_tree(address: str, groups: int, topics: int, partitions: int) -> None:
    """Create topics, and groups without members."""
    content = {"version": 3, "partitions": {str(number): [1] for number in range(partitions)}}
    described = settings.encode(GroupSettings(mode=settings.INCREMENTAL, rebalance_timeout_ms=PATIENCE_MS))
    with BlockingZk(address) as zk:
        above = ("/brokers", paths.BROKER_TOPICS, paths.CONSUMERS, paths.GROUPS)
        zk.perform(Multi(tuple(Create(path) for path in above)))
        many = [
            Multi((Create(paths.topic(f"swarm-{n}"), json.dumps({**content, "topic_id": f"id-{n}"}).encode()),))
            for n in range(topics)
        ]
        for number in range(groups):
            group = paths.group(group_name(number))
            nodes = (Create(f"{group}/{child}") for child in paths.GROUP_CHILDREN)
            many.append(Multi((Create(group, described), *nodes)))
        for begin in range(0, len(many), NODES_AT_ONCE):
            zk.perform_all(many[begin : begin + NODES_AT_ONCE])


def new_chroot(cluster: LocalCluster) -> str:
    """Return the address of a tree of its own in a cluster, which may serve others."""
    servers, chroot = cluster.zookeeper.partition("/")[0], f"/swarm-{uuid4()}"
    with BlockingZk(servers) as zk:
        zk.perform(Multi((Create(chroot),)))
    return servers + chroot


def start_coordinator(cluster: LocalCluster, address: str, number: int, deadline_s: float) -> Coordinator:
    """Start a coordinator for this tree, and wait until it shows its metrics."""
    (reserved,) = reserve_ports(1)
    port = int(reserved.getsockname()[1])
    reserved.close()
    options = ["--zookeeper", address, "--broker-id", str(number), "--session-timeout-ms", "10000"]
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "coordinator", *options, "--http", f"127.0.0.1:{port}"]
    program = cluster.program(f"swarm-coordinator-{number}", command)
    program.spawn()

    def answers() -> bool:
        try:
            seen(port)
        except OSError:
            return False
        return True

    program.wait_until(answers, deadline_s)
    return Coordinator(program, port)


@contextmanager
def running(cluster: LocalCluster, cast: Cast, players: int) -> Iterator[SwarmLab]:
    """Yield a tree with so many idle players, which share the groups of `cast`, and no coordinator."""
    groups = len(cast.groups)
    make_tree(cast.zookeeper, groups, cast.topics, cast.partitions)
    ranges = [range(n * groups // players, (n + 1) * groups // players) for n in range(players)]
    with ExitStack() as stack:
        started = []
        for part in ranges:
            started.append(Player(replace(cast, groups=part)))
            stack.callback(started[-1].close)
        lab = SwarmLab(cluster, cast.zookeeper, [], started, cast.partitions)
        stack.callback(lab.end_coordinators)
        yield lab
