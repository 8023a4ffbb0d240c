"""`python -m tests.benchmarks.restarts`: a rolling restart of static members, after SIGTERM and after `kill -9`.

Real processes. For each restart it measures how long the partitions were not read, split into the time without a
registered process (its own end and start) and the time after that (the group's part). Every partition must return to
its instance, and no other consumer may be sent a stop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from typing import Any

from tests.benchmarks.servers import led
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol.settings import INCREMENTAL, GroupSettings

GROUP, TOPIC = "restarts", "restarts"
SETTLE_DEADLINE_S = 300.0
Event = dict[str, Any]


class Fleet:
    """Agents by instance; a restart is a new process with the same instance id."""

    def __init__(self, lab: Lab, members: int, partitions: int) -> None:
        self.lab = lab
        self.partitions = partitions
        self.processes = {f"pod-{number}": "" for number in range(members)}
        self.events: list[Event] = []
        self._tail = EventTail(lab.events)
        self._count = 0
        for instance in self.processes:
            self.start(instance)
        self.settle()

    def start(self, instance: str) -> str:
        self._count += 1
        name = self.processes[instance] = f"{instance}-run{self._count}"
        self.lab.start_agent(name, GROUP, (TOPIC,), options={"--instance-id": instance})
        return name

    def settle(self) -> None:
        self.lab.wait_settled(GROUP, {TOPIC: self.partitions}, *self.processes.values(), deadline_s=SETTLE_DEADLINE_S)

    def homes(self) -> dict[str, frozenset[int]]:
        """Return the partitions that each instance owns."""
        report: GroupReport = self.lab.group(GROUP)
        return {
            member.registration.instance_id or "": frozenset(number for _, number in member.owners.partitions)
            for member in report.members
            if member.registration is not None and member.owners is not None
        }

    def restart(self, instance: str, *, in_good_order: bool) -> dict[str, float]:
        """End an instance's process, start another, and return its pause in milliseconds."""
        old = self.processes[instance]
        began_us = time.monotonic_ns() // 1_000
        if in_good_order:
            self.lab.stop(old)
        else:
            self.lab.kill(old)
        new = self.start(instance)
        self.settle()
        stopped_us = self._moment("fetcher_stopped", old) if in_good_order else began_us
        joined_us = self._moment("member_joined", new)
        started_us = self._moment("fetcher_started", new)
        return {
            "pause": (started_us - stopped_us) / 1_000,
            "without_process": (joined_us - stopped_us) / 1_000,
            "group": (started_us - joined_us) / 1_000,
        }

    def _moment(self, kind: str, process: str) -> int:
        """Return the time of a process's last event of a kind, waiting until it can be read."""
        self.lab.wait_for(f"{kind} of {process}", lambda: bool(self._moments(kind, process)))
        return max(self._moments(kind, process))

    def _moments(self, kind: str, process: str) -> list[int]:
        self.events += self._tail.read()
        members = (event for event in self.events if event["kind"] == kind)
        return [int(event["mono_us"]) for event in members if event["member"].startswith(f"{process}-")]

    def revocations(self) -> int:
        self.events += self._tail.read()
        return sum(e["kind"] == "fetcher_stopped" and e.get("reason") == "revoked" for e in self.events)


def measure(fleet: Fleet, instances: Iterable[str], *, in_good_order: bool) -> dict[str, object]:
    """Restart instances one after the other and return the figures."""
    before, revoked = fleet.homes(), fleet.revocations()
    pauses = [fleet.restart(instance, in_good_order=in_good_order) for instance in instances]
    return {
        "in_good_order": in_good_order,
        "restarts": len(pauses),
        "moved_partitions": sum(len(before[instance] - owned) for instance, owned in fleet.homes().items()),
        "stops_of_others": fleet.revocations() - revoked,
        **{f"{part}_ms": summary([pause[part] for pause in pauses]) for part in ("pause", "without_process", "group")},
    }


def summary(taken: list[float]) -> dict[str, float]:
    """Return median and maximum."""
    return {"median": round(statistics.median(taken)), "max": round(max(taken))}


def main() -> None:
    """Restart all instances with SIGTERM, then some with SIGKILL, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    arguments = parser.parse_args()
    with led(arguments.session_timeout_ms, chroot="/bench") as lab:
        lab.create_topic(TOPIC, arguments.partitions)
        lab.configure(GROUP, GroupSettings(mode=INCREMENTAL))
        fleet = Fleet(lab, arguments.members, arguments.partitions)
        instances = list(fleet.processes)
        results = [
            measure(fleet, instances, in_good_order=True),
            measure(fleet, instances[: arguments.kills], in_good_order=False),
        ]
    document = {"session_timeout_ms": arguments.session_timeout_ms, "partitions": arguments.partitions}
    print(json.dumps({"members": arguments.members, **document, "runs": results}, indent=1))


if __name__ == "__main__":
    main()
