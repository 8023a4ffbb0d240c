"""`python -m tests.benchmarks.gateway_classic`: clients of the classic protocol at a broker and behind gateways.

The clients are librdkafka's. Members join one after the other, one leaves, and one joins while another one is busy.
Reported are the time until partitions are shared again; of the members that stay, how many have other partitions than
before, and how many were called to join again; and how long partitions had no owner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import gevent
from confluent_kafka import Consumer, TopicPartition

from tests.integration.gateway_process import GatewayProcess
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import cluster as localcluster

TOPIC = "classic"
STRATEGIES = ("range", "cooperative-sticky")
SESSION_MS = 45_000
POLL_S = 0.02
LOOK_S = 0.005
STATISTICS_MS = 100
DEADLINE_S = 120.0
LONG_GAP_S = 2.0  # longer than a heartbeat interval
Fields = dict[str, Any]


class Owners:
    """Who owns which partition, as clients' callbacks say, and how long partitions had no owner."""

    def __init__(self, partitions: int) -> None:
        """Begin without members."""
        self._lock = threading.Lock()
        self._free_since: dict[int, float] = dict.fromkeys(range(partitions), 0.0)
        self.changed_at = 0.0
        self.gaps: dict[int, float] = {}

    def begin(self) -> float:
        """Forget the gaps so far, and return the time."""
        with self._lock:
            self.gaps = {}
        return time.perf_counter()

    def gained(self, numbers: set[int]) -> None:
        """Note an assignment."""
        with self._lock:
            self.changed_at = time.perf_counter()
            for number in numbers & self._free_since.keys():
                gap = self.changed_at - self._free_since.pop(number)
                self.gaps[number] = max(gap, self.gaps.get(number, 0.0))

    def lost(self, numbers: set[int]) -> None:
        """Note a revocation."""
        with self._lock:
            self.changed_at = time.perf_counter()
            self._free_since |= dict.fromkeys(numbers, self.changed_at)


