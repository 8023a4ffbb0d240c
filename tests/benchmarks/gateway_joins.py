"""`python -m tests.benchmarks.gateway_joins`: how soon a member that joins has its share, at a broker and at gateways.

Members are bytes on a connection that speak KIP-848, and do at once what they are told. So what is measured is the
coordinator and its heartbeats, not a client. `central` has a coordinator of this project, and as many gateways as asked
for; members are spread over groups that are served by each of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from random import Random
from typing import Any

import gevent
import psutil
from gevent.event import Event
from gevent.socket import create_connection, socket

from tests.integration.gateway_process import GatewayProcess
from zkrebalancer.cli.group_coordinator import CENTRAL_HEARTBEAT_MS
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.gateway.frames import FrameReader, framed
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.localcluster import cluster as localcluster

TOPIC = "joins"
DEADLINE_S = 240.0
RETRY_S = 0.1
TUNED_MS = 500  # between heartbeats
USUAL_MS = {"broker": 5_000, "client": 5_000, "central": CENTRAL_HEARTBEAT_MS}  # the same by default
TUNED = ("--consumer-heartbeat-interval-ms", TUNED_MS, "--consumer-session-timeout-ms", 6_000)
TRANSIENT = frozenset({14, 15, 16})  # the coordinator is not there yet
HEARTBEAT, FIND = ("ConsumerGroupHeartbeat", 1), ("FindCoordinator", 4)
Kind = tuple[str, int]
Fields = dict[str, Any]
Partition = tuple[uuid.UUID, int]


class Wire:
    """A connection on which one request is answered after the other."""

    def __init__(self, host: str, port: int) -> None:
        """Connect."""
        self.socket: socket = create_connection((host, port))
        self._reader = FrameReader(self.socket)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def ask(self, kind: Kind, fields: Fields) -> Fields:
        """Send a request and return the answer's fields."""
        name, version = kind
        header = codec.encode_header(Header(KEYS[name], version, 1, "benchmark"))
        self.socket.sendall(framed(header + codec.encode(f"{name}Request", version, fields)))
        answer = self._reader.take(self._reader.next_size() or 0)
        return codec.decode(f"{name}Response", version, answer[codec.answer_body(KEYS[name], version, answer) :])


class Member:
    """A member that reports as often as it is told, and at once when it has done what it was told."""

    def __init__(self, bootstrap: tuple[str, int], group: str, changed: Event) -> None:
        """Prepare; `changed` is set when it was given, or gave up, something."""
        self._bootstrap = bootstrap
        self._group = group
        self._changed = changed
        self.owned: frozenset[Partition] = frozenset()
        self.interval_ms = 0

    def run(self) -> None:
        """Be a member, until killed."""
        wire = self.connect()
        member_id, epoch = str(uuid.uuid4()), 0
        reported: frozenset[Partition] | None = None
        while True:
            fields: Fields = {"group_id": self._group, "member_id": member_id, "member_epoch": epoch}
            if epoch == 0:
                fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}
            elif reported != self.owned:
                fields |= {"topic_partitions": _by_topic(self.owned)}
            reported = self.owned
            answer = wire.ask(HEARTBEAT, fields)
            if answer["error_code"] in TRANSIENT:
                reported = None  # a client repeats what may not have arrived
                gevent.sleep(RETRY_S)
                continue
            if answer["error_code"]:
                raise SystemExit(f"a heartbeat is refused: {answer['error_code']} {answer['error_message']}")
            epoch, self.interval_ms = answer["member_epoch"], answer["heartbeat_interval_ms"]
            if answer["assignment"] is not None:
                self._take(answer["assignment"]["topic_partitions"])
            if self.owned == reported:
                gevent.sleep(self.interval_ms / 1_000)

    def _take(self, assigned: list[Fields]) -> None:
        self.owned = frozenset((topic["topic_id"], number) for topic in assigned for number in topic["partitions"])
        self._changed.set()

    def connect(self) -> Wire:
        """Connect to the group's coordinator."""
        first = Wire(*self._bootstrap)
        while True:
            (found,) = first.ask(FIND, {"key_type": 0, "coordinator_keys": [self._group]})["coordinators"]
            if not found["error_code"]:
                first.close()
                return Wire(found["host"], found["port"])
            gevent.sleep(RETRY_S)


def _by_topic(partitions: frozenset[Partition]) -> list[Fields]:
    ordered = itertools.groupby(sorted(partitions), key=lambda partition: partition[0])
    return [{"topic_id": topic, "partitions": [number for _topic, number in some]} for topic, some in ordered]


