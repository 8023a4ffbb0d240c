"""`python -m tests.benchmarks.agent.idle`: the cost of agents that own partitions without new records.

Each agent is a `Consumer` with a thread that polls. Several processes run several agents each, all in one group. A
process starts its next agent when the last one owns a partition: a thousand at once on a few cores time out. Prints CPU
time per agent, by thread, in percent of a core, and the packets that ZooKeeper received per agent and second.

`floor` is the same without decisions: a thread with the agents' ZooKeeper client, which renews as often by one
transaction; one that polls a confluent-kafka consumer as often as an agent at rest, with the agent's client settings;
and an application that waits as long for each record. `raw` is that consumer alone, polled by the application.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import gevent
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from consumer_agent import Consumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import kafka_settings
from consumer_agent.kafka.fetcher import REST_POLL_TIMEOUT_S
from tests.benchmarks.floor import SESSION_TIMEOUT_MS
from tests.benchmarks.floor_agents import RENEWAL_S
from tests.benchmarks.servers import led
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol import calls
from zkrebalancer.runtime.zk import ZkClient

GROUP, TOPIC = "idle", "idle"
AGENT = "agent"
KINDS = (AGENT, "floor", "raw")
PARTS = MACHINE, FETCHER, APPLICATION, KAFKA, REST = "machine", "fetcher", "application", "librdkafka", "rest"
POLL_S = 1.0
STAGGER_S = 0.13  # no divisor of a poll: clients that wake at the same moment share the processor's caches
START_DEADLINE_S = 300.0
SETTLE_DEADLINE_S = 1_200.0
END_DEADLINE_S = 60.0


class Client:
    """One client with its threads; `begun` is set when it owns its partition."""

    def __init__(self, zookeeper_address: str, bootstrap: str, number: int, ending: threading.Event) -> None:
        """Prepare."""
        self._zookeeper, self._number, self._ending = zookeeper_address, number, ending
        settings = {"zookeeper": zookeeper_address, "bootstrap": bootstrap, "group": GROUP}
        self._config = ConsumerConfig.from_settings({**settings, "client_id": f"{AGENT}-{number}"})
        self.begun = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, kind: str) -> None:
        """Start its threads; an agent makes its own."""
        roles: dict[str, list[tuple[str, Callable[[], None]]]] = {
            AGENT: [(APPLICATION, self._run_agent)],
            "floor": [(MACHINE, self._renew), (FETCHER, self._fetch), (APPLICATION, self._wait)],
            "raw": [(APPLICATION, lambda: self._poll(POLL_S))],
        }
        self.threads = [threading.Thread(target=target, name=name) for name, target in roles[kind]]
        for thread in self.threads:
            thread.start()

    def _run_agent(self) -> None:
        with Consumer(self._config) as consumer:
            consumer.subscribe([TOPIC], on_assign=lambda _partitions: self.begun.set())
            while not self._ending.is_set():
                consumer.poll(POLL_S)

    def _fetch(self) -> None:
        self._poll(REST_POLL_TIMEOUT_S)

    def _poll(self, timeout_s: float) -> None:
        consumer = KafkaConsumer(kafka_settings(self._config))
        consumer.assign([TopicPartition(TOPIC, self._number, 0)])
        self.begun.set()
        while not self._ending.is_set():
            consumer.poll(timeout_s)
        consumer.close()

    def _renew(self) -> None:
        client = ZkClient(self._zookeeper, SESSION_TIMEOUT_MS, lambda _event: None, reads_together=True)
        client.start()
        call = 0
        while not self._ending.is_set():
            gevent.sleep(RENEWAL_S)
            call += 1
            client.request(call, calls.Multi((calls.Check("/"),)))
        client.close()

    def _wait(self) -> None:
        records = SimpleQueue[object]()
        while not self._ending.is_set():
            try:
                records.get(timeout=POLL_S)
            except Empty:
                continue


def child(kind: str, count: int, process: int, zookeeper_address: str, bootstrap: str) -> None:
    """Run clients; answer each line on standard input with the CPU time so far, by part; end with the input."""
    ending = threading.Event()
    clients: list[Client] = []
    for number in range(process * count, (process + 1) * count):
        clients.append(Client(zookeeper_address, bootstrap, number, ending))
        clients[-1].start(kind)
        if not clients[-1].begun.wait(START_DEADLINE_S):
            ending.set()
            raise SystemExit(f"client {number} did not start within {START_DEADLINE_S:g} s")
        ending.wait(STAGGER_S)
    for _line in sys.stdin:
        sys.stdout.write(json.dumps(used_s()) + "\n")
        sys.stdout.flush()
    ending.set()
    for client in clients:
        for thread in client.threads:
            thread.join()


def used_s() -> dict[str, float]:
    """Return the CPU seconds of this process's threads, by part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used_ns: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), (task / "comm").read_text())
        part = KAFKA if name.startswith("rdk:") else name.removeprefix("consumer-agent-")
        used_ns[part if part in PARTS else REST] += int((task / "schedstat").read_text().split()[0])
    return {part: count / 1e9 for part, count in used_ns.items()}


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

    def cpu_s() -> dict[str, float]:
        total = dict.fromkeys(PARTS, 0.0)
        for process in children:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write("\n")
                process.stdin.flush()
                for part, used in json.loads(process.stdout.readline()).items():
                    total[part] += used
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
        spent_s = cpu_s()
        percents = [100 * (spent_s[part] - began_cpu_s[part]) / elapsed_s / count for part in PARTS]
        packets = (received(address) - began) / elapsed_s / count
        cells = [f"{processes} x {clients}", kind, *(f"{percent:.3f} %" for percent in (sum(percents), *percents))]
        print("| " + " | ".join([*cells, f"{packets:.2f}"]) + " |", flush=True)
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
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--zookeeper", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.agents, options.process, options.zookeeper, options.bootstrap)
        return
    with led(10_000, chroot="/bench") as lab:
        lab.create_topic(TOPIC, options.processes * options.agents)
        columns = ["processes", "client", "all", *PARTS, "packets to ZooKeeper per client and second"]
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
        for kind in options.kinds:
            measure(lab, kind, options.processes, options.agents, options.seconds)


if __name__ == "__main__":
    main()