class Member:
    """A consumer in a thread."""

    def __init__(self, bootstrap: str, group: str, strategy: str, heartbeat_ms: int, owners: Owners) -> None:
        """Join."""
        self.owned: set[int] = set()
        self.joins = 0  # JoinGroup requests so far
        self.busy_until = 0.0
        self._owners = owners
        self._is_ending = False
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "heartbeat.interval.ms": heartbeat_ms,
            "session.timeout.ms": SESSION_MS,
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": self._count,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        while not self._is_ending:
            consumer.poll(POLL_S)
            time.sleep(max(0.0, self.busy_until - time.perf_counter()))
        consumer.close()

    def _count(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.joins = sum(broker["req"].get("JoinGroup", 0) for broker in brokers)

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {one.partition for one in partitions}
        self.owned |= numbers
        self._owners.gained(numbers)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {one.partition for one in partitions}
        self.owned -= numbers
        self._owners.lost(numbers)

    def end(self) -> None:
        """Leave the group; does not wait for that."""
        self._is_ending = True

    def wait(self) -> None:
        """Wait until it has left."""
        gevent.get_hub().threadpool.apply(self._thread.join, (DEADLINE_S,))


class Group:
    """The members of one group."""

    def __init__(self, join: Callable[[], Member], owners: Owners, partitions: int, heartbeat_ms: int) -> None:
        """Begin without members; `join` makes one."""
        self._join, self._owners, self._partitions = join, owners, partitions
        self._rest_s = 3 * heartbeat_ms / 1_000 + 0.5
        self._heartbeat_s = heartbeat_ms / 1_000
        self._phases = Random(partitions)  # of heartbeats, the same everywhere
        self.members: list[Member] = []

    def change(self, happens: Callable[[], object]) -> Fields:
        """Let something happen, and return what it took until the partitions were shared again."""
        gevent.sleep(self._rest_s + self._phases.uniform(0.0, self._heartbeat_s))
        before = {member: (member.joins, set(member.owned)) for member in self.members}
        began = self._owners.begin()
        happens()
        while not self._is_shared():
            if time.perf_counter() > began + DEADLINE_S:
                raise SystemExit("the partitions are not shared")
            gevent.sleep(LOOK_S)
        settled_ms = 1_000 * (self._owners.changed_at - began)
        gevent.sleep(self._rest_s)
        stay = [member for member in self.members if member in before]
        gaps = self._owners.gaps.values()
        return {
            "settled_ms": round(settled_ms),
            "stay": len(stay),
            "changed": sum(member.owned != before[member][1] for member in stay),
            "called": sum(member.joins > before[member][0] for member in stay),
            "longest_gap_ms": round(1_000 * max(gaps, default=0.0)),
            "long_gaps": sum(gap > LONG_GAP_S for gap in gaps),
        }

    def _is_shared(self) -> bool:
        shares = [set(member.owned) for member in self.members]
        sizes = [len(share) for share in shares]
        return sum(sizes) == len(set().union(*shares)) == self._partitions and max(sizes) - min(sizes) <= 1

    def one_joins(self) -> None:
        """Add a member."""
        self.members.append(self._join())

    def one_leaves(self) -> None:
        """Let the first member leave."""
        self.members.pop(0).end()

    def one_joins_while_another_is_busy(self, busy_s: float) -> None:
        """Let the first member not poll for some time, and add one."""
        self.members[0].busy_until = time.perf_counter() + busy_s
        gevent.sleep(2 * POLL_S)
        self.one_joins()

    def close(self) -> None:
        """Let all leave."""
        for member in self.members:
            member.end()
        for member in self.members:
            member.wait()


def measure(bootstrap: str, strategy: str, arguments: argparse.Namespace) -> Fields:
    """Measure one strategy."""
    owners = Owners(arguments.partitions)
    group = Group(
        lambda: Member(bootstrap, f"{TOPIC}-{strategy}", strategy, arguments.heartbeat_ms, owners),
        owners,
        arguments.partitions,
        arguments.heartbeat_ms,
    )
    try:
        for _ in range(arguments.members):
            group.one_joins()
        group.change(lambda: None)
        joins = [group.change(group.one_joins) for _ in range(arguments.joins)]
        times = [one["settled_ms"] for one in joins]
        return {
            "joins": joins,
            "joins_settled_ms": {"median": statistics.median(times), "least": min(times), "most": max(times)},
            "leaves": group.change(group.one_leaves),
            "joins_while_another_is_busy": group.change(
                lambda: group.one_joins_while_another_is_busy(arguments.busy_s)
            ),
        }
    finally:
        group.close()


def measure_side(way: str, arguments: argparse.Namespace) -> Fields:
    """Measure at the broker, or behind a gateway that assigns `client` or `central`."""
    properties = {"group.initial.rebalance.delay.ms": "0"}
    with (
        localcluster.LocalCluster(chroot="/classic", broker="kafka-4", kafka_properties=properties) as cluster,
        tempfile.TemporaryDirectory() as folder,
        Lab(cluster, Path(folder, "events"), 6_000) as lab,
    ):
        lab.create_topic(TOPIC, arguments.partitions)
        strategies = arguments.strategy or STRATEGIES
        if way == "broker":
            return {strategy: measure(cluster.bootstrap, strategy, arguments) for strategy in strategies}
        if way == "central":
            lab.start_coordinator(1)
            lab.wait_leader()
        gateway = GatewayProcess(cluster, Path(folder), "--assign", way, "--log-level", "warning")
        try:
            gevent.get_hub().threadpool.apply(gateway.start)
            return {strategy: measure(gateway.bootstrap, strategy, arguments) for strategy in strategies}
        finally:
            gateway.end()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", action="append", choices=["broker", "client", "central"])
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--joins", type=int, default=6)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--heartbeat-ms", type=int, default=500)
    parser.add_argument("--busy-s", type=float, default=14.0, help="how long one member does not poll")
    arguments = parser.parse_args()
    print(json.dumps({way: measure_side(way, arguments) for way in arguments.way or ("broker", "central")}, indent=1))


if __name__ == "__main__":
    main()
