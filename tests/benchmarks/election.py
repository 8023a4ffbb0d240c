"""What an election costs, beside its floor: `python -m tests.benchmarks.election [--groups 1000] [--rounds 3]`.

A real ZooKeeper has groups at rest, all of whose members live in one session of this process. In turns, a coordinator
that stands by becomes the leader, and a bare reader reads the same nodes, in the same stages and by the same client,
sets the same watches, and only parses the JSON: what no leader can save. Printed is the processor time that each needs
for it, without its start. With `--other FOLDER`, coordinators of another checkout take their turns, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gevent
from gevent.queue import SimpleQueue

from tests.benchmarks.swarm.lab import NODES_AT_ONCE, QUIET_PACKETS, make_tree, new_chroot
from tests.benchmarks.swarm.members import wait_until
from tests.benchmarks.swarm.player import Cast, group_name
from tests.benchmarks.swarm.processes import cpu_s, of_zookeeper, seen
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import reserve_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol import calls, cluster_nodes, ownership, paths, registration
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    ReadEach,
    Replied,
    Reply,
)
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.runtime.zk import BlockingZk, ZkClient

GENERATION = 1
SESSION_MS = 60_000
DEADLINE_S = 600.0
LOOK_S = 1.0
MAX_READING = 200  # groups at the same time, as a coordinator does
Reads = Get | ListChildren | ReadEach
Stages = Generator[list[Reads], list[Reply], None]


# Groups at rest -------------------------------------------------------------------------------------------------------


def fill(zk: BlockingZk, cast: Cast) -> None:
    """Add the members of all groups, with all that a leader has written, in the session of `zk`."""
    zk.perform(Multi((Create(paths.SERVED), Create(paths.COORDINATOR_EPOCH, cluster_nodes.encode_counter(1)))))
    many = [Multi(tuple(_nodes_of_group(cast, number))) for number in cast.groups]
    for begin in range(0, len(many), NODES_AT_ONCE):
        zk.perform_all(many[begin : begin + NODES_AT_ONCE])


def _nodes_of_group(cast: Cast, number: int) -> Iterator[Create]:
    group, topic = group_name(number), cast.topic_of(number)
    mark = cluster_nodes.encode_counter(GENERATION)
    yield Create(paths.served(group))
    yield Create(paths.generation(group), mark)
    yield Create(paths.incarnations(group))
    yield Create(paths.given(group), mark)
    for member in range(cast.members):
        name = f"m{member}-{number:032}"  # as long as a client id with its uuid
        owned = {(topic, partition): 0 for partition in range(member, cast.partitions, cast.members)}
        described = Registration(STATIC, {topic: 1}, "0", f"m{member}", "swarm", SESSION_MS)
        record = OwnersRecord(GENERATION, f"{number}-{member}", owned)
        yield Create(paths.channel(group, name))
        yield Create(paths.given(group, name), ownership.encode_given(owned.keys()))
        yield Create(paths.ids(group, name), registration.encode(described), ephemeral=True)
        yield Create(paths.owners(group, name), ownership.encode_owners(record), ephemeral=True)


# The bare reader ------------------------------------------------------------------------------------------------------


def read_topics() -> Stages:
    """Yield the reads of all topics."""
    (listed,) = yield [ListChildren(paths.BROKER_TOPICS, watch=True)]
    yield [ReadEach(Get, paths.BROKER_TOPICS, _names(listed), watch=True)]


def read_group(group: str) -> Stages:
    """Yield the reads of one group, stage by stage, as `rebalance/reader.py` makes them."""
    top = paths.group(group)
    yield [ListChildren(top, watch=True)]
    lists = [ListChildren(path(group)) for path in (paths.channel, paths.offsets, paths.static, paths.incarnations)]
    last: list[Reads] = [Get(paths.given(group)), ListChildren(paths.given(group))]
    found = yield [Get(top, watch=True), Get(paths.generation(group)), *lists, *last]
    channels = ReadEach(ListChildren, paths.channel(group), _names(found[2]))
    yield [channels, ReadEach(Get, paths.given(group), _names(found[-1]))]
    (names,) = yield [ListChildren(paths.owners(group))]
    yield [ListChildren(paths.ids(group), watch=True)]
    for path in (paths.ids, paths.owners):
        yield [ReadEach(Get, path(group), _names(names), watch=True)]
    yield [ListChildren(paths.evicted(group))]


def _names(reply: Reply) -> tuple[str, ...]:
    return reply.names if isinstance(reply, Children) else ()


@dataclass(slots=True)
class Reading:
    """Stages under way; `missing` replies of the present one."""

    stages: Stages
    replies: list[Reply] = field(default_factory=list)
    missing: int = 0


class BareReader:
    """Reads everything that a new leader reads, and knows nothing of it afterwards."""

    def __init__(self, zookeeper: str) -> None:
        """Connect."""
        self.nodes = 0
        self._events: SimpleQueue[object] = SimpleQueue()
        put = self._events.put
        self._zk = ZkClient(zookeeper, SESSION_MS, put, reads_together=True, on_replies=put)
        self._zk.start()
        while not isinstance(self._events.get(), calls.Connected):
            pass
        self._awaited: dict[int, tuple[Reading, int]] = {}
        self._waiting: Iterator[str] = iter(())

    def read(self) -> None:
        """Read all topics, then all groups."""
        self._run([read_topics()])
        groups: list[str] = []
        self._run([_listing(groups)])
        self._waiting = iter(groups)
        self._run([read_group(name) for name, _ in zip(self._waiting, range(MAX_READING), strict=False)])

    def close(self) -> None:
        """Disconnect."""
        self._zk.close()

    def _run(self, many: Sequence[Stages]) -> None:
        for stages in many:
            self._go_on(Reading(stages))
        while self._awaited:
            event = self._events.get()
            for one in event.each() if isinstance(event, calls.RepliedAll) else (event,):
                if isinstance(one, Replied):
                    self._replied(*one)

    def _replied(self, call_id: int, reply: Reply) -> None:
        reading, place = self._awaited.pop(call_id)
        if isinstance(reply, Content) and reply.content.startswith(b"{"):
            json.loads(reply.content)
        reading.replies[place] = reply
        reading.missing -= 1
        if not reading.missing:
            self._go_on(reading)

    def _go_on(self, reading: Reading) -> None:
        try:
            reads = reading.stages.send(reading.replies) if reading.replies else next(reading.stages)
        except StopIteration:
            if (group := next(self._waiting, None)) is not None:
                self._go_on(Reading(read_group(group)))
            return
        first_id = self.nodes
        for one in reads:
            if isinstance(one, ReadEach):
                self._zk.request_each(self.nodes, one)
                self.nodes += len(one.names)
            else:
                self._zk.request(self.nodes, one)
                self.nodes += 1
        reading.missing = self.nodes - first_id
        reading.replies = [calls.Done()] * reading.missing
        for place in range(reading.missing):
            self._awaited[first_id + place] = reading, place


def _listing(groups: list[str]) -> Stages:
    (listed,) = yield [ListChildren(paths.GROUPS, watch=True)]
    groups += _names(listed)


def be_reader(zookeeper: str) -> None:
    """Read everything once; print the number of nodes, and seconds: of the processor, and by the clock."""
    gc.disable()  # as a leader does meanwhile
    reader = BareReader(zookeeper)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    reader.read()
    print(json.dumps([reader.nodes, time.process_time() - began_cpu_s, time.monotonic() - began_s]))
    reader.close()


# The coordinators -----------------------------------------------------------------------------------------------------


@contextmanager
def standing_by(zookeeper: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run a coordinator of the checkout in this folder; yield its process and the port of its metrics."""
    (reserved,) = reserve_ports(1)
    port = int(reserved.getsockname()[1])
    reserved.close()
    options = ["--zookeeper", zookeeper, "--broker-id", "1", "--http", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "coordinator", *options]
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    child = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child.pid, port
    finally:
        child.kill()
        child.wait()


