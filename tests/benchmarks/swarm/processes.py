"""What the processes of a swarm's lab use, and what a coordinator's metrics say."""

from __future__ import annotations

import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster import zookeeper

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ASK_TIMEOUT_S = 60.0  # a coordinator that counts ten thousand groups beside its work
OF_MNTR = ("zk_packets_received", "zk_znode_count", "zk_ephemerals_count", "zk_watch_count", "zk_approximate_data_size")
_PREFIX = "zkrebalancer_coordinator_"
_STATE = re.compile(r'groups\{state="([\w-]+)"\} (\S+)')


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb(pid: int) -> float:
    """Return how much of its memory is resident."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1_024 if found else 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A coordinator's groups."""

    states: dict[str, int]
    to_load: int
    members: int
    unowned: int
    shards_led: int

    @property
    def is_leader(self) -> bool:
        """Whether it leads some shard of groups."""
        return self.shards_led > 0

    @property
    def groups(self) -> int:
        """How many it knows."""
        return sum(self.states.values())

    @property
    def is_quiet(self) -> bool:
        """Whether it has read all groups that it knows of, and none is being rebalanced."""
        return not self.to_load and not self.unowned and self.groups == self.states.get("idle", 0)


def seen(port: int) -> Seen:
    """Ask a coordinator for its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ASK_TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.removeprefix(_PREFIX).rsplit(" ", 1) for line in lines if line.startswith(_PREFIX))
    states = {found[1].lower(): int(float(found[2])) for line in lines if (found := _STATE.search(line))}
    names = ("groups_to_load", "members", "partitions_unowned", "shards_led")
    return Seen(states, *(int(float(values[name])) for name in names))


def of_zookeeper(address: str) -> dict[str, int]:
    """Return how much a server keeps."""
    ((host, port),) = zookeeper.split_hosts(address)
    pairs = [line.split("\t") for line in zookeeper.ask(host, port, "mntr").decode().splitlines()]
    return {pair[0]: int(float(pair[1])) for pair in pairs if pair[0] in OF_MNTR}


def snapshot_mb(directory: Path) -> float:
    """Return the size of the newest snapshot that is complete."""
    found = sorted(directory.glob("zookeeper*/version-2/snapshot.*"), key=lambda path: path.stat().st_mtime)
    return max((path.stat().st_size for path in found), default=0) / 1e6
