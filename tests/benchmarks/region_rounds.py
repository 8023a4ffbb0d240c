"""`python -m tests.benchmarks.region_rounds`: how long a checkpoint of a consistent region takes.

A real coordinator and ZooKeeper; each member has its own session, as in an application, but no consumer: its
partitions are fixed, and its state is nothing. Members look at the order every 100 ms, as without any records.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from threading import Event, Thread
from typing import Any

from consumer_agent.region.own_state import Handlers
from consumer_agent.region.rounds import Rounds
from consumer_agent.region.session import RegionSession
from tests.benchmarks.servers import led
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import Settings

GROUP = "region-rounds"
EVERY_MS = 500
SESSION_TIMEOUT_MS = 10_000
PIECE_BYTES = 250_000
DEADLINE_S = 180.0


class FixedSource:
    """Partitions that never move, without records."""

    consumer = drop = None
    has_lost = was_revoked = has_given_up = False
    rebalances = 0

    def __init__(self, partitions: range) -> None:
        self._held: dict[TopicPartition, int] = {("orders", number): 10**9 + number for number in partitions}
        self.arrived: set[TopicPartition] = set()
        self._never = Event()

    def held(self) -> dict[TopicPartition, int]:
        return self._held

    def store(self) -> bool:
        return True

    def identity(self, _topic: str) -> str:
        return "benchmark"

    def poll(self, timeout_s: float) -> list[Any]:
        self._never.wait(timeout_s)
        return []

    def poll_nothing(self, timeout_s: float) -> None:
        self._never.wait(timeout_s)

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Stay."""

    place = seek

    def first_offsets(self, _batch: list[Any]) -> dict[TopicPartition, int]:
        return {}

    def finish(self) -> None:
        """Have nothing to finish."""

    drained = catch_up = give_back = finish

    def close(self, *, is_clean: bool) -> None:
        """Have nothing to close."""


def member(hosts: str, number: int, partitions: int) -> Rounds:
    settings = Settings("benchmark", "forced", EVERY_MS)
    order = paths.region(GROUP, "order")
    session = RegionSession(hosts, None, SESSION_TIMEOUT_MS, order, call_timeout_s=15.0)
    source = FixedSource(range(number * partitions, (number + 1) * partitions))
    handlers = Handlers(lambda _checkpoint: None, lambda _checkpoint: None)
    return Rounds(GROUP, f"member-{number}", settings, source, handlers, session, PIECE_BYTES)


def run(rounds: Rounds) -> None:
    for _batch in rounds.batches():
        raise AssertionError("there are no records")


def completed(tail: EventTail, members: int, count: int) -> list[float]:
    """Wait for checkpoints of all members; return how long each took, in milliseconds."""
    found: list[float] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found) < count:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"only {len(found)} checkpoints of {members} members within {DEADLINE_S:g} s")
        found += [
            event["elapsed_us"] / 1_000
            for event in tail.read()
            if event["kind"] == "region_checkpoint_completed" and event["member_count"] == members
        ]
        time.sleep(0.1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=20, help="of each member")
    parser.add_argument("--checkpoints", type=int, default=20)
    arguments = parser.parse_args()
    with led(4_000) as lab:
        everybody = [member(lab.cluster.zookeeper, number, arguments.partitions) for number in range(arguments.members)]
        threads = [Thread(target=run, args=(rounds,), daemon=True) for rounds in everybody]
        for thread in threads:
            thread.start()
        try:
            took_ms = completed(EventTail(lab.events), arguments.members, arguments.checkpoints)
        finally:
            for rounds in everybody:
                rounds.close(is_clean=False)
            for thread in threads:
                thread.join()
    result = {
        "members": arguments.members,
        "partitions": arguments.members * arguments.partitions,
        "checkpoints": len(took_ms),
        "median_ms": round(statistics.median(took_ms), 1),
        "longest_ms": round(max(took_ms), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
