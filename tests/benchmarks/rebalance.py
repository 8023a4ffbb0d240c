"""`make bench`: the cost of a join and a leave for a group, here and with the classic protocol.

One ZooKeeper, one broker, one run for all protocols; groups of 10 and 50 members with 12 partitions per member, each
member in a process of its own. One recorder measures all protocols, from the creation of the new member (or the order
to leave): its first record, the last partition that starts or stops (settled), and the longest time that a partition
had no owner. Settings are the defaults, except `group.initial.rebalance.delay.ms=0`.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import gevent

from tests.benchmarks.figures import Figures, GroupEvents, figures, last_change_us, owners
from tests.benchmarks.servers import led
from tests.benchmarks.transactions import count_transactions
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.localcluster import zookeeper
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings

PARTITIONS_PER_MEMBER = 12
SECONDS_PER_RECORD = 2  # per partition: a light load, so that the machine is idle at rest
COMPARED = ("central-incremental", "central-eager", "classic-range", "classic-cooperative")
QUIET_S = {"central-incremental": 1.5, "central-eager": 1.5, "classic-range": 4.0, "classic-cooperative": 8.0}
PHASE_S = 3.0  # the heartbeat interval of the classic protocols: a change falls anywhere in it
SETTLE_DEADLINE_S = 120.0
ASK_INTERVAL_S = 0.1
PROGRAM = (sys.executable, "-m", "zkrebalancer.experiments.members.program")
PHASES = (
    "noticed",
    "planned",
    "first stop sent",
    "first stop acked",
    "last stop acked",
    "last start sent",
    "last start acked",
)


class Member:
    """A member in a process of its own."""

    def __init__(self, lab: Lab, protocol: str, group: str, topic: str, name: str) -> None:
        member = PROTOCOLS[protocol]
        config = [text for pair in member.settings["default"].member.items() for text in ("--config", "=".join(pair))]
        options = {"--kind": member.kind, "--group": group, "--topic": topic}
        self._lab = lab
        self._name = name
        self._program = lab.start_members(name, [*PROGRAM, *config], options)

    def tell(self, word: str) -> None:
        self._lab.wait_events_of(self._program)
        self._program.tell(f"{word} {self._name}")

    def end(self) -> None:
        self._lab.stop(self._name)


def wait_quiet(
    group_events: GroupEvents, group: str, partitions: int, members: int, since_us: int, quiet_s: float
) -> list[Event]:
    """Wait until that many members own all partitions and nothing has changed for `quiet_s`."""
    give_up_at = time.monotonic() + SETTLE_DEADLINE_S
    while time.monotonic() < give_up_at:
        everything = group_events.look()
        owned = owners(everything)
        still_us = time.monotonic_ns() // 1_000 - last_change_us(everything)
        if len(owned) == partitions and len(set(owned.values())) == members and still_us > quiet_s * 1e6:
            return [event for event in everything if event["mono_us"] >= since_us]
        gevent.sleep(ASK_INTERVAL_S)  # yields to the lab's ZooKeeper session
    raise SystemExit(
        f"{group}: not settled within {SETTLE_DEADLINE_S:g} s: {len(owned)} of {partitions} partitions owned"
    )


@contextmanager
def settled_group(lab: Lab, protocol: str, size: int, group: str, topic: str) -> Iterator[GroupEvents]:
    """Yield a group of `size` members at rest."""
    processes = [Member(lab, protocol, group, topic, f"{group}-m{n}") for n in range(size)]
    try:
        for process in processes:
            process.tell("join")
        group_events = GroupEvents(lab.events, group)
        wait_quiet(group_events, group, size * PARTITIONS_PER_MEMBER, size, 0, QUIET_S[protocol])
        yield group_events
    finally:
        for process in processes:
            process.end()


def measure(lab: Lab, protocol: str, size: int, repeat: int, seed: int) -> dict[str, object]:
    """Let a member join and leave `repeat` times; return the figures."""
    group = f"{protocol}-{size}"
    topic = f"bench-{group}"
    partitions = size * PARTITIONS_PER_MEMBER
    lab.create_topic(topic, partitions)
    if protocol.startswith("central"):
        lab.configure(group, GroupSettings(mode=EAGER if protocol == "central-eager" else INCREMENTAL))
    lab.start_producer(f"producer-{group}", {topic: partitions}, partitions // SECONDS_PER_RECORD)
    joins: list[Figures] = []
    leaves: list[Figures] = []
    transactions: list[dict[str, int]] = []
    phases: list[dict[str, float]] = []
    with settled_group(lab, protocol, size, group, topic) as group_events:
        drawn = Random(f"{seed}/{size}")  # the same for every protocol
        for number in range(repeat):
            name = f"{group}-new{number}"
            newcomer = Member(lab, protocol, group, topic, name)
            try:
                gevent.sleep(drawn.uniform(0.0, PHASE_S))
                join = functools.partial(newcomer.tell, "join")
                _joined, events, counts = change(lab, group_events, protocol, group, size + 1, partitions, join)
                began_us = next(e["mono_us"] for e in events if e["kind"] == "member_joined" and e["member"] == name)
                joins.append(figures(events, began_us, name))
                transactions.append(dict(counts))
                phases.append(phase_times(events, began_us))
                gevent.sleep(drawn.uniform(0.0, PHASE_S))
                leave = functools.partial(newcomer.tell, "leave")
                left, events, _counts = change(lab, group_events, protocol, group, size, partitions, leave)
                leaves.append(figures(events, left, None))
            finally:
                newcomer.end()
            print(f"{group}: join {joins[-1].settled_ms:.0f} ms, leave {leaves[-1].settled_ms:.0f} ms", file=sys.stderr)
    lab.stop(f"producer-{group}")
    lab.delete_topic(topic)
    result: dict[str, object] = {"protocol": protocol, "members": size, "partitions": partitions}
    result["join"], result["leave"] = summary(joins), summary(leaves)
    if protocol.startswith("central"):
        result["transactions"], result["phases_ms"] = transactions, phases
    return result


def change(
    lab: Lab,
    group_events: GroupEvents,
    protocol: str,
    group: str,
    members: int,
    partitions: int,
    begin: Callable[[], None],
) -> tuple[int, list[Event], Counter[str]]:
    """Cause a change and wait until it is over; return its start, its events, and ZooKeeper's transactions."""
    zxid = zookeeper.zxid(lab.cluster.zookeeper)
    began_us = time.monotonic_ns() // 1_000
    begin()
    gevent.sleep(QUIET_S[protocol])  # looking takes processor time from those that are measured
    events = wait_quiet(group_events, group, partitions, members, began_us, QUIET_S[protocol])
    counts = count_transactions(lab.cluster.directory, zxid, zookeeper.zxid(lab.cluster.zookeeper))
    return began_us, events, counts


