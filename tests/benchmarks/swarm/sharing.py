"""A swarm whose coordinators share shards of groups: the beginning, and the death of one of them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from tests.benchmarks.swarm.lab import Coordinator, SwarmLab
from tests.benchmarks.swarm.members import wait_until
from tests.benchmarks.swarm.player import group_name
from zkrebalancer.observe import inspection
from zkrebalancer.operations import change_shards
from zkrebalancer.runtime.zk import BlockingZk


def share(lab: SwarmLab, shards: int, deadline_s: float) -> None:
    """Set the number of shards, and wait until each coordinator leads its share."""
    with BlockingZk(lab.zookeeper) as zk:
        change_shards.change(zk, shards)
    lab.shards = shards
    wait_shared(lab, deadline_s)


def wait_shared(lab: SwarmLab, deadline_s: float) -> None:
    """Wait until each coordinator leads as many shards as the others, one more at most."""

    def are_shared() -> bool:
        counts = [one.seen().shards_led for one in lab.running]
        return sum(counts) == lab.shards and max(counts) - min(counts) <= 1

    wait_until(are_shared, deadline_s, "shards that are shared")


@dataclass(slots=True)
class Death:
    """The death of a coordinator, and what members notice of it: one that joins its group, some that join others."""

    lab: SwarmLab
    coordinator: Coordinator
    groups: int
    joins: int
    noticed: dict[str, float] = field(default_factory=dict)

    def happen(self, deadline_s: float) -> None:
        """Kill it, and wait until others lead its shards and have read its groups."""
        own, others = self._groups_by_leader()
        *_, player = self.lab.players
        its = next(group for group in own if group in player.cast.groups)
        of_others = next(group for group in others if group in self.lab.players[0].cast.groups)
        began_s = time.monotonic()
        self.coordinator.program.kill()
        player.begin("join", its)
        found = [self.lab.players[0].order("join", of_others) for _ in range(self.joins)]
        with BlockingZk(self.lab.zookeeper) as zk:
            wait_until(lambda: self._has_heirs(zk), deadline_s, "leaders of all shards")
        led_s = time.monotonic() - began_s
        joined = player.answer()
        self.lab.wait_adopted(self.groups, deadline_s)
        times = [one["join_ms"] for one in found]
        self.noticed = {
            "groups": len(own),
            "join of one of them ms": round(joined["join_ms"], 1),
            "join of another group ms": round(statistics.median(times), 1),
            "longest": round(max(times), 1),
            "all shards led s": round(led_s, 1),
            "all groups read s": round(time.monotonic() - began_s, 1),
        }

    @property
    def _broker_id(self) -> int:
        return int(self.coordinator.program.name.rpartition("-")[2])

    def _has_heirs(self, zk: BlockingZk) -> bool:
        leaders = inspection.read_leaders(zk, inspection.read_shards(zk))
        return all(leader is not None and leader.brokerid != self._broker_id for leader in leaders)

    def _groups_by_leader(self) -> tuple[list[int], list[int]]:
        """Return the groups that it leads, and all others."""
        with BlockingZk(self.lab.zookeeper) as zk:
            shards = inspection.read_shards(zk)
            leaders = inspection.read_leaders(zk, shards)
        pairs = zip(shards, leaders, strict=True)
        mine = [shard for shard, leader in pairs if leader is not None and leader.brokerid == self._broker_id]
        own = [n for n in range(self.groups) if any(shard.has(group_name(n)) for shard in mine)]
        return own, sorted(set(range(self.groups)) - set(own))
