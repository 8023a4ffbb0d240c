"""`python -m tests.benchmarks.region_crash`: from the kill of a member to the first new result of its partitions.

Three members with a state of their own read six partitions; one is killed. Sessions have the same length in all ways:
of ZooKeeper, and of Kafka for `forced`, which is the way of the source. A result is new if no member had processed its
record before the kill: what is only processed again does not count. `after_session_ms` is
without the session timeout. It may be negative, because servers count
that from the last heartbeat, up to a third of it before the kill.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka

from consumer_agent import Consumer
from consumer_agent.region import Checkpoint, ConsistentRegion, ForcedRegion
from tests.benchmarks.servers import led
from zkrebalancer.experiments.lab import Lab

WAYS = ("partition", "group", "forced")
MEMBERS, PARTITIONS = 3, 6
RECORDS_PER_S = 120
EVERY_S = 2.0
DEADLINE_S = 120.0


def play(way: str, name: str, zookeeper: str, bootstrap: str, group: str, topic: str, timeout_ms: int) -> None:
    """Be a member: print when which records were processed."""
    region: ConsistentRegion | ForcedRegion
    if way == "forced":
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group}
        settings |= {"session.timeout.ms": timeout_ms, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        region = ForcedRegion(
            confluent_kafka.Consumer(settings),
            [topic],
            zookeeper=zookeeper,
            group=group,
            name="crash",
            member=name,
            session_timeout_ms=timeout_ms,
            every_s=EVERY_S,
            on_checkpoint=nothing,
            on_reset=nothing,
        )
    else:
        consumer = Consumer(zookeeper=zookeeper, bootstrap=bootstrap, group=group, session_timeout_ms=timeout_ms)
        consumer.subscribe([topic])
        region = ConsistentRegion(
            consumer,
            name="crash",
            recovery=way,
            member=name,
            every_s=EVERY_S,
            on_checkpoint=nothing,
            on_reset=nothing,
        )
    for batch in region:
        print(json.dumps([time.monotonic_ns() // 1_000, list(ends(batch).items())]), flush=True)


def ends(batch: Any) -> dict[int, int]:
    """Return the last offset of each partition of a batch, of either kind of consumer."""
    places = [(message.partition, message.offset) for message in batch]
    return {number() if callable(number) else number: at() if callable(at) else at for number, at in places}


def nothing(_checkpoint: Checkpoint | None) -> None:
    """Keep no state."""


class Processes:
    """The members as processes, with what they print in files."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.files = {f"m{number}": folder / f"m{number}" for number in range(MEMBERS)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name, file in self.files.items():
            with file.open("wb") as output:
                command = [sys.executable, "-m", "tests.benchmarks.region_crash", "--member", name, *arguments]
                self.running[name] = subprocess.Popen(command, stdout=output)

    def results(self, name: str, since_us: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield when a batch was processed, and the last offset of each of its partitions."""
        for line in self.files[name].read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at_us, last = json.loads(line)
                if at_us >= since_us:
                    yield at_us, dict(last)

    def read(self, name: str, since_us: int) -> set[int]:
        return {number for _at_us, last in self.results(name, since_us) for number in last}

    def processed(self, before_us: int) -> dict[int, int]:
        """Return the highest offset of each partition that a member has processed before a time."""
        found: dict[int, int] = {}
        for name in self.files:
            for at_us, last in self.results(name, 0):
                if at_us < before_us:
                    found.update({number: max(at, found.get(number, -1)) for number, at in last.items()})
        return found

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def wait_for(what: str, find: Any) -> Any:
    """Return the first true result of `find`."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := find()):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not within {DEADLINE_S:g} s")
        time.sleep(0.02)
    return found


def crash(processes: Processes, quiet_s: float) -> float:
    """Kill a member at rest; return the milliseconds to the first new result of a partition that it has read."""
    wait_for("all partitions", lambda: is_shared(processes))
    quiet_until_s = time.monotonic() + quiet_s
    wait_for("a quiet time", lambda: time.monotonic() >= quiet_until_s)
    since_us = time.monotonic_ns() // 1_000 - 2_000_000
    lost = processes.read("m0", since_us)
    processes.running["m0"].kill()
    killed_us = time.monotonic_ns() // 1_000

    known = processes.processed(killed_us)

    def first() -> int | None:
        others = (one for name in processes.files if name != "m0" for one in processes.results(name, killed_us))
        return min((at_us for at_us, last in others if any(last.get(tp, -1) > known[tp] for tp in lost)), default=None)

    at_us: int = wait_for("a new result after the crash", first)
    return (at_us - killed_us) / 1_000


def is_shared(processes: Processes) -> bool:
    """Whether each member has processed records of some partitions, and together of all, in the last second."""
    since_us = time.monotonic_ns() // 1_000 - 1_000_000
    read = [processes.read(name, since_us) for name in processes.files]
    return all(read) and sum(map(len, read)) == PARTITIONS == len(set.union(*read))


def measure(lab: Lab, way: str, number: int, timeout_ms: int, quiet_s: float) -> float:
    group = topic = f"region-crash-{way}-{number}"
    lab.create_topic(topic, PARTITIONS)
    lab.start_producer(f"producer-{group}", {topic: PARTITIONS}, RECORDS_PER_S)
    where = ["--zookeeper", lab.cluster.zookeeper, "--bootstrap", lab.cluster.bootstrap]
    with tempfile.TemporaryDirectory() as folder:
        options = [*where, "--group", group, "--way", way, "--session-timeout-ms", str(timeout_ms)]
        processes = Processes(Path(folder), options)
        try:
            return crash(processes, quiet_s)
        finally:
            processes.end()
            lab.stop(f"producer-{group}")
            lab.delete_topic(topic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, action="append", help="default: all")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    parser.add_argument("--quiet-s", type=float, default=6.0, help="before the kill, so that a checkpoint is complete")
    for hidden in ("--member", "--zookeeper", "--bootstrap", "--group"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    ways, timeout_ms = arguments.way or WAYS, arguments.session_timeout_ms
    if arguments.member is not None:
        known = arguments.zookeeper, arguments.bootstrap, arguments.group, arguments.group
        play(ways[0], arguments.member, *known, timeout_ms)
        return
    with led(4_000) as lab:
        for way in ways:
            took_ms = [measure(lab, way, number, timeout_ms, arguments.quiet_s) for number in range(arguments.repeat)]
            median_ms = round(statistics.median(took_ms))
            result = {"way": way, "crashes": len(took_ms), "load": round(os.getloadavg()[0], 1)}
            result |= {"median_ms": median_ms, "longest_ms": round(max(took_ms))}
            print(json.dumps({**result, "after_session_ms": median_ms - timeout_ms}), flush=True)


if __name__ == "__main__":
    main()
