"""Time and memory of `pipeline fleet` for weeks of events of many groups.

`python -m tests.benchmarks.fleet` (20 groups, 28 days). A group has 10 members and 40 partitions. Each day, its members
are restarted one after the other, and one crashes; a partition has a delivery and a commit each half hour. Spark gets
two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import TextIO
from uuid import UUID

from tests.benchmarks.pipeline import measuring

MEMBERS, PARTITIONS, RECORDS = 10, 40, 10
SESSION_MS = 10_000
MS, S, DAY = 1_000, 1_000_000, 86_400_000_000
HALF_HOURS = 48
EPOCH_US = 1_790_000_000 * S
TABLE = """| groups | days | events | on disk | time | peak memory |
|---|---|---|---|---|---|"""


class Group:
    """Writes the events of one group: a file for its coordinator, and one for each client."""

    def __init__(self, folder: Path, number: int) -> None:
        self.written = 0
        self._folder, self._name, self._chance = folder, f"group-{number}", Random(number)
        self._files: dict[str, TextIO] = {}
        self._members: dict[int, str] = {}  # by client
        self._owners = [-1] * PARTITIONS  # clients
        self._offsets = [0] * PARTITIONS
        self._generation = 0

    def run(self, days: int) -> None:
        """Write the events of some days."""
        for client in range(MEMBERS):
            self._join(client, client * S)
        for day in range(days):
            for number in range(HALF_HOURS):
                self._deliver(day * DAY + number * DAY // HALF_HOURS + 60 * S)
            for client in range(MEMBERS):
                at_us = day * DAY + 36_000 * S + client * 30 * S
                self._leave(client, at_us, crashes=False)
                self._join(client, at_us + 5 * S)
            self._leave(day % MEMBERS, day * DAY + 54_000 * S, crashes=True)
            self._join(day % MEMBERS, day * DAY + 54_060 * S)
        for file in self._files.values():
            file.close()

    def _write(self, process: str, at_us: int, kind: str, **fields: object) -> None:
        name = f"{self._name}-{process}"
        if name not in self._files:
            self._files[name] = (self._folder / f"{name}.jsonl").open("w")
        common = {"ts_us": EPOCH_US + at_us, "mono_us": at_us, "host": name, "process": name, "kind": kind}
        of_plan = {"generation": self._generation, "cause_id": f"{self._name}/{self._generation}"}
        self._files[name].write(json.dumps({**common, "group": self._name, **of_plan, **fields}) + "\n")
        self.written += 1

    def _fetch(self, client: int, at_us: int, kind: str, partitions: list[int], **fields: object) -> None:
        positions = [self._offsets[partition] for partition in partitions]
        named = {"member": self._members[client], "topic": "t", "partitions": partitions, "positions": positions}
        self._write(f"client-{client}", at_us, kind, **named, **fields)

    def _deliver(self, at_us: int) -> None:
        for partition, client in enumerate(self._owners):
            first = self._offsets[partition]
            self._offsets[partition] += RECORDS
            where = {"member": self._members[client], "topic": "t", "partition": partition}
            offsets = {"first_offset": first, "last_offset": first + RECORDS - 1, "count": RECORDS}
            self._write(f"client-{client}", at_us, "delivered", **where, **offsets)
            self._write(f"client-{client}", at_us + S, "committed", **where, offset=first + RECORDS)

    def _join(self, client: int, at_us: int) -> None:
        member = self._members[client] = f"client-{client}-{UUID(int=self._chance.getrandbits(128))}"
        self._write("coordinator", at_us, "member_joined", member=member, session_timeout_ms=SESSION_MS)
        count = PARTITIONS // len(self._members)
        self._rebalance(at_us, "member-joined", dict.fromkeys(self._chance.sample(range(PARTITIONS), count), client))

    def _leave(self, client: int, at_us: int, *, crashes: bool) -> None:
        owned = [partition for partition, owner in enumerate(self._owners) if owner == client]
        reason = "expired" if crashes else "closed"
        if not crashes:
            self._fetch(client, at_us, "fetcher_stopped", owned, reason=reason)
        named = {"member": self._members.pop(client), "reason": reason}
        self._write("coordinator", at_us + 50 * MS, "ownership_ended", **{**named, "reason": "expired"})
        self._write("coordinator", at_us + 51 * MS, "member_left", **named)
        others = sorted(self._members)
        self._rebalance(at_us + 51 * MS, "member-left", {each: self._chance.choice(others) for each in owned})

    def _rebalance(self, at_us: int, trigger: str, owners: dict[int, int]) -> None:
        self._generation += 1
        stops, starts = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for partition, client in owners.items():
            starts[client].append(partition)
            if self._owners[partition] in self._members:
                stops[self._owners[partition]].append(partition)
            self._owners[partition] = client
        counts = {"member_count": len(self._members), "partition_count": PARTITIONS, "moved_count": len(owners)}
        plan = {"mode": "incremental", "strategy": "sticky", "plan_us": 900}
        self._write("coordinator", at_us, "rebalance_requested", trigger=trigger)
        self._write("coordinator", at_us + MS, "rebalance_planned", **plan, **counts)
        for kind, at_ms, of_clients in (("stop", 2, stops), ("start", 20, starts)):
            for client, partitions in of_clients.items():
                command_id = f"{self._name}/{self._generation}/{kind}/{client}"
                sent = {"member": self._members[client], "command_id": command_id}
                option = {"option": f"{kind}-fetcher", "partition_count": len(partitions)}
                self._write("coordinator", at_us + at_ms * MS, "command_sent", **sent, **option)
                fetched = {"reason": "revoked"} if kind == "stop" else {}
                name = "fetcher_stopped" if kind == "stop" else "fetcher_started"
                self._fetch(client, at_us + (at_ms + 8) * MS, name, partitions, **fetched)
                self._write("coordinator", at_us + (at_ms + 10) * MS, "command_acked", **sent)
        ended = {"outcome": "finished", "moved_count": len(owners), "late_members": [], "settled_us": 31 * MS}
        self._write("coordinator", at_us + 31 * MS, "rebalance_finished", pause_us_max=26 * MS, **ended)


def main() -> None:
    """Write the events, measure the command, print a row of TABLE."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--days", type=int, default=28)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-bench-") as scratch:
        folder, out = Path(scratch, "events"), Path(scratch, "out")
        folder.mkdir()
        written = 0
        for number in range(arguments.groups):
            group = Group(folder, number)
            group.run(arguments.days)
            written += group.written
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        name = [sys.executable, "-m", "zkrebalancer.cli.main", "pipeline", "fleet"]
        paths = ["--events", str(folder), "--out", str(out)]
        taken_s, peak_mib, told = measuring.measured([*name, *paths, "--master", "local[2]", "--json"])
    shape = f"| {told['groups']} | {arguments.days} | {written / 1e6:.2g} million | {size_mb:,.0f} MB"
    print(f"{TABLE}\n{shape} | {taken_s:.0f} s | {peak_mib:,.0f} MiB |")


if __name__ == "__main__":
    main()
