"""Measures the cost of a run: `sampled` events for each process, `counted` events for ZooKeeper and the broker.

Both are written whenever `measure` is called, and once a second, but for the second after such a call. They come from
outside the measured process. Sums continue when a process of the same name is started again.

- CPU and memory: of each process, and of a coordinator's child that reads lag, by psutil. A `busy` event has the CPU
  time of the whole machine and of this run, since other programs may take CPU that the run needs.
- ZooKeeper: its four-letter word `mntr` counts packets and bytes of all sessions. Requests are received packets, pings
  and new sessions included, minus our own queries. The length prefixes of answers are added to the bytes sent. Compared
  with socket counters, only answers to new sessions and watch events are missing: some 40 bytes each.
- Broker: Kafka's counters per kind of request, read by `java/BrokerCounts.java` at a cost of about 10 ms of CPU per
  second in the broker. Only the requests of group membership count (`kinds` has the number of each): Fetch and Produce
  move records and would hide the others. A counting proxy would slow down what it counts, and socket counters cannot
  separate the kinds. Kafka does not count the bytes of its answers per kind, so `bytes_out` is null.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from zkrebalancer.experiments.java_programs import broker_counts_command
from zkrebalancer.experiments.repeating import Repeating
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.localcluster.server import Program, Server
from zkrebalancer.observe.events import EventLog, JsonValue

INTERVAL_S = 1.0
END_DEADLINE_S = 10.0
WORD = "mntr"
LENGTH_PREFIX_BYTES = 4
ROLES = {
    "coordinator": "coordinator",
    "gateway": "gateway",
    "members": "member",
    "producer": "producer",
    "pulse": "producer",  # neither is the protocol's
}
MACHINE_STATES = 8  # user, nice, system, idle, iowait, irq, softirq, steal; later fields are part of user
HAS_CHILDREN = "coordinator"

Processes = Callable[[], Mapping[str, tuple[str, int]]]
Counts = dict[str, tuple[int, int]]


class Costs(Repeating):
    """Writes the cost events, from a separate thread; a context manager.

    `processes` returns the running processes as name -> (role, process id), with or without the cluster's servers.
    """

    def __init__(self, log: EventLog, cluster: LocalCluster, processes: Processes) -> None:
        """Prepare for a started cluster with a broker."""
        super().__init__(self._measure_if_due, INTERVAL_S)
        self._log = log
        self._cluster = cluster
        self._processes = processes
        self._known: dict[int, psutil.Process] = {}
        self._queries: dict[int, int] = {}  # process id of a ZooKeeper -> number of queries
        self._sums = Sums()
        self._broker = BrokerCounts()
        self._lock = threading.Lock()
        self._measured_s = 0.0  # on the monotonic clock

    def __enter__(self) -> Self:
        """Start; the first events are written before this returns."""
        self._broker.start()
        self.measure()
        return super().__enter__()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the thread and the process that reads the broker's counters."""
        self._broker.kill()  # first, because a broker that does not answer would block the thread
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._broker.end()

    def _measure_if_due(self) -> None:
        """Leave out a round soon after another one, which came before a change: it would run over what is measured."""
        if time.monotonic() - self._measured_s >= INTERVAL_S:
            self.measure()

    def measure(self) -> None:
        """Write the cost up to now; processes that have just ended or do not answer are skipped."""
        with self._lock:
            for name, (role, pid) in self._processes().items():
                self._sample(name, role, pid)
            for server in self._cluster.zookeeper_servers:
                if server.is_running:
                    self._sample(server.name, "zookeeper", server.pid)
                    self._count_zookeeper(server)
            for server in self._cluster.brokers:
                if server.is_running:
                    self._sample(server.name, "broker", server.pid)
                    self._count_broker(server)
            mirror = self._cluster.mirror
            if mirror is not None and mirror.is_running:
                self._sample(mirror.name, "mirror", mirror.pid)
            self._write_load()
            self._measured_s = time.monotonic()

    def _write_load(self) -> None:
        """Write the CPU time of the machine, and that of this run including its measurement."""
        own = [psutil.Process(), *self._broker.processes()]
        self._sums.total("run", own[0].pid, {"cpu_us": sum(_cpu_us(process) for process in own)})
        machine = psutil.cpu_times()
        busy_s = sum(machine[:MACHINE_STATES]) - machine.idle - machine.iowait
        self._log.write(
            "busy",
            busy_us=round(1e6 * busy_s),
            own_us=self._sums.of_all("cpu_us"),
            processors=psutil.cpu_count() or 1,
        )

    def _sample(self, name: str, role: str, pid: int) -> None:
        try:
            if pid not in self._known:
                self._known[pid] = psutil.Process(pid)
            process = self._known[pid]
            family = [process, *(process.children(recursive=True) if role == HAS_CHILDREN else ())]
            cpu_us = sum(_cpu_us(member) for member in family)
            rss_bytes = sum(member.memory_info().rss for member in family)
        except psutil.Error:
            self._known.pop(pid, None)
            return
        spent = self._sums.total(name, pid, {"cpu_us": cpu_us})
        self._log.write("sampled", role=role, target=name, cpu_us=spent["cpu_us"], rss_bytes=rss_bytes)

    def _count_zookeeper(self, server: Server) -> None:
        try:
            answer = zookeeper.ask(HOST, server.port, WORD, zookeeper.PROBE_TIMEOUT_S).decode()
        except OSError:
            return
        self._queries[server.pid] = queries = self._queries.get(server.pid, 0) + 1
        counts = zookeeper_counts(answer, queries)
        if counts is not None:
            self._write_counts("zookeeper", server.name, self._sums.total(server.name, server.pid, counts))

    def _count_broker(self, server: Server) -> None:
        counts = self._broker.read(server.pid)
        if counts is None:
            return
        requests = {kind: requests for kind, (requests, _bytes) in counts.items()}
        sizes = {"bytes_in": sum(size for _requests, size in counts.values()), "requests": sum(requests.values())}
        total = self._sums.total(server.name, server.pid, {**requests, **sizes})
        kinds = {kind: total[kind] for kind in requests if total[kind]}
        self._write_counts("broker", server.name, total, kinds)

    def _write_counts(self, role: str, target: str, total: Mapping[str, int], kinds: JsonValue = None) -> None:
        self._log.write(
            "counted",
            role=role,
            target=target,
            requests=total["requests"],
            bytes_in=total["bytes_in"],
            bytes_out=total.get("bytes_out"),
            kinds=kinds,
        )