def elect(zk: BlockingZk, zookeeper: str, folder: Path, groups: int) -> float:
    """Let a coordinator that stands by become the leader; return the processor time until it rests again."""
    zk.perform(Multi((Create(paths.COORDINATOR, ephemeral=True),)))
    with standing_by(zookeeper, folder) as (pid, port):
        wait_until(lambda: _answers(port), DEADLINE_S, "a coordinator")
        wait_until(lambda: _is_quiet(zookeeper), DEADLINE_S, "a quiet ZooKeeper")
        used_s = [cpu_s(pid)]
        zk.perform(Multi((Delete(paths.COORDINATOR),)))

        def rests() -> bool:
            """Ask it only when that looks true: to answer, it counts in every group."""
            if not _is_quiet(zookeeper):
                return False
            used_s.append(cpu_s(pid))
            try:
                found = seen(port)
            except OSError:  # its loop was too busy to answer in time
                return False
            return found.is_leader and found.is_quiet and found.groups == groups

        wait_until(rests, DEADLINE_S, "a leader at rest")
    zk.perform(Multi((Delete(paths.COORDINATOR),)), calls.ABSENT)  # its session may last a little longer
    return used_s[-1] - used_s[0]


def _answers(port: int) -> bool:
    try:
        return not seen(port).is_leader
    except OSError:
        return False


