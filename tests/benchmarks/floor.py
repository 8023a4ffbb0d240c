"""The same exchange of calls without our code: bare kazoo clients that answer one command each.

`python -m tests.benchmarks.floor [--sizes 10 50]`. One process per client, as in `rebalance.py`. In a round, one
transaction creates a command for every client. Each client's watch fires; it lists and reads its command, deletes it
and writes its record in one transaction, and lists again. An eager rebalance takes two such rounds plus its own work.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment

ROUNDS = 15
ROUND_DEADLINE_S = 30.0
REST_S = 0.2  # between rounds, so that each starts with idle clients
ASK_INTERVAL_S = 0.01
RECORD = b"x" * 200


def answer_commands(hosts: str, number: str) -> None:
    """Answer commands until the end of standard input."""
    client = KazooClient(hosts)
    client.start()
    channel, record = f"/channel/{number}", f"/owners/{number}"
    changed = threading.Event()

    def notice(event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE is a change of the session
            changed.set()

    def serve() -> None:
        while True:
            names = client.get_children(channel, watch=notice)
            for name in names:
                client.get(f"{channel}/{name}")
                transaction = client.transaction()
                transaction.set_data(record, RECORD)
                transaction.delete(f"{channel}/{name}")
                transaction.commit_async().get()
            if not names:
                changed.wait()
                changed.clear()

    client.create(record, b"", ephemeral=True, makepath=True)
    client.create(channel, makepath=True)
    threading.Thread(target=serve, daemon=True).start()
    sys.stdin.read()
    client.stop()


def time_rounds(hosts: str, size: int) -> list[float]:
    """Return the milliseconds of each round, from the transaction to the last answer."""
    client = KazooClient(hosts)
    client.start()
    command = [sys.executable, "-m", "tests.benchmarks.floor", "--client", hosts]
    numbers = [f"{size}-{n}" for n in range(size)]
    children = [
        subprocess.Popen([*command, number], stdin=subprocess.PIPE, env=child_environment()) for number in numbers
    ]
    try:
        _wait(lambda: all(client.exists(f"/channel/{number}") for number in numbers))
        return [_round(client, numbers) for _ in range(ROUNDS)]
    finally:
        for child in children:
            child.communicate()
        client.stop()


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
    parser.add_argument("--client", nargs=2, metavar=("HOSTS", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        answer_commands(*arguments.client)
        return
    with LocalCluster(broker="none") as cluster:
        for size in arguments.sizes:
            times = sorted(time_rounds(cluster.zookeeper, size))
            median = statistics.median(times)
            print(f"{size} clients: a round takes {median:.0f} ms ({times[0]:.0f} to {times[-1]:.0f}, {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
