"""Two rare faults at almost the same time, in a hostile world."""

from __future__ import annotations

from random import Random

from tests.simulation.cluster import Cluster
from tests.simulation.strangers import Do, Target

RARE = (
    "recreate_topic",
    "grow_topic",
    "delete_registration",
    "drop_coordinator_connection",
    "kill_coordinator",
    "kill_agent",
    "configure",
    "close_agent",
)
DENIALS = ("deny_group", "deny_place")
RARE_BESIDE_DENIALS = (
    *RARE,
    "expire_coordinator",
    "lose_coordinator_reply",
    "break_while_moving",
    "depose",
    "restart_zookeeper",
    "delete_channel",
    *DENIALS,
    "deny_agents",
    "refuse_group",
    "refuse_sync",
    "garble_static",
    "recreate_group",
    "forge_claim",
    "delete_owner",
    "steal_command",
    "restore_member",
)
TOGETHER_US = 30_000


def _pair(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Cause two rare faults."""
    for kind in draw.sample(RARE, 2):
        cluster.schedule.after(draw.randrange(TOGETHER_US), cluster.perform, kind, draw.getrandbits(32))


def _deny_pair(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Take the coordinator a right at a group's nodes, and cause another fault."""
    for kind in (draw.choice(DENIALS), draw.choice(RARE_BESIDE_DENIALS)):
        cluster.schedule.after(draw.randrange(TOGETHER_US), cluster.perform, kind, draw.getrandbits(32))


PAIRS: dict[str, Do] = {"pair": _pair, "deny_pair": _deny_pair}