def phase_times(events: list[Event], began_us: int) -> dict[str, float]:
    """Return when each phase happened, in milliseconds since the creation of the new member."""
    options = {e["command_id"]: e["option"] for e in events if e["kind"] == "command_sent"}
    moments: dict[str, list[int]] = {name: [] for name in PHASES}
    for event in events:
        at_us, kind = event["mono_us"], event["kind"]
        option = options.get(event.get("command_id", ""))
        if kind == "rebalance_requested":
            moments["noticed"].append(at_us)
        elif kind == "rebalance_planned":
            moments["planned"].append(at_us)
        elif kind == "command_sent":
            moments["first stop sent" if option == "stop-fetcher" else "last start sent"].append(at_us)
        elif kind == "command_acked" and option == "stop-fetcher":
            moments["first stop acked"].append(at_us)
            moments["last stop acked"].append(at_us)
        elif kind == "command_acked":
            moments["last start acked"].append(at_us)
    return {
        name: ((min if name.startswith("first") or name in {"noticed", "planned"} else max)(at) - began_us) / 1_000
        for name, at in moments.items()
        if at
    }


def summary(measured: list[Figures]) -> dict[str, float | None]:
    """Return medians, and the longest time to settle."""
    firsts = [f.first_record_ms for f in measured if f.first_record_ms is not None]
    return {
        "first_record_ms": round(statistics.median(firsts), 1) if firsts else None,
        "settled_ms": round(statistics.median(f.settled_ms for f in measured), 1),
        "settled_ms_max": round(max(f.settled_ms for f in measured), 1),
        "longest_gap_ms": round(statistics.median(f.longest_gap_ms for f in measured), 1),
    }


def main() -> None:
    """Run every protocol and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--protocols", nargs="+", default=list(COMPARED), choices=COMPARED)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="draws the phases; give each run another one")
    arguments = parser.parse_args()
    properties = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with led(6_000, chroot="/bench", kafka_properties=properties) as lab:
        results = [
            measure(lab, p, size, arguments.repeat, arguments.seed)
            for size in arguments.sizes
            for p in arguments.protocols
        ]
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
