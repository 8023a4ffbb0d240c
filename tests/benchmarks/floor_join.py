"""The calls of an incremental join without our code: `python -m tests.benchmarks.floor_join [--members 12 [...]]`.

In a round, a leader sends each member a stop. As they acknowledge, it reads each record and sends what is free to the
newcomer, which has one command at a time: it reads the command, then an offset for each partition, and acknowledges.
The round ends when the leader has read the last acknowledgement. One process per member and one for the newcomer, all
with the agents' client (`runtime.zk`). Compare with `planned` to `last start acked` of `rebalance.py`, where each of
twelve members of 50 gives up one partition.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field

import gevent
from gevent.queue import SimpleQueue

from tests.benchmarks.floor import RECORD, REST_S, ROUND_DEADLINE_S, SESSION_TIMEOUT_MS, WRAPPER, WrappedClient, start
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import calls
from zkrebalancer.runtime.zk import ZkClient

ROUNDS = 15
NEWCOMER = "newcomer"
PARENTS = "/channel", "/owners", "/offsets"


class Newcomer(WrappedClient):
    """Reads as many offsets as a command says before it acknowledges."""

    _left = 0  # offsets to read

    def _handle(self, event: calls.ZooKeeperEvent) -> None:
        match event:
            case calls.Replied(number, calls.Content(content)) if number in self._reading:
                self._command, self._left = number, int(content)
                for partition in range(self._left):
                    self._request(calls.Get(f"/offsets/{partition}"))
            case calls.Replied(_, calls.Content()):
                self._left -= 1
                if not self._left:
                    self._acknowledge(self._command)
            case _:
                super()._handle(event)


@dataclass(slots=True)
class Progress:
    """Of one round, in partitions; each member gives up one."""

    released: int = 0
    given: int = 0
    started: int = 0
    starts: int = 0  # commands


@dataclass(slots=True)
class Leader:
    """Sends commands and reads what is acknowledged."""

    hosts: str
    members: list[str]
    events: SimpleQueue[calls.ZooKeeperEvent] = field(default_factory=SimpleQueue)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    reading: dict[int, str] = field(default_factory=dict)  # call -> whose record
    zk: ZkClient = field(init=False)

    def __post_init__(self) -> None:
        put = self.events.put
        self.zk = ZkClient(self.hosts, SESSION_TIMEOUT_MS, put, reads_together=True)
        self.zk.start()
        if not isinstance(self._event(), calls.Connected):
            raise ConnectionError(self.hosts)
        offsets = [f"/offsets/{number}" for number in range(len(self.members))]
        for path in (*PARENTS, *offsets):
            self._request(calls.Multi((calls.Create(path, b"4711"),)))  # refused if it exists
            self._event()

    def wait_for_clients(self) -> None:
        """Watch all records; those of clients that have not started are missing."""
        waiting = {*self.members, NEWCOMER}
        while waiting:
            gevent.sleep(REST_S)
            for name in sorted(waiting):
                self._read(name)
            while self.reading:
                event = self._event()
                if isinstance(event, calls.Replied):
                    name = self.reading.pop(event.call_id)
                    if isinstance(event.reply, calls.Content):
                        waiting.remove(name)

    def round(self) -> tuple[float, int]:
        """Return the milliseconds of a round, and how many starts the newcomer got."""
        gevent.sleep(REST_S)
        progress = Progress()
        began_s = time.monotonic()
        stops = [calls.Create(f"/channel/{name}/command-", RECORD, sequence=True) for name in self.members]
        self._request(calls.Multi(tuple(stops)))
        while progress.started < len(self.members):
            match self._event():
                case calls.Watched(path):
                    self._read(path.rpartition("/")[2])
                case calls.Replied(number, calls.Content()):
                    self._acknowledged(progress, self.reading.pop(number))
        return (time.monotonic() - began_s) * 1_000, progress.starts

    def _acknowledged(self, progress: Progress, name: str) -> None:
        if name == NEWCOMER:
            progress.started = progress.given
        else:
            progress.released += 1
        free = progress.released - progress.given
        if free and progress.started == progress.given:
            progress.given += free
            progress.starts += 1
            create = calls.Create(f"/channel/{NEWCOMER}/command-", str(free).encode(), sequence=True)
            self._request(calls.Multi((create,)))

    def _event(self) -> calls.ZooKeeperEvent:
        return self.events.get(timeout=ROUND_DEADLINE_S)

    def _read(self, name: str) -> None:
        self.reading[self._request(calls.Get(f"/owners/{name}", watch=True))] = name

    def _request(self, call: calls.Call) -> int:
        number = next(self.numbers)
        self.zk.request(number, call)
        return number


def measure(hosts: str, size: int) -> None:
    """Print what a join of one member costs `size` others, one partition each."""
    members = [f"m{number}" for number in range(size)]
    leader = Leader(hosts, members)
    command = [sys.executable, "-m", "tests.benchmarks.floor", "--client", hosts]
    children = [start([*command, name, WRAPPER]) for name in members]
    children.append(start([sys.executable, "-m", "tests.benchmarks.floor_join", "--newcomer", hosts]))
    try:
        leader.wait_for_clients()
        rounds = [leader.round() for _ in range(ROUNDS)]
    finally:
        for child in children:
            child.communicate()
        leader.zk.close()
    times = sorted(took_ms for took_ms, _ in rounds)
    starts = statistics.median(count for _, count in rounds)
    print(
        f"{size} members give up a partition each: {statistics.median(times):.0f} ms "
        f"({times[0]:.0f} to {times[-1]:.0f}, {ROUNDS} rounds), {starts:.0f} starts of the newcomer",
        flush=True,
    )


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[12])
    parser.add_argument("--newcomer", metavar="HOSTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.newcomer:
        Newcomer(arguments.newcomer, NEWCOMER).run(WRAPPER)
        return
    for size in arguments.members:
        with LocalCluster(broker="none") as cluster:
            measure(cluster.zookeeper, size)


if __name__ == "__main__":
    main()
