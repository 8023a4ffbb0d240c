"""The same exchange of calls without our code: bare kazoo clients that answer one command each.

`python -m tests.benchmarks.floor [--sizes 10 50] [--conversations list foreseen lasting]`. One process per client, as
in `rebalance.py`. In a round, one transaction creates a command for every client. Each client's watch fires; it lists
and reads its command, deletes it and writes its record in one transaction, and lists again. An eager rebalance takes
two such rounds plus its own work.

Other conversations: `foreseen` reads the next command along with each list, by its likely name; `lasting` has a watch
that lasts and names the command, so that nothing is listed; `wrapper` is the same through `runtime.zk`, the client of
the agents, on a gevent hub in a thread as theirs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import gevent.event
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol import calls
from zkrebalancer.runtime.zk import ZkClient
from zkrebalancer.runtime.zk_watches import AddWatch, path_of

ROUNDS = 15
ROUND_DEADLINE_S = 30.0
REST_S = 0.2  # between rounds, so that each starts with idle clients
ASK_INTERVAL_S = 0.01
RECORD = b"x" * 200
CONVERSATIONS = LIST, FORESEEN, LASTING, WRAPPER = "list", "foreseen", "lasting", "wrapper"
SESSION_TIMEOUT_MS = 10_000
CREATED = 1  # ZooKeeper's number of that event


class Client:
    """Answers commands until the end of standard input."""

    def __init__(self, hosts: str, number: str) -> None:
        """Connect, and create the nodes."""
        self._client = KazooClient(hosts)
        self._client.start()
        self._channel, self._record = f"/channel/{number}", f"/owners/{number}"
        self._changed = threading.Event()
        self._created: deque[str] = deque()  # commands that the lasting watch has named
        self._client.create(self._record, b"", ephemeral=True, makepath=True)
        self._client.create(self._channel, makepath=True)

    def run(self, conversation: str) -> None:
        """Answer, and tell the processor time so far for each line of standard input."""
        threading.Thread(target=self._answer, args=(conversation,), daemon=True).start()
        for _line in sys.stdin:
            sys.stdout.write(f"{time.process_time()}\n")
            sys.stdout.flush()
        self._client.stop()

    def _answer(self, conversation: str) -> None:
        with suppress(ConnectionLoss):  # at the end
            {LIST: self._list, FORESEEN: self._foresee, LASTING: self._last}[conversation]()

    def _notice(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE is a change of the session
            self._changed.set()

    def _wait(self) -> None:
        self._changed.wait()
        self._changed.clear()

    def _acknowledge(self, name: str) -> None:
        transaction = self._client.transaction()
        transaction.set_data(self._record, RECORD)
        transaction.delete(f"{self._channel}/{name}")
        transaction.commit_async().get()

    def _list(self) -> None:
        while True:
            names = self._client.get_children(self._channel, watch=self._notice)
            for name in names:
                self._client.get(f"{self._channel}/{name}")
                self._acknowledge(name)
            if not names:
                self._wait()

    def _foresee(self) -> None:
        expected = 0
        while True:
            listing = self._client.get_children_async(self._channel, watch=self._notice)
            reading = self._client.get_async(f"{self._channel}/command-{expected:010d}")
            names = listing.get()
            with suppress(NoNodeError):
                reading.get()
            for name in names:
                self._acknowledge(name)
                expected += 1
            if not names:
                self._wait()

    def _last(self) -> None:
        client = cast("Any", self._client)  # kazoo has no public way
        client._connection._read_watch_event = self._read_event
        answer = client.handler.async_result()
        client._call(AddWatch(self._channel), answer)
        answer.get()
        while True:
            self._wait()
            while self._created:
                name = self._created.popleft()
                self._client.get(f"{self._channel}/{name}")
                self._acknowledge(name)

    def _read_event(self, message: bytes, offset: int) -> None:
        kind = int.from_bytes(message[offset : offset + 4])
        if kind == CREATED:
            self._created.append(path_of(message, offset).rpartition("/")[2])
            self._changed.set()


class WrappedClient:
    """The same as `Client` with a lasting watch, by the wrapper."""

    def __init__(self, hosts: str, number: str) -> None:
        """Prepare; nothing is connected yet."""
        self._hosts = hosts
        self._channel, self._record = f"/channel/{number}", f"/owners/{number}"
        self._events: deque[calls.ZooKeeperEvent] = deque()
        self._numbers = itertools.count()
        self._reading: dict[int, str] = {}  # the command whose content is requested

    def run(self, _conversation: str) -> None:
        """Answer, and tell the processor time so far for each line of standard input."""
        threading.Thread(target=self._answer, daemon=True).start()
        for _line in sys.stdin:
            sys.stdout.write(f"{time.process_time()}\n")
            sys.stdout.flush()

    def _answer(self) -> None:
        has_come = gevent.event.Event()

        def put(event: calls.ZooKeeperEvent) -> None:
            self._events.append(event)
            has_come.set()

        self._zk = ZkClient(self._hosts, SESSION_TIMEOUT_MS, put, reads_together=True)
        self._zk.start()
        while True:
            has_come.wait()
            has_come.clear()
            while self._events:
                self._handle(self._events.popleft())

    def _request(self, call: calls.Call) -> int:
        number = next(self._numbers)
        self._zk.request(number, call)
        return number

    def _handle(self, event: calls.ZooKeeperEvent) -> None:
        match event:
            case calls.Connected():
                self._request(calls.Multi((calls.Create(self._channel), calls.Create(self._record, ephemeral=True))))
                self._request(calls.WatchBelow(self._channel))
            case calls.Watched(path) if path not in self._reading.values():
                self._reading[self._request(calls.Get(path))] = path
            case calls.Watched(path):  # its own acknowledgement
                self._reading = {number: reading for number, reading in self._reading.items() if reading != path}
            case calls.Replied(number, calls.Content()):
                self._acknowledge(number)

    def _acknowledge(self, number: int) -> None:
        operations = calls.SetContent(self._record, RECORD, -1), calls.Delete(self._reading[number])
        self._request(calls.Multi(operations))


def time_rounds(hosts: str, size: int, conversation: str) -> tuple[list[float], float]:
    """Return the milliseconds of each round, from the transaction to the last answer, and of each client's work."""
    client = KazooClient(hosts)
    client.start()
    for above in ("/channel", "/owners"):
        client.ensure_path(above)
    command = [sys.executable, "-m", "tests.benchmarks.floor", "--client", hosts]
    numbers = [f"{conversation}-{size}-{n}" for n in range(size)]
    children = [start([*command, number, conversation]) for number in numbers]
    try:
        _wait(lambda: all(client.exists(f"/channel/{number}") for number in numbers))
        before_s = sum(map(_processor_s, children))
        times = [_round(client, numbers) for _ in range(ROUNDS)]
        return times, (sum(map(_processor_s, children)) - before_s) * 1_000 / ROUNDS / size
    finally:
        for child in children:
            child.communicate()
        client.stop()


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a client, with pipes."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), text=True)


