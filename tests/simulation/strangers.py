"""More faults of a hostile world: what other programs leave in the tree, and what servers and threads may do.

Nodes of others stay until the end of the run: nothing of ours may wait for an operator to remove them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation import shards
from tests.simulation.agent import AgentHost
from tests.simulation.cluster import Cluster
from tests.simulation.refusing import Refusing
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refusal, SetContent, Sync
from zkrebalancer.protocol.shards import BARRIER, ShardHost, encode_host

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
NUMBERS = (
    b"",
    b"{}",
    b"\xff",
    b"null",
    b"9" * 5_000,
    b'{"version":1,"shards":0,"first_epoch":0}',
    b'{"version":1,"shards":1000000,"first_epoch":0}',
)
PLACES = ("given", "incarnations", "quarantine", "channel", "ids", "owners", "deleted_offsets", "history", "generation")
EMPTY_PLACES = ("evicted", "static")  # deleted only while empty: no other node has what their records say
STARVED_US = (1_000, 300_000)  # after the link is whole again
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
    place = draw.choice((*PLACES, *EMPTY_PLACES))
    path = f"{paths.group(target.group)}/{place}"
    below = [each for each in cluster.ensemble.zk.nodes if each == path or each.startswith(path + "/")]
    if (place in EMPTY_PLACES and len(below) > 1) or _would_end_members(cluster, target.group, place):
        return
    cluster.schedule.tell("FAULT", f"{path} and {len(below) - 1} nodes below it are deleted")
    cluster.write(*map(Delete, sorted(below, reverse=True)))
    if draw.random() < 0.5 and not path.endswith("generation"):
        cluster.schedule.after(draw.randrange(*AGAIN_US), cluster.write, Create(path))


def _would_end_members(cluster: Cluster, group: str, place: str) -> bool:
    """Whether members would have neither a registration nor a record: then their sessions count as over."""
    other = {"ids": paths.owners, "owners": paths.ids}.get(place)
    children = cluster.ensemble.zk.children
    return other is not None and not set(children(f"{paths.group(group)}/{place}")) <= set(children(other(group)))


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


def _foreign_number(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Replace the number of shards by other bytes, or write it as it is; or delete what keeps former releases out.

    Not both: leaders of several shards would lead beside that of one.
    """
    node = cluster.ensemble.zk.nodes.get(paths.SHARDS)
    count = len(shards.present(cluster.ensemble))
    if node is None or shards.is_damaged(cluster.ensemble) or shards.has_barrier(cluster.ensemble) != (count > 1):
        return
    if count > 1 and draw.random() < 0.2:
        cluster.schedule.tell("FAULT", f"{BARRIER} is deleted")
        cluster.write(Delete(BARRIER))
        return
    content = draw.choice((node.content, *NUMBERS))
    cluster.schedule.tell("FAULT", f"{paths.SHARDS} becomes {content[:40]!r}")
    cluster.write(SetContent(paths.SHARDS, content))


def _foreign_hosts(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Delete, damage, replace or forge nodes of hosts, or delete their folder, which is sometimes made again, empty."""
    zk, folder = cluster.ensemble.zk, paths.SHARD_HOSTS
    found = [f"{folder}/{name}" for name in zk.children(folder)]
    what = draw.choice(("all", "delete", "damage", "replace", "forge"))
    cluster.schedule.tell("FAULT", f"another program changes {folder}: {what}")
    if what == "all":
        cluster.write(*map(Delete, found), Delete(folder))
        if draw.random() < 0.5:
            cluster.schedule.after(draw.randrange(*AGAIN_US), cluster.write, Create(folder))
    elif what == "forge":
        name = draw.choice((*NAMES, "1-0", "1000-0"))
        cluster.write(Create(f"{folder}/{name}", draw.choice((*CONTENTS, encode_host(ShardHost(1_000, "forged", 9))))))
    elif found:
        path = draw.choice(found)
        again = Create(path, zk.nodes[path].content)  # of no session
        some: dict[str, list[Operation]] = {
            "delete": [Delete(path)],
            "damage": [SetContent(path, b"?")],
            "replace": [Delete(path), again],
        }
        cluster.write(*some[what])


def _starve_agent(cluster: Cluster, draw: Random, target: Target) -> None:
    """Cut an agent off until its session is over; its machine thread hears of it when its client has the next one."""
    agent = target.agent
    if agent is not None and agent.connection is not None:
        away_us = agent.connection.timeout_ms * 1_000 + draw.randrange(1_000_000)
        cluster.schedule.tell("FAULT", f"{agent.name} is cut off, and its machine thread starves")
        agent.connection.cut_link(away_us)
        agent.starve(away_us + draw.randrange(*STARVED_US))


STRANGE: dict[str, Do] = {
    "foreign_node": _foreign_node,
    "rewrite_node": _rewrite_node,
    "delete_place": _delete_place,
    "refuse_sync": _refuse_sync,
    "foreign_leader": _foreign_leader,
    "limit_sessions": _limit_sessions,
    "foreign_number": _foreign_number,
    "foreign_hosts": _foreign_hosts,
    "starve_agent": _starve_agent,
}
