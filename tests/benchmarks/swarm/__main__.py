"""What many groups cost: `python -m tests.benchmarks.swarm [--groups 10000] [--shards 12 --coordinators 3] …`.

Runs a real ZooKeeper, two coordinators (a leader and a standby) and processes that play the members. Measures joins in
a single group; the start of all members; processor time at rest; the same joins beside all other groups; an election
until all groups are adopted; lease renewals; a restart of all members; the death of all members of one process. Between
phases, memory and the size of ZooKeeper's data are recorded. With `--changes`, so many members then join and leave as
fast as possible, with a look at memory after each tenth. With several shards of groups, which the coordinators share,
one of them is killed instead of the election, and comes back. Prints one JSON document; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable

import gevent

from tests.benchmarks.swarm.lab import Coordinator, SwarmLab, new_chroot, running, start_coordinator
from tests.benchmarks.swarm.members import wait_until
from tests.benchmarks.swarm.player import Cast, play
from tests.benchmarks.swarm.processes import memory_mb, of_zookeeper, snapshot_mb
from tests.benchmarks.swarm.sharing import Death, share, wait_shared
from zkrebalancer.localcluster.cluster import LocalCluster

HEAP_MB = 4_096
TICK_MS = 2_000  # as in production; the shortest session is two ticks
DEADLINE_S = 1_800.0  # of a phase
DEATH_LOOK_S = 2.0
PORTIONS = 10  # of the changes, with a look at memory after each


class Measurement:
    """One run, phase by phase."""

    def __init__(self, lab: SwarmLab, arguments: argparse.Namespace) -> None:
        """Begin with a tree, players without members, and no coordinator."""
        self._lab = lab
        self._groups, self._members = arguments.groups, arguments.members
        self._joins, self._rest_s, self._renewals_s = arguments.joins, arguments.rest, arguments.renewals
        self._coordinators, self._shards = arguments.coordinators, arguments.shards
        self._changes = arguments.changes
        self.results: dict[str, object] = {}

    def _note(self, name: str, found: object) -> None:
        self.results[name] = found
        print(f"{time.strftime('%H:%M:%S')} {name}: {json.dumps(found)}", file=sys.stderr, flush=True)

    def run(self) -> None:
        """Measure everything."""
        lab = self._lab
        for number in range(1, self._coordinators + 1):
            lab.coordinators.append(start_coordinator(lab.cluster, lab.zookeeper, number, DEADLINE_S))
        wait_until(self._has_leader, DEADLINE_S, "a leader")
        if self._shards > 1:
            share(lab, self._shards, DEADLINE_S)
        lab.wait_adopted(self._groups, DEADLINE_S)
        self._note("empty", self._sizes())
        self._fill(0, 1)
        self._note("alone", self._change_one_group())
        self._note("start of all", lab.during(lambda: self._fill(1, self._groups)))
        self._note("full", self._sizes())
        self._note("rest", lab.during(lambda: gevent.sleep(self._rest_s)))
        self._note("beside all", self._change_one_group())
        if self._changes:
            self._note("changes", lab.during(self._change_for_long))
        self._note("renewals", lab.during(self._renew))
        if self._shards > 1:
            self._die_and_return()
        elif self._coordinators > 1:
            former = lab.leader
            lab.coordinators.remove(former)
            self._note("election", lab.during(lambda: self._elect(former)))
            self._note("adopted", self._sizes())
        self._note("restart of all", lab.during(self._restart))
        self._note("rest after the restart", lab.during(lambda: gevent.sleep(self._rest_s)))
        if len(lab.players) > 1:
            self._note("death", lab.during(self._die))
        self._note("end", self._sizes())

    def _has_leader(self) -> bool:
        return self._lab.are_led

    def _fill(self, first: int, last: int) -> None:
        for player in self._lab.players:
            player.order("fill", first, last)
        self._lab.wait_owned(last, last * self._members, DEADLINE_S)
        self._lab.wait_adopted(self._groups, DEADLINE_S)

    def _change_one_group(self) -> dict[str, float]:
        found = [self._lab.players[0].order("join", 0) for _ in range(self._joins)]
        values = {name: sorted(one[name] for one in found) for name in ("join_ms", "leave_ms")}
        medians = {name: round(statistics.median(many), 1) for name, many in values.items()}
        return {**medians, **{f"{name}_max": round(many[-1], 1) for name, many in values.items()}}

    def _change_for_long(self) -> None:
        """Let members join and leave as fast as possible, and look at the memory of coordinators and ZooKeeper."""
        lab = self._lab
        changed = 0
        for portion in range(1, PORTIONS + 1):
            count = (self._changes * portion // PORTIONS - changed) // len(lab.players)
            for player in lab.players:
                player.begin("change", count)
            changed += sum(player.answer()["changed"] for player in lab.players)
            pids = [one.program.pid for one in lab.running] + [lab.cluster.zookeeper_servers[0].pid]
            lab.look()  # raises if some member was evicted
            self._note(f"mb after {changed} changes", [round(memory_mb(pid), 1) for pid in pids])

    def _elect(self, former: Coordinator) -> None:
        """Stop the leader with SIGTERM, so that the other one leads at once, and wait until it has read all groups."""
        os.kill(former.program.pid, signal.SIGTERM)
        former.program.wait_end(DEADLINE_S)
        wait_until(self._has_leader, DEADLINE_S, "a leader")
        self._lab.wait_adopted(self._groups, DEADLINE_S)

    def _die_and_return(self) -> None:
        """Kill a coordinator; look what its groups and all others notice until others lead them; start it again."""
        lab = self._lab
        death = Death(lab, lab.coordinators.pop(), self._groups, self._joins)
        self._note("before the death", self._shares())
        self._note("death of a coordinator", lab.during(lambda: death.happen(DEADLINE_S)))
        self._note("meanwhile", death.noticed)
        self._note("after the death", self._shares())

        def come_back() -> None:
            number = int(death.coordinator.program.name.rpartition("-")[2])
            lab.coordinators.append(start_coordinator(lab.cluster, lab.zookeeper, number, DEADLINE_S))
            wait_shared(lab, DEADLINE_S)
            lab.wait_adopted(self._groups, DEADLINE_S)

        self._note("its return", lab.during(come_back))
        self._note("adopted", self._sizes())

    def _shares(self) -> dict[str, dict[str, int]]:
        """Return how many shards and groups each coordinator leads, and its memory."""
        found = [(one, one.seen()) for one in self._lab.running]
        return {
            one.program.name: {
                "shards": seen.shards_led,
                "groups": seen.groups,
                "mb": round(memory_mb(one.program.pid)),
            }
            for one, seen in found
        }

    def _renew(self) -> None:
        for player in self._lab.players:
            player.begin("renew", self._renewals_s)
        renewed = sum(player.answer()["renewed"] for player in self._lab.players)
        self._note("renewals per second", renewed / self._renewals_s)

    def _restart(self) -> None:
        commands = self._lab.look()["commands"]
        for player in self._lab.players:
            player.order("restart")
        total = self._groups * self._members
        self._lab.wait_owned(self._groups, total, DEADLINE_S)
        self._lab.wait_adopted(self._groups, DEADLINE_S)
        self._note("commands of the restart", self._lab.look()["commands"] - commands)

    def _die(self) -> None:
        last = self._lab.players.pop()
        last.kill()
        left = sum(len(player.cast.groups) for player in self._lab.players) * self._members
        wait_until(self._counts(left), DEADLINE_S, f"{left} members left")

    def _counts(self, members: int) -> Callable[[], bool]:
        def is_so() -> bool:
            gevent.sleep(DEATH_LOOK_S)  # for metrics, the coordinator counts in every group
            try:
                return sum(one.seen().members for one in self._lab.running) == members
            except OSError:  # its loop was too busy to answer before its own limit for slow clients
                return False

        return is_so

    def _sizes(self) -> dict[str, object]:
        lab = self._lab
        return {
            "leader_mb": round(memory_mb(lab.leader.program.pid)),
            **(
                {"coordinators_mb": [round(memory_mb(one.program.pid)) for one in lab.running]}
                if lab.shards > 1
                else {}
            ),
            "zookeeper_mb": round(memory_mb(lab.cluster.zookeeper_servers[0].pid)),
            "snapshot_mb": round(snapshot_mb(lab.cluster.directory), 1),
            **of_zookeeper(lab.cluster.zookeeper),
        }


def main() -> None:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=10, help="of each group")
    parser.add_argument("--partitions", type=int, default=50, help="of each group's topic")
    parser.add_argument("--topics", type=int, default=1_000, help="of all groups together")
    parser.add_argument("--players", type=int, default=2, help="processes that play the members")
    parser.add_argument("--coordinators", type=int, default=2, help="with 1, there is no election to measure")
    parser.add_argument("--shards", type=int, default=1, help="of groups, shared by the coordinators")
    parser.add_argument("--joins", type=int, default=20, help="of one group, alone and beside all others")
    parser.add_argument("--changes", type=int, default=0, help="joins, each with a leave, with a look at memory")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds at rest")
    parser.add_argument("--renewals", type=float, default=10.0, help="seconds of lease renewals")
    parser.add_argument(
        "--session-timeout", type=int, default=60, help="of members, in seconds: how long a death takes"
    )
    parser.add_argument("--player", nargs=7, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.player:
        address, *numbers = arguments.player
        first, last, members, partitions, topics, timeout_ms = map(int, numbers)
        play(Cast(address, range(first, last), members, partitions, topics, timeout_ms))
        return
    if arguments.shards > 1 and min(arguments.coordinators, arguments.players) < 2:
        parser.error("shards need two coordinators and two players: one of the coordinators dies")
    topics = min(arguments.topics, arguments.groups)
    sizes = (arguments.members, arguments.partitions, topics, 1_000 * arguments.session_timeout)
    with (
        LocalCluster(broker="none", tick_ms=TICK_MS, zookeeper_heap_mb=HEAP_MB) as cluster,
        running(cluster, Cast(new_chroot(cluster), range(arguments.groups), *sizes), arguments.players) as lab,
    ):
        measurement = Measurement(lab, arguments)
        measurement.run()
    print(json.dumps(measurement.results, indent=1))


if __name__ == "__main__":
    main()