def _is_quiet(zookeeper: str) -> bool:
    """Whether ZooKeeper gets hardly any requests."""
    servers = zookeeper.partition("/")[0]
    before = of_zookeeper(servers)["zk_packets_received"]
    gevent.sleep(LOOK_S)
    return of_zookeeper(servers)["zk_packets_received"] - before <= QUIET_PACKETS


def measure(zookeeper: str, cast: Cast, rounds: int, folders: Sequence[Path]) -> Iterator[str]:
    """Yield a line for each turn."""
    make_tree(zookeeper, len(cast.groups), cast.topics, cast.partitions)
    with BlockingZk(zookeeper, SESSION_MS) as zk:
        fill(zk, cast)
        for number in range(1, rounds + 1):
            command = [sys.executable, "-m", "tests.benchmarks.election", "--reader", zookeeper]
            child = gevent.get_hub().threadpool.apply(_output, (command,))
            nodes, used_s, seconds = json.loads(child)
            begin = f"round {number}, load {os.getloadavg()[0]:.0f}"
            each_us = 1e6 / nodes
            line = f"{used_s:.2f} s, {used_s * each_us:.1f} us for each of {nodes} nodes, {seconds:.2f} s by the clock"
            yield f"{begin}: reader: {line}"
            for folder in folders:
                used_s = elect(zk, zookeeper, folder, len(cast.groups))
                yield f"{begin}: coordinator in {folder.name}: {used_s:.2f} s, {used_s * each_us:.1f} us for each"


def _output(command: list[str]) -> str:
    return subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """Print a line for each turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=10, help="of each group")
    parser.add_argument("--partitions", type=int, default=50, help="of each group's topic")
    parser.add_argument("--topics", type=int, default=1_000, help="of all groups together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, action="append", default=[], help="another checkout to measure, too")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        be_reader(arguments.reader)
        return
    sizes = arguments.members, arguments.partitions, min(arguments.topics, arguments.groups), SESSION_MS
    folders = [Path(__file__).parents[2], *arguments.other]
    with LocalCluster(broker="none", tick_ms=2_000, zookeeper_heap_mb=2_048) as cluster:
        cast = Cast(new_chroot(cluster), range(arguments.groups), *sizes)
        for line in measure(cast.zookeeper, cast, arguments.rounds, folders):
            print(line, flush=True)


if __name__ == "__main__":
    main()