class Members:
    """The members of one group."""

    def __init__(self, bootstrap: str, group: str, partitions: int) -> None:
        """Begin with none."""
        host, _, port = bootstrap.rpartition(":")
        self._bootstrap = host, int(port)
        self._group = group
        self._partitions = partitions
        self._changed = Event()
        self._members: list[Member] = []
        self._running: list[gevent.Greenlet[[], None]] = []

    def find_coordinator(self) -> None:
        """Wait until the group has a coordinator: in a new cluster, the broker has to create a topic first."""
        Member(self._bootstrap, self._group, self._changed).connect().close()

    def join(self, count: int) -> float:
        """Let members join, and return the milliseconds until all have their share, and nothing moves."""
        began = last = time.perf_counter()
        for _ in range(count):
            member = Member(self._bootstrap, self._group, self._changed)
            self._members.append(member)
            running = gevent.spawn(member.run)
            running.link_exception(lambda _failed: self._changed.set())
            self._running.append(running)
        while not self._is_settled():
            self._changed.clear()
            if any(running.ready() for running in self._running):
                raise SystemExit(f"{self._group}: a member has ended")
            if not self._changed.wait(max(0.0, began + DEADLINE_S - time.perf_counter())):
                raise SystemExit(f"{self._group}: {len(self._members)} members have not settled")
            last = time.perf_counter()
        return 1_000 * (last - began)

    def _is_settled(self) -> bool:
        shares = [len(member.owned) for member in self._members]
        held = set().union(*(member.owned for member in self._members))
        return sum(shares) == len(held) == self._partitions and max(shares) - min(shares) <= 1

    def rest(self, interval_ms: int, part: float) -> None:
        """Wait until all report as seldom as in a group at rest, for two intervals more, and for a part of one."""
        give_up_at = time.perf_counter() + DEADLINE_S
        while {member.interval_ms for member in self._members} != {interval_ms}:
            if time.perf_counter() > give_up_at:
                raise SystemExit(f"{self._group}: heartbeats do not become as rare as every {interval_ms} ms")
            gevent.sleep(RETRY_S)
        gevent.sleep((2 + part) * interval_ms / 1_000)

    def close(self) -> None:
        """End all."""
        gevent.killall(self._running)


def measure(bootstrap: str, group: str, members: int, joins: int, partitions: int, interval_ms: int) -> Fields:
    """Let `members` join at once, then others one by one; `interval_ms`: between heartbeats of a group at rest."""
    some = Members(bootstrap, group, partitions)
    some.find_coordinator()
    try:
        at_once_ms = some.join(members)
        single_ms = []
        phases = Random(joins)  # of heartbeats, the same everywhere
        for _ in range(joins):
            some.rest(interval_ms, phases.random())
            single_ms.append(round(some.join(1)))
        found: Fields = {"members": members, "at_once_ms": round(at_once_ms), "one_joins_ms": single_ms}
        if single_ms:
            found["one_joins_ms_median"] = statistics.median(single_ms)
        return found | {"heartbeat_interval_ms": interval_ms}
    finally:
        some.close()


def measure_side(way: str, tuning: str, arguments: argparse.Namespace) -> Fields:
    """Measure at the broker, or behind gateways that assign `client` or `central`."""
    interval_ms = TUNED_MS if tuning == "tuned" else USUAL_MS[way]
    sizes = arguments.members, arguments.joins, arguments.partitions, interval_ms
    properties = PROTOCOLS["kip848"].settings["tuned" if tuning == "tuned" else "default"].broker
    with (
        localcluster.LocalCluster(chroot="/joins", broker="kafka-4", kafka_properties=properties) as cluster,
        tempfile.TemporaryDirectory() as folder,
        Lab(cluster, Path(folder, "events"), 6_000) as lab,
    ):
        lab.create_topic(TOPIC, arguments.partitions)
        if way == "broker":
            return measure(cluster.bootstrap, TOPIC, *sizes)
        if way == "central":
            lab.start_coordinator(1)
            lab.wait_leader()
        options = ["--assign", way, "--session-timeout-ms", 6_000, "--log-level", "warning"]
        options += TUNED if tuning == "tuned" else ()
        gateways = [GatewayProcess(cluster, Path(folder), *options) for _ in range(arguments.gateways)]
        try:
            for gateway in gateways:
                gevent.get_hub().threadpool.apply(gateway.start)
            return _measure_gateways(gateways, arguments.groups, sizes)
        finally:
            for gateway in gateways:
                gateway.end()


def _measure_gateways(gateways: list[GatewayProcess], count: int, sizes: tuple[int, int, int, int]) -> Fields:
    before_s = sum(used_s(gateway) for gateway in gateways)
    groups = [f"{TOPIC}-{number}" for number in range(count)]
    jobs = [gevent.spawn(measure, gateways[0].bootstrap, group, *sizes) for group in groups]
    gevent.joinall(jobs, raise_error=True)
    found: Fields = {"groups": [job.get() for job in jobs]} if len(jobs) > 1 else dict(jobs[0].get() or {})
    found["gateways_processor_s"] = round(sum(used_s(gateway) for gateway in gateways) - before_s, 2)
    return found


def used_s(gateway: GatewayProcess) -> float:
    """Return the processor time of a gateway so far."""
    times = psutil.Process(gateway.pid).cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", action="append", choices=["broker", "client", "central"])
    parser.add_argument("--settings", action="append", choices=["default", "tuned"])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--joins", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=120)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1, help="behind gateways; with two gateways each serves some")
    arguments = parser.parse_args()
    found = {
        f"{way}, {tuning}": measure_side(way, tuning, arguments)
        for tuning in arguments.settings or ["default", "tuned"]
        for way in arguments.way or ["broker", "client", "central"]
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
