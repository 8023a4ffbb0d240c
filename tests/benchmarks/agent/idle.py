"""`python -m tests.benchmarks.agent.idle`: what agents cost that own partitions in which nothing happens.

Each is a `Consumer` with a thread that polls; so many of them in so many processes, in one group on one ZooKeeper.
Prints processor time per agent, in percent of a core, and what ZooKeeper received per agent and second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import gevent

from consumer_agent import Consumer
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment

GROUP, TOPIC = "idle", "idle"
POLL_S = 1.0
SETTLE_DEADLINE_S = 300.0
END_DEADLINE_S = 60.0


def child(count: int, name: str, zookeeper_address: str, bootstrap: str) -> None:
    """Run agents; answer every line on standard input with the processor time so far; end with the input."""
    consumers = [
        Consumer(zookeeper=zookeeper_address, bootstrap=bootstrap, group=GROUP, client_id=f"{name}-{number}")
        for number in range(count)
    ]
    ending = threading.Event()

    def read(consumer: Consumer) -> None:
        with consumer:
            consumer.subscribe([TOPIC])
            while not ending.is_set():
                consumer.poll(POLL_S)

    threads = [threading.Thread(target=read, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    for _line in sys.stdin:
        sys.stdout.write(f"{time.process_time()}\n")
        sys.stdout.flush()
    ending.set()
    for thread in threads:
        thread.join()


def received(address: str) -> int:
    """Return how many packets ZooKeeper has received."""
    ((host, port),) = zookeeper.split_hosts(address)
    lines = zookeeper.ask(host, port, "mntr").decode().splitlines()
    return next(int(float(line.split("\t")[1])) for line in lines if line.startswith("zk_packets_received"))


def measure(lab: Lab, processes: int, agents: int, seconds: float) -> None:
    """Start agents, let them settle, and print what they cost while nothing happens."""
    count = processes * agents
    lab.create_topic(TOPIC, count)
    address, bootstrap = lab.cluster.zookeeper, lab.cluster.bootstrap
    command = [sys.executable, "-m", "tests.benchmarks.agent.idle", "--zookeeper", address, "--bootstrap", bootstrap]
    children = [
        subprocess.Popen(
            [*command, "--child", f"idle{number}", "--agents", str(agents)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            text=True,
        )
        for number in range(processes)
    ]

    def cpu_s() -> float:
        total = 0.0
        for process in children:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write("\n")
                process.stdin.flush()
                total += float(process.stdout.readline())
        return total

    try:
        names = frozenset(f"idle{process}-{agent}" for process in range(processes) for agent in range(agents))
        lab.wait_for(f"{count} agents", lambda: lab.is_settled(GROUP, {TOPIC: count}, names), SETTLE_DEADLINE_S)
        gevent.sleep(seconds)  # what the rebalance has left to do is over
        began_s, began_cpu_s, began = time.monotonic(), cpu_s(), received(address)
        gevent.sleep(seconds)
        elapsed_s = time.monotonic() - began_s
        cpu_percent = 100 * (cpu_s() - began_cpu_s) / elapsed_s / count
        calls = (received(address) - began) / elapsed_s / count
        print(f"| {processes} x {agents} | {cpu_percent:.2f} % | {calls:.2f} |")
    finally:
        for process in children:
            if process.stdin is not None:
                process.stdin.close()
        for process in children:
            process.wait(END_DEADLINE_S)


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--agents", type=int, default=100, help="in each process")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--zookeeper", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.agents, options.child, options.zookeeper, options.bootstrap)
        return
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(chroot="/bench") as cluster,
        Lab(cluster, Path(scratch) / "events", session_timeout_ms=10_000) as lab,
    ):
        lab.start_coordinator(1)
        lab.wait_leader()
        print(
            "| processes x agents | processor, of a core each | received by ZooKeeper, per second each |\n|---|---|---|"
        )
        measure(lab, options.processes, options.agents, options.seconds)


if __name__ == "__main__":
    main()
