"""The faults of a hostile world: refused calls, replaced nodes, false claims.

Each kind hits one topic, group or member (`Target`), or all; `plan.HOSTILE_WEIGHTS` has their frequencies.
`repair` undoes what an operator would repair; everything else has to recover without help.
"""

from __future__ import annotations

import json
from random import Random

from tests.simulation import shards
from tests.simulation.backups import BACKUPS
from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.commands import COMMANDS
from tests.simulation.denials import DENIALS, REFUSED_US, provoke
from tests.simulation.invariants import ROGUE
from tests.simulation.pairs import PAIRS
from tests.simulation.plan import GROUPS, HOSTILE_WEIGHTS
from tests.simulation.refusing import Refusing
from tests.simulation.strangers import STRANGE, Do, Target
from zkrebalancer.protocol import cluster_nodes, ownership, paths, registration
from zkrebalancer.protocol.calls import Check, Create, Delete, Get, ListChildren, Multi, Operation, Refusal, SetContent
from zkrebalancer.protocol.fields import write_document
from zkrebalancer.protocol.ownership import OwnersRecord

REFUSALS = (
    Refusal.NO_AUTH,
    Refusal.QUOTA_EXCEEDED,
    Refusal.MARSHALLING,
    Refusal.UNIMPLEMENTED,
    Refusal.NOT_ALLOWED,
)
JUNK = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[" * 20_000,
    b"9" * 5_000,
    b'{"version":' + b"9" * 5_000 + b"}",
    b'{"version":2}',
    b'{"version":0}',
    b'{"version":1,"partitions":{},"threads":{},"subscription":{}}',
    b'{"version":1,"x":"' + b"x" * 200_000 + b'"}',
)
AGAIN_US = (0, 800_000)  # until deleted nodes are created again
COPIED_US = 5_000_000  # longer than any session, so that no partition is owned when the copy comes into use
ROGUE_SESSION_MS = 4_000
HUGE = 1_000_000
FORGED_GENERATIONS = (0, 1_000, cluster_nodes.MAX_COUNTER // 2, cluster_nodes.MAX_COUNTER, 2**63 - 1)
CUT_US = 900_000  # shorter than any lease
MAX_REQUEST_BYTES = 2_000
NOTHING = ownership.encode_owners(OwnersRecord(0, None, {}))


def perform_hostile(cluster: Cluster, kind: str, pick: int, target: Target | None = None) -> None:
    """Cause one fault, to `target` or to a random one."""
    draw = Random(pick)
    HOSTILE[kind](cluster, draw, target or _random_target(cluster, draw))


def _random_target(cluster: Cluster, draw: Random) -> Target:
    group = draw.choice(list(GROUPS))
    agents = [agent for agent in cluster.living_agents(group) if agent.consumer is not None]
    return Target(group, draw.choice(list(cluster.incarnations)), draw.choice(agents) if agents else None)


# Refusals -------------------------------------------------------------------------------------------------------------


def _refuse_group(cluster: Cluster, draw: Random, target: Target) -> None:
    """Refuse one kind of call below a group's node for a while, as a quota, a bug or an old server does."""
    kinds: tuple[type[Operation | Get | ListChildren], ...] = draw.choice(
        [(Create,), (SetContent,), (Delete,), (Check,), (Get,), (ListChildren,), (Create, SetContent)]
    )
    path = draw.choice([paths.group(target.group), *(f"{paths.group(target.group)}/{c}" for c in paths.GROUP_CHILDREN)])
    refusal, is_whole = draw.choice(REFUSALS), draw.random() < 0.3
    until_us = cluster.schedule.now_us + draw.randrange(*REFUSED_US)
    cluster.schedule.tell("FAULT", f"{[kind.__name__ for kind in kinds]} below {path} are refused: {refusal.value}")
    cluster.ensemble.refusing_groups.add(target.group)
    if path == paths.group(target.group) and (Get in kinds or ListChildren in kinds):
        cluster.tree.doubted.add(target.group)  # what was given may not be read
    for process in cluster.living_coordinators():
        process.connection.refusing = Refusing(kinds, path, refusal, until_us, is_whole)
    provoke(cluster, draw, target.group)


# Other bytes ----------------------------------------------------------------------------------------------------------


def _garble(cluster: Cluster, path: str, junk: bytes) -> None:
    node = cluster.ensemble.zk.nodes.get(path)
    if node is None:
        return
    cluster.schedule.tell("FAULT", f"{path} becomes {junk[:40]!r}")
    whole, junk_before = cluster.garbled.get(path, (node.content, None))
    cluster.garbled[path] = (whole if node.content == junk_before else node.content, junk)
    cluster.write(SetContent(path, junk))


def _garble_topic(cluster: Cluster, draw: Random, target: Target) -> None:
    _garble(cluster, paths.topic(target.topic), draw.choice(JUNK))


def _garble_settings(cluster: Cluster, draw: Random, target: Target) -> None:
    _garble(cluster, paths.group(target.group), draw.choice(JUNK[1:-2]))
    provoke(cluster, draw, target.group)


def _garble_generation(cluster: Cluster, draw: Random, target: Target) -> None:
    _garble(cluster, paths.generation(target.group), draw.choice(JUNK))
    provoke(cluster, draw, target.group)


def _garble_epoch(cluster: Cluster, draw: Random, _target: Target) -> None:
    _garble(cluster, paths.COORDINATOR_EPOCH, draw.choice(JUNK))


def _garble_static(cluster: Cluster, draw: Random, target: Target) -> None:
    """Damage the node of a static member that then returns, so that the leader has to rewrite it."""
    path, junk = paths.static(target.group, "i1"), draw.choice(JUNK)
    if path in cluster.ensemble.zk.nodes:
        _garble(cluster, path, junk)
    else:
        cluster.write(Create(path, junk))
    cluster.add_agent(target.group, "i1")
    provoke(cluster, draw, target.group)


def _garble_mark(cluster: Cluster, draw: Random, target: Target) -> None:
    for path in (paths.offsets(target.group, target.topic), paths.history(target.group)):
        _garble(cluster, path, draw.choice(JUNK))
    provoke(cluster, draw, target.group)


def _garble_registration(cluster: Cluster, draw: Random, target: Target) -> None:
    if target.agent is not None and target.agent.consumer is not None:
        _garble(cluster, paths.ids(target.group, target.agent.consumer), draw.choice(JUNK))


def _garble_offset(cluster: Cluster, draw: Random, target: Target) -> None:
    offsets = paths.offsets(target.group, target.topic)
    if stored := cluster.ensemble.zk.children(offsets):
        _garble(cluster, f"{offsets}/{draw.choice(stored)}", draw.choice(JUNK))


# Topics, trees --------------------------------------------------------------------------------------------------------


def _give_topic_id(cluster: Cluster, draw: Random, target: Target) -> None:
    """Add a topic's id, as a new Kafka version does, or remove it, as an old tool does."""
    nodes = cluster.ensemble.zk.nodes
    node = nodes.get(paths.topic(target.topic))
    if cluster.is_restoring or paths.RESTORE in nodes:
        return  # the file knows the topic by its present id
    if node is not None and cluster.is_known_as(target.topic, f"czxid-{node.created_zxid}"):
        cluster.rename_topic(target.topic, has_id=not cluster.topic_ids[target.topic] or draw.random() < 0.3)
        cluster.schedule.tell("FAULT", f"{target.topic} has the id {cluster.topic_ids[target.topic]!r}")


def _copy_tree(cluster: Cluster, draw: Random, _target: Target) -> None:
    """Move the tree to another ensemble, which recreates every node and knows no session."""
    ensemble = cluster.ensemble
    if not ensemble.down and ensemble.cut_off is None:
        ensemble.restart(COPIED_US)
        cluster.schedule.after(COPIED_US - 1, _copied, cluster, draw.random() < 0.7)


def _copied(cluster: Cluster, with_ephemerals: bool) -> None:
    """Use the copy; `with_ephemerals`: the tool copied ephemeral nodes too, as persistent ones."""
    if cluster.is_known_by_id():
        zk = cluster.ensemble.zk
        nodes = [(path, node) for path, node in sorted(zk.nodes.items()) if path.startswith(paths.GROUPS)]
        ephemeral = [Create(path, node.content) for path, node in nodes if node.ephemeral_owner]
        for session in zk.sessions.values():
            zk.end(session)
        zk.copy_to_another_ensemble()
        if with_ephemerals:
            cluster.write(*ephemeral)
        cluster.learn_names()


def _recreate_topics(cluster: Cluster, draw: Random, _target: Target) -> None:
    if cluster.is_known_by_id() and paths.BROKER_TOPICS in cluster.ensemble.zk.nodes:
        _delete_all(cluster, paths.BROKER_TOPICS)
        cluster.schedule.after(draw.randrange(*AGAIN_US), cluster.write_topics)


def _delete_all(cluster: Cluster, path: str) -> None:
    cluster.schedule.tell("FAULT", f"{path} and everything below it is deleted")
    found = sorted((p for p in cluster.ensemble.zk.nodes if p == path or p.startswith(path + "/")), reverse=True)
    for each in found:
        cluster.write(Delete(each))


def _recreate_group(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete a group in use and recreate it."""
    node = cluster.ensemble.zk.nodes.get(paths.group(target.group))
    if node is not None:
        _delete_all(cluster, paths.group(target.group))
        again = Create(paths.group(target.group), node.content)
        cluster.schedule.after(draw.randrange(*AGAIN_US), cluster.write, again)


# Members --------------------------------------------------------------------------------------------------------------


def _forge_claim(cluster: Cluster, draw: Random, target: Target) -> None:
    """Add a member that claims all partitions although it was given none, each time in another generation."""
    claims = dict.fromkeys(sorted(cluster.brokers.logs), 0)
    generation = FORGED_GENERATIONS[len(cluster.rogues) % len(FORGED_GENERATIONS)]
    record = ownership.encode_owners(OwnersRecord(generation, None, claims))
    _add_rogue(cluster, draw, target.group, len(claims), record)


def _huge_claim(cluster: Cluster, draw: Random, target: Target) -> None:
    """Add a member that claims a million partitions; written as one range, because encoding them takes seconds."""
    document = json.loads(ownership.encode_owners(OwnersRecord(0, None, {(target.topic, 0): 0})))
    document["threads"]["0"][target.topic] = [[0, HUGE - 1]]
    _add_rogue(cluster, draw, target.group, HUGE, write_document(document))


def _add_rogue(cluster: Cluster, draw: Random, group: str, count: int, record: bytes) -> None:
    """Register a member that acknowledges nothing, and subscribes to a topic that does not exist."""
    zk = cluster.ensemble.zk
    session = zk.open(ROGUE_SESSION_MS, zk.servers[0])
    session.inbox.clear()
    cluster.rogues.append(session)
    name = f"{ROGUE}{session.session_id}"
    cluster.schedule.tell("FAULT", f"{name} of {group} claims {count} partitions")
    about = registration.Registration("static", {"nothing": 1}, "", "rogue", "rogue", ROGUE_SESSION_MS)
    is_at_once = draw.random() < 0.5
    zk.perform(
        Multi(
            (
                Create(paths.channel(group, name)),
                Create(paths.ids(group, name), registration.encode(about), ephemeral=True),
                Create(paths.owners(group, name), record if is_at_once else NOTHING, ephemeral=True),
            )
        ),
        session.session_id,
    )
    if not is_at_once:
        cluster.schedule.after(draw.randrange(200_000), cluster.write, SetContent(paths.owners(group, name), record))


def _delete_owner(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete the ownership record of a registered member, mostly of one that is cut off and notices late."""
    if target.agent is None or target.agent.consumer is None:
        return
    if paths.ids(target.group, target.agent.consumer) in cluster.ensemble.zk.nodes:
        if draw.random() < 0.7 and target.agent.connection is not None:
            target.agent.connection.cut_link(CUT_US)
        cluster.schedule.tell("FAULT", f"the record of {target.agent.consumer} is deleted")
        cluster.write(Delete(paths.owners(target.group, target.agent.consumer)))


def _restore_member(cluster: Cluster, draw: Random, target: Target) -> None:
    """Replace a member's registration, record or both by persistent copies, which outlive its session."""
    if target.agent is None or target.agent.consumer is None:
        return
    for path_of in draw.choice([(paths.ids,), (paths.owners,), (paths.ids, paths.owners)]):
        path = path_of(target.group, target.agent.consumer)
        if path in cluster.ensemble.zk.nodes:
            cluster.schedule.tell("FAULT", f"{path} is restored from a backup")
            cluster.write(Delete(path), Create(path, cluster.ensemble.zk.nodes[path].content))
    if draw.random() < 0.5:
        target.agent.kill()


def _steal_command(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete a command; if there is none, add an agent and try once more."""
    zk, channel = cluster.ensemble.zk, paths.channel(target.group)
    pending = [f"{channel}/{name}/{node}" for name in zk.children(channel) for node in zk.children(f"{channel}/{name}")]
    if pending:
        cluster.schedule.tell("FAULT", "a command is deleted")
        cluster.write(Delete(draw.choice(pending)))
    else:
        cluster.add_agent(target.group)
        cluster.schedule.after(3_000, _steal_again, cluster, draw.getrandbits(32), target)


def _steal_again(cluster: Cluster, pick: int, target: Target) -> None:
    zk, channel = cluster.ensemble.zk, paths.channel(target.group)
    if any(zk.children(f"{channel}/{name}") for name in zk.children(channel)):
        _steal_command(cluster, Random(pick), target)


def _small_requests(cluster: Cluster, _draw: Random, _target: Target) -> None:
    """Give servers and clients a small `jute.maxbuffer` (`SMALL_REQUESTS`) for the rest of the run."""
    cluster.ensemble.zk.max_request_bytes = MAX_REQUEST_BYTES


# The coordinator itself -----------------------------------------------------------------------------------------------


def _hang_strategy(cluster: Cluster, _draw: Random, target: Target) -> None:
    cluster.hanging.add(target.group)
    cluster.add_agent(target.group)


def _break_step(cluster: Cluster, _draw: Random, target: Target) -> None:
    """Make every step of one group raise."""
    cluster.broken.add(target.group)
    cluster.add_agent(target.group)


def _abandon_reset(cluster: Cluster, _draw: Random, target: Target) -> None:
    """Kill `reset-offsets` in the middle."""
    pause = cluster.settings(target.group, '"rebalance_timeout_ms":1500,"max_rebalance_retries":1,"starts_paused":true')
    cluster.write(SetContent(paths.group(target.group), pause))
    cluster.abandoned[target.group] = pause


OTHERS = STRANGE | COMMANDS | BACKUPS | DENIALS | PAIRS
HOSTILE: dict[str, Do] = OTHERS | {kind: globals()[f"_{kind}"] for kind in HOSTILE_WEIGHTS.keys() - OTHERS.keys()}


# The end --------------------------------------------------------------------------------------------------------------


def repair(cluster: Cluster) -> None:
    """Repair what only an operator can: rights, contents, lost roots; the rest has to recover by itself."""
    zk = cluster.ensemble.zk
    zk.denied.clear()
    for connection in cluster.ensemble.connections:
        connection.refusing = None
    cluster.write(Delete(f"{paths.COORDINATOR}/below"))
    if cluster.plan.shards > 1:
        shards.mend(cluster.ensemble)
    cluster.hanging.clear()
    cluster.broken.clear()
    for group in GROUPS:
        cluster.write(Create(paths.group(group), cluster.settings(group, SETTINGS[0])))
    if paths.BROKER_TOPICS not in zk.nodes:
        cluster.write_topics()
    for path, (whole, junk) in cluster.garbled.items():
        if path in zk.nodes and zk.nodes[path].content == junk:
            cluster.write(SetContent(path, whole) if whole != junk else Delete(path))
    cluster.garbled.clear()
    for session in cluster.rogues:
        zk.end(session)
    cluster.rogues.clear()