def _processor_s(child: subprocess.Popen[str]) -> float:
    if child.stdin is None or child.stdout is None:
        raise TypeError("a client without pipes")
    child.stdin.write("\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def _round(client: KazooClient, numbers: list[str]) -> float:
    begin_at_s = time.monotonic() + REST_S
    _wait(lambda: time.monotonic() >= begin_at_s)
    answered, left = threading.Event(), set(numbers)

    def answer(event: WatchedEvent) -> None:
        left.discard(event.path.rpartition("/")[2])
        if not left:
            answered.set()

    for number in numbers:
        client.get(f"/owners/{number}", watch=answer)
    transaction = client.transaction()
    for number in numbers:
        transaction.create(f"/channel/{number}/command-", RECORD, sequence=True)
    began_s = time.monotonic()
    transaction.commit_async().get()
    if not answered.wait(ROUND_DEADLINE_S):
        raise TimeoutError(f"no answer from {sorted(left)}")
    return (time.monotonic() - began_s) * 1_000


def _wait(is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + ROUND_DEADLINE_S
    while not is_so():
        if time.monotonic() > give_up_at:
            raise TimeoutError("the clients did not start")
        time.sleep(ASK_INTERVAL_S)


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--conversations", nargs="+", default=[LIST], choices=CONVERSATIONS)
    parser.add_argument("--client", nargs=3, metavar=("HOSTS", "NUMBER", "CONVERSATION"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        hosts, number, conversation = arguments.client
        (WrappedClient if conversation == WRAPPER else Client)(hosts, number).run(conversation)
        return
    with LocalCluster(broker="none") as cluster:
        for size, conversation in itertools.product(arguments.sizes, arguments.conversations):
            found, work_ms = time_rounds(cluster.zookeeper, size, conversation)
            times = sorted(found)
            median = statistics.median(times)
            print(
                f"{size} clients: a round takes {median:.0f} ms ({times[0]:.0f} to {times[-1]:.0f}, {ROUNDS} rounds), "
                f"and {work_ms:.2f} ms of each client's processor time ({conversation})",
                flush=True,
            )


if __name__ == "__main__":
    main()
