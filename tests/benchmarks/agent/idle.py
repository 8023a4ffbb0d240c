"""`python -m tests.benchmarks.agent.idle`: the cost of agents that own partitions without new records.

Each agent is a `Consumer` with a thread that polls. Several processes run several agents each, all in one group. A
process starts its next agent when the last one owns a partition: a thousand at once on a few cores time out. Prints CPU
time per agent, in percent of a core, and the packets that ZooKeeper received per agent and second; and, as a lower
bound, the same for confluent-kafka consumers without a group, with the agent's client settings and poll rate.
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
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from consumer_agent import Consumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import kafka_settings
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment

GROUP, TOPIC = "idle", "idle"
AGENT = "agent"
KINDS = (AGENT, "raw")
POLL_S = 1.0
START_DEADLINE_S = 300.0
SETTLE_DEADLINE_S = 1_200.0
END_DEADLINE_S = 60.0


def child(kind: str, count: int, process: int, zookeeper_address: str, bootstrap: str) -> None:
    """Run clients; answer each line on standard input with the CPU time so far; end with the input."""
    ending = threading.Event()

    def read_agent(number: int, begun: threading.Event) -> None:
        name = f"{AGENT}-{number}"
        with Consumer(zookeeper=zookeeper_address, bootstrap=bootstrap, group=GROUP, client_id=name) as consumer:
            consumer.subscribe([TOPIC], on_assign=lambda _partitions: begun.set())
            while not ending.is_set():
                consumer.poll(POLL_S)

    def read_raw(number: int, begun: threading.Event) -> None:
        config = ConsumerConfig(zookeeper=zookeeper_address, bootstrap=bootstrap, group=GROUP, client_id="raw")
        consumer = KafkaConsumer(kafka_settings(config))
        consumer.assign([TopicPartition(TOPIC, number, 0)])
        begun.set()
        while not ending.is_set():
            consumer.poll(POLL_S)
        consumer.close()

    threads: list[threading.Thread] = []
    for number in range(process * count, (process + 1) * count):
        begun = threading.Event()
        threads.append(threading.Thread(target=read_agent if kind == AGENT else read_raw, args=(number, begun)))
        threads[-1].start()
        if not begun.wait(START_DEADLINE_S):
            ending.set()
            raise SystemExit(f"client {number} did not start within {START_DEADLINE_S:g} s")
    for _line in sys.stdin:
        sys.stdout.write(f"{time.process_time()}\n")
        sys.stdout.flush()
    ending.set()
    for thread in threads:
        thread.join()


def received(address: str) -> int:
    """Return how many packets ZooKeeper has received so far."""
    ((host, port),) = zookeeper.split_hosts(address)
    lines = zookeeper.ask(host, port, "mntr").decode().splitlines()
    return next(int(float(line.split("\t")[1])) for line in lines if line.startswith("zk_packets_received"))


def measure(lab: Lab, kind: str, processes: int, clients: int, seconds: float) -> None:
    """Start clients, wait until they are settled, and print what they cost while idle."""
    count = processes * clients
    address, bootstrap = lab.cluster.zookeeper, lab.cluster.bootstrap
    command = [sys.executable, "-m", "tests.benchmarks.agent.idle", "--zookeeper", address, "--bootstrap", bootstrap]
    children = [
        subprocess.Popen(
            [*command, "--child", kind, "--process", str(number), "--agents", str(clients)],
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
        if kind == AGENT:
            names = frozenset(f"{AGENT}-{number}" for number in range(count))
            lab.wait_for(f"{count} agents", lambda: lab.is_settled(GROUP, {TOPIC: count}, names), SETTLE_DEADLINE_S)
        cpu_s()  # every process has started
        gevent.sleep(seconds)  # let the work after the rebalance end
        began_s, began_cpu_s, began = time.monotonic(), cpu_s(), received(address)
        gevent.sleep(seconds)
        elapsed_s = time.monotonic() - began_s
        cpu_percent = 100 * (cpu_s() - began_cpu_s) / elapsed_s / count
        calls = (received(address) - began) / elapsed_s / count
        print(f"| {processes} x {clients} | {kind} | {cpu_percent:.3f} % | {calls:.2f} |", flush=True)
    finally:
        for process in children:
            if process.stdin is not None:
                process.stdin.close()
        for process in children:
            process.wait(END_DEADLINE_S)


def main() -> None:
    """Run the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--agents", type=int, default=100, help="in each process")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--zookeeper", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.agents, options.process, options.zookeeper, options.bootstrap)
        return
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(chroot="/bench") as cluster,
        Lab(cluster, Path(scratch) / "events", session_timeout_ms=10_000) as lab,
    ):
        lab.start_coordinator(1)
        lab.wait_leader()
        lab.create_topic(TOPIC, options.processes * options.agents)
        print("| processes | client | CPU per client | packets to ZooKeeper per client and second |\n|---|---|---|---|")
        for kind in KINDS:
            measure(lab, kind, options.processes, options.agents, options.seconds)


if __name__ == "__main__":
    main()
