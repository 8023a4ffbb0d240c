"""More faults of a hostile world: what other programs leave in the tree, and what servers may do that ours never did.

Nodes of others stay until the end of the run: nothing of ours may wait for an operator to remove them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.agent import AgentHost
from tests.simulation.cluster import Cluster
from tests.simulation.refusing import Refusing
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Refusal, SetContent, Sync

NAMES = (
    " ",
    "a b",
    "ü",
    "-",
    "%2e",
    "-1",
    "007",
    "9" * 30,
    "x" * 300,
    "command-",
    "command-x",
    "command-0000000000",
    "t",
    "stranger",
)
CONTENTS = (b"", b"0", b"null", b"\xff", b'{"version":2}')
MAX_STRANGERS = 3
HAS_A_CHILD = 0.2  # share of the nodes that cannot be deleted, as another one is below them
REFUSALS = (Refusal.NO_AUTH, Refusal.UNIMPLEMENTED, Refusal.MARSHALLING)
REFUSED_US = (200_000, 8_000_000)
AGAIN_US = (0, 800_000)
PLACES = ("given", "incarnations", "quarantine", "channel", "ids", "deleted_offsets", "history", "generation")
SESSIONS_MS = ((0, 1_000), (0, 2_500), (5_000, 60_000))  # what the servers grant, at least and at most


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault hits."""

    group: str
    topic: str
    agent: AgentHost | None


Do = Callable[[Cluster, Random, Target], None]


def _foreign_node(cluster: Cluster, draw: Random, target: Target) -> None:
    """Make nodes whose names mean nothing below a node of a group, or below one of the cluster's."""
    nodes = cluster.ensemble.zk.nodes
    group = paths.group(target.group)
    of_the_cluster = (paths.GROUPS, paths.BROKER_TOPICS, paths.SERVED, paths.CONSUMERS, paths.COORDINATOR_EPOCH)
    inside = [path for path in sorted(nodes) if path == group or path.startswith(group + "/")]
    places = [path for path in inside if path.count("/") <= group.count("/") + 1]
    above = draw.choice([draw.choice(inside), draw.choice(places), draw.choice(of_the_cluster)] if inside else [""])
    for name in draw.sample(NAMES, draw.randint(1, MAX_STRANGERS)):
        path = f"{above}/{name}"
        if above and cluster.write(Create(path, draw.choice(CONTENTS))):
            cluster.schedule.tell("FAULT", f"another program makes {path[:80]!r}")
            cluster.strangers.add(path)
            if draw.random() < HAS_A_CHILD:
                cluster.write(Create(f"{path}/below"))


def _rewrite_node(cluster: Cluster, draw: Random, target: Target) -> None:
    """Write nodes with the contents that they have, as a tool that restores a tree does: only versions change."""
    group = paths.group(target.group)
    found = [(path, node) for path, node in sorted(cluster.ensemble.zk.nodes.items()) if path.startswith(group)]
    for path, node in draw.sample(found, min(len(found), draw.randint(1, 6))):
        cluster.schedule.tell("FAULT", f"{path} is written again as it is")
        cluster.write(SetContent(path, node.content))


def _delete_place(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete one of a group's folders with all that is in it; sometimes it is made again, empty."""
    path = f"{paths.group(target.group)}/{draw.choice(PLACES)}"
    below = [each for each in cluster.ensemble.zk.nodes if each == path or each.startswith(path + "/")]
    cluster.schedule.tell("FAULT", f"{path} and {len(below) - 1} nodes below it are deleted")
    cluster.write(*map(Delete, sorted(below, reverse=True)))
    if draw.random() < 0.5 and not path.endswith("generation"):
        cluster.schedule.after(draw.randrange(*AGAIN_US), cluster.write, Create(path))


def _refuse_sync(cluster: Cluster, draw: Random, target: Target) -> None:
    """Refuse every `sync` of the coordinators, or of one agent, whose connection breaks, so that it needs one."""
    until_us = cluster.schedule.now_us + draw.randrange(*REFUSED_US)
    agent = target.agent.connection if target.agent is not None else None
    leads = draw.random() < 0.6 or agent is None
    connections = [process.connection for process in cluster.living_coordinators()] if leads else [agent]
    cluster.schedule.tell("FAULT", f"every sync of {'the coordinators' if leads else 'an agent'} is refused")
    for connection in connections:
        if connection is not None:
            connection.refusing = Refusing((Sync,), "/", draw.choice(REFUSALS), until_us)
            connection.break_off()


def _foreign_leader(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Replace the leader's node by one that belongs to no session, and sometimes cannot be deleted."""
    nodes = cluster.ensemble.zk.nodes
    if nodes.get(paths.COORDINATOR) is not None and cluster.ensemble.zk.children(paths.COORDINATOR):
        return
    again = [Delete(paths.COORDINATOR)] if paths.COORDINATOR in nodes else []
    cluster.schedule.tell("FAULT", f"{paths.COORDINATOR} is made by another program")
    cluster.write(*again, Create(paths.COORDINATOR, draw.choice(CONTENTS)))
    if draw.random() < 0.3:
        cluster.write(Create(f"{paths.COORDINATOR}/below"))


def _limit_sessions(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Let the servers grant other session timeouts than asked for, from now on."""
    cluster.ensemble.sessions_ms = draw.choice(SESSIONS_MS)
    cluster.schedule.tell("FAULT", f"new sessions last {cluster.ensemble.sessions_ms} ms")


STRANGE: dict[str, Do] = {
    "foreign_node": _foreign_node,
    "rewrite_node": _rewrite_node,
    "delete_place": _delete_place,
    "refuse_sync": _refuse_sync,
    "foreign_leader": _foreign_leader,
    "limit_sessions": _limit_sessions,
}
