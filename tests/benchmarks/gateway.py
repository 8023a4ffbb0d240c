"""`python -m tests.benchmarks.gateway`: what the gateway costs, on one ZooKeeper and one broker.

Fetching beside a direct connection, taking turns; small fetches, one by one; heartbeats of one member, pipelined over
some connections; a group whose members all join at once; and many connections. Processor time is that of the gateway's
process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from gevent.event import Event
from gevent.socket import create_connection, socket

from tests.benchmarks.filling import fill_topic
from tests.integration.gateway_process import GatewayProcess
from zkrebalancer.gateway.frames import FrameReader, framed
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.localcluster import cluster as localcluster
from zkrebalancer.localcluster.ports import HOST

TOPIC, PARTITIONS = "gateway-benchmark", 6
EMPTY = "gateway-benchmark-empty"
RECORD_BYTES = 100_000
DEADLINE_S = 120.0
PIPELINED = 100  # heartbeats that are sent before their answers are read
CONNECTIONS = 10
TURNS = 5  # of direct connection and gateway
FETCH, FETCH_VERSION = 1, 11
JOIN, SYNC, HEARTBEAT = ("JoinGroup", 5), ("SyncGroup", 3), ("Heartbeat", 3)
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, LOADING = 79, 27, 14
Kind = tuple[str, int]


class Member:
    """A member of a group, as bytes on a connection."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.wire: socket = create_connection((HOST, port))
        self._reader = FrameReader(self.wire)
        self.identity: dict[str, Any] = {"group_id": "", "generation_id": -1, "member_id": ""}

    def ask(self, kind: Kind, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer's fields."""
        self.wire.sendall(frame(kind, fields))
        size = self._reader.next_size()
        answer = self._reader.take(size or 0)
        name, version = kind
        return codec.decode(f"{name}Response", version, answer[codec.answer_body(KEYS[name], version, answer) :])

    def settle(self, group: str) -> None:
        """Join, and join again until an assignment comes."""
        joining = {
            "group_id": group,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "benchmark",
            "protocols": [{"name": "any", "metadata": b"x" * 100}],
        }
        error = -1
        while error:
            joined = self.ask(JOIN, {**joining, "member_id": self.identity["member_id"]})
            self.identity = {
                "group_id": group,
                "generation_id": joined["generation_id"],
                "member_id": joined["member_id"],
            }
            error = joined["error_code"]
            if error not in {0, MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, LOADING}:
                raise SystemExit(f"a join is refused: {error}")
            if not error:
                given = [{"member_id": one["member_id"], "assignment": b"x" * 100} for one in joined["members"]]
                error = self.ask(SYNC, {**self.identity, "assignments": given})["error_code"]


def frame(kind: Kind, fields: dict[str, Any]) -> bytes:
    """Return a request as a frame."""
    name, version = kind
    header = codec.encode_header(Header(KEYS[name], version, 1, "benchmark"))
    return framed(header + codec.encode(f"{name}Request", version, fields))


def used_s(gateway: GatewayProcess) -> float:
    """Return the processor time of the gateway's process so far."""
    times = psutil.Process(gateway.pid).cpu_times()
    return times.user + times.system


def fetch(bootstrap: str, records: int) -> float:
    """Read all records and return MB a second, from the first record on."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    missing = records - len(consumer.consume(1, DEADLINE_S))
    began = time.perf_counter()
    while missing > 0:
        found = consumer.consume(min(missing, 500), DEADLINE_S)
        if not found:
            raise SystemExit(f"{missing} records were not read")
        missing -= len(found)
    taken_s = time.perf_counter() - began
    consumer.close()
    return (records - 1) * RECORD_BYTES / 1e6 / taken_s


def measure_fetch(direct: str, gateway: GatewayProcess, megabytes: int, repeat: int) -> dict[str, float]:
    """Fetch a topic directly and through the gateway, `repeat` times each."""
    admin = AdminClient({"bootstrap.servers": direct})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
    records = max(2, megabytes * 1_000_000 // RECORD_BYTES)
    fill_topic(direct, TOPIC, PARTITIONS, records, RECORD_BYTES)
    fetch(direct, records)  # so that both find it in memory
    rates: dict[str, list[float]] = {"direct": [], "gateway": []}
    costs = []
    for _ in range(repeat):
        rates["direct"].append(fetch(direct, records))
        before_s = used_s(gateway)
        rates["gateway"].append(fetch(gateway.bootstrap, records))
        costs.append((used_s(gateway) - before_s) * 1e9 / (records * RECORD_BYTES))
    found = {f"{name}_mb_per_s": statistics.median(all_rates) for name, all_rates in rates.items()}
    return {**found, "processor_s_per_gb": statistics.median(costs)}


def measure_small_fetches(direct: str, gateway: GatewayProcess, count: int) -> dict[str, float]:
    """Fetch from an empty topic, one request after the other, from the broker at `direct` and through the gateway."""
    admin = AdminClient({"bootstrap.servers": direct})
    admin.create_topics([NewTopic(EMPTY, 1, 1)])[EMPTY].result(DEADLINE_S)
    topic = struct.pack(">h", len(EMPTY)) + EMPTY.encode() + struct.pack(">iiiqqi", 1, 0, -1, 0, -1, 1 << 20)
    body = struct.pack(">iiiibiii", -1, 0, 0, 1 << 20, 0, 0, -1, 1) + topic + struct.pack(">ih", 0, 0)
    one = framed(struct.pack(">hhih", FETCH, FETCH_VERSION, 1, -1) + body)
    wires = {
        "direct": create_connection((HOST, int(direct.rpartition(":")[2]))),
        "gateway": create_connection((HOST, gateway.port + 1)),
    }

    def fetch_one(wire: socket) -> None:
        wire.sendall(one)
        reader = FrameReader(wire)
        reader.take(reader.next_size() or 0)

    taken_s = {"direct": 0.0, "gateway": 0.0}
    cost_s = 0.0
    for _ in range(TURNS):
        for name, wire in wires.items():
            fetch_one(wire)  # the gateway connects
            before_s, began = used_s(gateway), time.perf_counter()
            for _ in range(max(1, count // TURNS)):
                fetch_one(wire)
            taken_s[name] += time.perf_counter() - began
            cost_s += used_s(gateway) - before_s if name == "gateway" else 0.0
    for wire in wires.values():
        wire.close()
    fetches = max(1, count // TURNS) * TURNS
    found = {f"{name}_us": 1e6 * taken / fetches for name, taken in taken_s.items()}
    return {"count": fetches, **found, "processor_us": 1e6 * cost_s / fetches}


def measure_connections(gateway: GatewayProcess, count: int) -> dict[str, float]:
    """Open connections that stay, then send one heartbeat on each of them."""
    first = Member(gateway.port)
    first.settle("connections")
    one = frame(HEARTBEAT, first.identity)
    wires: list[socket] = []
    before = gateway.resident_bytes()

    def beat(wire: socket) -> None:
        wire.sendall(one)
        reader = FrameReader(wire)
        (error,) = struct.unpack_from(">h", reader.take(reader.next_size() or 0), 8)
        if error:
            raise SystemExit(f"a heartbeat is refused: {error}")

    def open_some(some: int) -> None:
        for _ in range(some):
            wires.append(create_connection((HOST, gateway.port)))
            beat(wires[-1])

    share = max(1, count // CONNECTIONS)
    opened = timed(gateway, lambda: run_all([(open_some, share)] * CONNECTIONS), share * CONNECTIONS)
    grown = gateway.resident_bytes() - before
    beaten = timed(gateway, lambda: run_all([(beat, wire) for wire in wires]), len(wires))
    for wire in wires:
        wire.close()
    return {
        "count": len(wires),
        "opening_s": opened["seconds"],
        "one_heartbeat_on_each_s": beaten["seconds"],
        "one_heartbeat_on_each_processor_s": beaten["processor_s"],
        "kib_each": grown / len(wires) / 1024,
    }


def measure_heartbeats(gateway: GatewayProcess, count: int) -> dict[str, float]:
    """Send heartbeats of one member over some connections, as fast as they are answered."""
    first = Member(gateway.port)
    first.settle("heartbeats")
    wires = [first.wire, *(create_connection((HOST, gateway.port)) for _ in range(CONNECTIONS - 1))]
    one = frame(HEARTBEAT, first.identity)
    answer = struct.pack(">iiih", 10, 1, 0, 0)
    rounds = max(1, count // (CONNECTIONS * PIPELINED))

    def beat(wire: socket) -> None:
        for _ in range(rounds):
            wire.sendall(one * PIPELINED)
            missing = b""
            while len(missing) < len(answer) * PIPELINED:
                missing += wire.recv(1 << 16)
            if missing != answer * PIPELINED:
                raise SystemExit(f"a heartbeat is refused: {missing[:14].hex()}")

    return timed(gateway, lambda: run_all([(beat, wire) for wire in wires]), rounds * CONNECTIONS * PIPELINED)


def measure_joins(gateway: GatewayProcess, members: int) -> dict[str, float]:
    """Let all members of a new group join at once, until each has its assignment."""
    joining = [Member(gateway.port) for _ in range(members)]
    found = timed(gateway, lambda: run_all([(Member.settle, member, "storm") for member in joining]), members)
    if len({member.identity["generation_id"] for member in joining}) > 1:
        raise SystemExit("the members are of several generations")
    return found


def run_all(jobs: list[tuple[Any, ...]]) -> None:
    """Run all at once; raises what one of them raises."""
    begin = Event()

    def run(work: Callable[..., None], *arguments: object) -> None:
        begin.wait()
        work(*arguments)

    running = [gevent.spawn(run, *job) for job in jobs]
    begin.set()
    gevent.joinall(running, raise_error=True)


def timed(gateway: GatewayProcess, work: Callable[[], None], count: int) -> dict[str, float]:
    """Return how long it took, and the gateway's part of it."""
    before_s, began = used_s(gateway), time.perf_counter()
    work()
    taken_s, cost_s = time.perf_counter() - began, used_s(gateway) - before_s
    return {
        "count": count,
        "seconds": taken_s,
        "per_s": count / taken_s,
        "processor_s": cost_s,
        "per_processor_s": count / max(cost_s, 0.01),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--heartbeats", type=int, default=200_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--fetches", type=int, default=5_000)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.megabytes, arguments.repeat, arguments.heartbeats, arguments.members = 2, 1, 1_000, 20
        arguments.connections, arguments.fetches = 20, 20
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the gateway, too
    with localcluster.LocalCluster(chroot="/gateway") as cluster, tempfile.TemporaryDirectory() as folder:
        gateway = GatewayProcess(cluster, Path(folder), "--log-level", "warning", "--session-timeout-ms", 10_000)
        gateway.start()
        try:
            found = {
                "fetch": measure_fetch(cluster.bootstrap, gateway, arguments.megabytes, arguments.repeat),
                "small_fetches": measure_small_fetches(cluster.bootstrap, gateway, arguments.fetches),
                "heartbeats": measure_heartbeats(gateway, arguments.heartbeats),
                "joins": measure_joins(gateway, arguments.members),
                "connections": measure_connections(gateway, arguments.connections),
            }
        finally:
            gateway.end()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
