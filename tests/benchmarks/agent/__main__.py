"""`make bench-agent`: records per second and CPU time of the agent and of raw clients, with one broker in one run.

Each client reads each topic `--repeat` times, in turn, so that other load on the machine affects all of them alike. The
table shows medians; a ratio is to the raw client that does the same, of the same turn, and again the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping

import gevent

from tests.benchmarks.agent.readers import KINDS, RAW, RAW_KEPT, RAW_MADE, RAW_RECORDS, RAW_THREADS
from tests.benchmarks.filling import fill_topic
from tests.benchmarks.servers import led
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.server import child_environment

READ_DEADLINE_S = 300.0
SLOW = {
    "kafka-python": 10,
    "raw consume(500), defaults": 2,
    "raw poll(), tuned": 2,
}  # reads this many times fewer records
PEERS = {kind: RAW for kind in KINDS if kind.startswith("agent")} | {RAW_KEPT: RAW, RAW_THREADS: RAW}
PEERS |= {"agent, records": RAW_RECORDS, RAW_MADE: RAW_RECORDS}


def read(lab: Lab, kind: str, topic: str, partitions: int, count: int) -> dict[str, float]:
    """Read a topic once in a process of its own; return its figures."""
    arguments = [kind, topic, str(partitions), str(count), lab.cluster.bootstrap, lab.cluster.zookeeper]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.agent.readers", *arguments],
        env=child_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=READ_DEADLINE_S,
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def measure(
    lab: Lab, kinds: list[str], partitions: int, size: int, count: int, repeat: int
) -> dict[str, dict[str, float]]:
    """Return kind -> medians for one topic."""
    topic = f"p{partitions}-b{size}"
    lab.create_topic(topic, partitions)
    away = gevent.get_hub().threadpool.apply  # keeps this hub free for the lab's ZooKeeper session
    away(fill_topic, (lab.cluster.bootstrap, topic, partitions, count, size))
    measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(repeat):
        for kind in kinds:
            measured[kind].append(away(read, (lab, kind, topic, partitions, count // SLOW.get(kind, 1))))
    lab.delete_topic(topic)
    for kind, runs in measured.items():
        for own, peer in zip(runs, measured.get(PEERS.get(kind, ""), []), strict=False):
            for name in ("records_per_s", "cpu_s_per_million"):
                own[f"{name}_ratio"] = own[name] / peer[name]
    return {
        kind: {name: statistics.median(figures[name] for figures in runs) for name in runs[0]}
        for kind, runs in measured.items()
    }


def print_rows(partitions: int, size: int, medians: Mapping[str, Mapping[str, float]]) -> None:
    """Print a topic's rows as Markdown."""
    for kind, figures in medians.items():
        rate, cpu_s = figures["records_per_s"], figures["cpu_s_per_million"]
        ratios = "- | -"
        if "records_per_s_ratio" in figures:
            ratios = f"{figures['records_per_s_ratio']:.2f} | {figures['cpu_s_per_million_ratio']:.2f}"
        memory = f"{figures['memory_mib']:.0f} | {figures['growth_mib']:+.0f}"
        print(
            f"| {size} B | {partitions} | {kind} | {rate / 1e6:.2f} | {cpu_s:.2f} | {ratios} | {memory} |", flush=True
        )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 12, 120])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000], metavar="BYTES")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--megabytes", type=int, default=60, help="in each topic")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with led(10_000, chroot="/bench", kafka_properties={"offsets.topic.num.partitions": "1"}) as lab:
        print(
            "| record | partitions | client | million/s | CPU s/million | rate, ratio | CPU, ratio | MiB | growth |\n"
            "|---|---|---|---|---|---|---|---|---|"
        )
        for size in options.sizes:
            for partitions in options.partitions:
                count = options.megabytes * 1_000_000 // size
                print_rows(partitions, size, measure(lab, options.kinds, partitions, size, count, options.repeat))


if __name__ == "__main__":
    main()