@dataclass(slots=True)
class Sums:
    """Adds up counters of successive processes of the same name, each of which counts from its own start."""

    _now: dict[tuple[str, str], tuple[int, int]] = field(
        default_factory=dict
    )  # (name, figure) -> process id, its count
    _before: dict[tuple[str, str], int] = field(default_factory=dict)

    def total(self, name: str, pid: int, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the sums, given the present counts of process `pid`."""
        for figure, count in counts.items():
            key = name, figure
            last_pid, last_count = self._now.get(key, (pid, 0))
            if pid != last_pid:
                self._before[key] = self._before.get(key, 0) + last_count
            self._now[key] = pid, count
        return {figure: self._before.get((name, figure), 0) + count for figure, count in counts.items()}

    def of_all(self, figure: str) -> int:
        """Return the sum over all names, including processes that have ended."""
        now = sum(count for (_name, known), (_pid, count) in self._now.items() if known == figure)
        return now + sum(count for (_name, known), count in self._before.items() if known == figure)


def _cpu_us(process: psutil.Process) -> int:
    times = process.cpu_times()
    return round(1e6 * (times.user + times.system))


def roles(programs: Mapping[str, Program]) -> dict[str, tuple[str, int]]:
    """Return name -> (role, process id) of a lab's running programs; the role is the first word of the name."""
    running = [(name, program) for name, program in list(programs.items()) if program.is_running]
    return {name: (ROLES[name.partition("-")[0]], program.pid) for name, program in running}


class BrokerCounts:
    """The Java program that reads a broker's counters; it answers one line per query."""

    def __init__(self) -> None:
        """Create the reader; `start` starts the program."""
        self._program: subprocess.Popen[str] | None = None
        self._asked: set[int] = set()

    def start(self) -> None:
        """Start the program; raises MissingToolError or LocalClusterError if it cannot be compiled."""
        self._program = subprocess.Popen(
            broker_counts_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def read(self, pid: int) -> Counts | None:
        """Return request kind -> (requests, their bytes) since the broker's start; None if it cannot be read now."""
        program = self._program
        if program is None or program.stdin is None or program.stdout is None:
            return None
        self._asked.add(pid)
        try:
            program.stdin.write(f"{pid}\n")
            program.stdin.flush()
        except BrokenPipeError:
            return None
        return broker_counts(program.stdout.readline())

    def processes(self) -> list[psutil.Process]:
        """Return the program's process if it is running."""
        return [] if self._program is None or self._program.poll() is not None else [psutil.Process(self._program.pid)]

    def kill(self) -> None:
        """Kill the program, which also ends a `read` in progress."""
        if self._program is not None:
            self._program.kill()

    def end(self) -> None:
        """Wait for the end of the killed program, and remove what Java left in the brokers' folder if it was asking."""
        if self._program is not None:
            self._program.communicate(timeout=END_DEADLINE_S)
        for pid in self._asked:
            Path(f".attach_pid{pid}").unlink(missing_ok=True)


def zookeeper_counts(answer: str, queries: int) -> dict[str, int] | None:
    """Return requests, bytes in and bytes out of all sessions, from the answer to the `queries`-th `mntr`.

    A server without a quorum only answers that it does not serve now: None.
    """
    values = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    if not values:
        return None
    return {
        "requests": int(values["zk_packets_received"]) - queries,
        "bytes_in": int(values["zk_bytes_received_count"]) - queries * len(WORD),
        "bytes_out": int(values["zk_response_bytes"]) + int(values["zk_packets_sent"]) * LENGTH_PREFIX_BYTES,
    }


def broker_counts(line: str) -> Counts | None:
    """Return the counts in a line of `BrokerCounts`; None if it has none or is incomplete."""
    words = line.split()
    if not line.endswith("\n") or not words or words[0] == "-":
        return None
    return {kind: (int(requests), int(size)) for kind, requests, size in zip(*[iter(words)] * 3, strict=True)}
