"""Rights that are taken away in a hostile world, and often given back: no watch event tells of either."""

from __future__ import annotations

from random import Random

from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.strangers import Do, Target
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import SetContent

REFUSED_US = (200_000, 8_000_000)
FAILING_US = (100_000, 3_000_000)
STARTED_US = 500_000  # until a static member has got its share


def provoke(cluster: Cluster, draw: Random, group: str) -> None:
    """Cause reads or writes: otherwise a refusal has no effect."""
    if draw.random() < 0.5:
        cluster.add_agent(group)
    if draw.random() < 0.7:
        _read_again(cluster)


def _read_again(cluster: Cluster) -> None:
    for process in cluster.living_coordinators():
        process.connection.break_off()


def _deny(cluster: Cluster, draw: Random, group: str, identity: str, path: str, right: Right) -> None:
    """Take a right away, and often give it back while the run goes on; no watch event tells of either."""
    cluster.schedule.tell("FAULT", f"{identity} may not {right.value} {path}")
    denied = cluster.ensemble.zk.denied
    denied.add((identity, path, right))
    if identity == "coordinator":
        cluster.ensemble.refusing_groups.add(group)
        if (path, right) == (paths.given(group), Right.READ):
            cluster.tree.doubted.add(group)
    provoke(cluster, draw, group)
    if draw.random() < 0.5:
        cluster.schedule.after(draw.randrange(*REFUSED_US), denied.discard, (identity, path, right))


def _deny_topic(cluster: Cluster, draw: Random, target: Target) -> None:
    _deny(cluster, draw, target.group, "coordinator", paths.topic(target.topic), Right.READ)


def _deny_group(cluster: Cluster, draw: Random, target: Target) -> None:
    name = target.group
    path, right = draw.choice(
        [
            (paths.group(name), Right.READ),
            (paths.generation(name), Right.READ),
            (paths.generation(name), Right.WRITE),
            (paths.ids(name), Right.READ),
            (paths.owners(name), Right.READ),
            (paths.channel(name), Right.READ),
            (paths.channel(name), Right.DELETE),
            (paths.offsets(name), Right.READ),
            (paths.offsets(name), Right.CREATE),
            (paths.static(name), Right.READ),
            (paths.static(name), Right.CREATE),
            (paths.static(name), Right.DELETE),
            (paths.evicted(name), Right.READ),
            (paths.evicted(name), Right.CREATE),
            (paths.evicted(name), Right.DELETE),
            (paths.offsets(name, target.topic), Right.WRITE),
            (paths.incarnations(name, target.topic), Right.WRITE),
            (paths.static(name, "i1"), Right.WRITE),
            *_rights_at_a_member(cluster, target),
        ]
    )
    _deny(cluster, draw, name, "coordinator", path, right)


def _rights_at_a_member(cluster: Cluster, target: Target) -> list[tuple[str, Right]]:
    consumer = target.agent.consumer if target.agent is not None else None
    if consumer is None:
        return []
    channel = paths.channel(target.group, consumer)
    commands = [f"{channel}/{node}" for node in cluster.ensemble.zk.children(channel)]
    return [
        *((path, Right.READ) for path in commands * 6),
        (paths.ids(target.group, consumer), Right.READ),
        (paths.owners(target.group, consumer), Right.READ),
        (paths.channel(target.group, consumer), Right.READ),
        *[(paths.channel(target.group, consumer), Right.CREATE)] * 6,
        (paths.channel(target.group, consumer), Right.DELETE),
        *[(paths.given(target.group, consumer), Right.WRITE)] * 3,
    ]


def _deny_agents(cluster: Cluster, draw: Random, target: Target) -> None:
    name = target.group
    path, right = draw.choice(
        [
            (paths.ids(name), Right.CREATE),
            (paths.owners(name), Right.CREATE),
            (paths.channel(name), Right.CREATE),
            (paths.offsets(name, target.topic), Right.CREATE),
            (paths.offsets(name, target.topic), Right.READ),
        ]
    )
    _deny(cluster, draw, name, name, path, right)


def _deny_place(cluster: Cluster, draw: Random, target: Target) -> None:
    """Deny what `deny_group` leaves out: nodes of which a group may do without."""
    name, topic = target.group, target.topic
    consumer = target.agent.consumer if target.agent is not None else None
    path, right = draw.choice(
        [
            (paths.group(name), Right.WRITE),
            (paths.group(name), Right.CREATE),
            (paths.group(name), Right.DELETE),
            *((path, right) for path in _places(name) for right in Right),
            (paths.given(name, consumer or "gone"), Right.READ),
            (paths.incarnations(name, topic), Right.READ),
            (paths.offsets(name, topic), Right.READ),
            (paths.offsets(name, topic), Right.DELETE),
            (paths.static(name, "i1"), Right.READ),
        ]
    )
    _deny(cluster, draw, name, "coordinator", path, right)


def _hide_repair(cluster: Cluster, draw: Random, target: Target) -> None:
    """Let the plans of a group fail, and hide for a moment that its settings are repaired: no watch stands after it."""
    group = target.group
    cluster.schedule.tell("FAULT", f"the plans of {group} fail, and nobody sees how its settings are repaired")
    cluster.write(SetContent(paths.group(group), cluster.settings(group, f'{SETTINGS[0]},"strategy":"nonsense"')))
    cluster.schedule.after(draw.randrange(*FAILING_US), _repair_unseen, cluster, group, draw.randrange(*REFUSED_US))


def _repair_unseen(cluster: Cluster, group: str, refused_us: int) -> None:
    denied = "coordinator", paths.group(group), Right.READ
    cluster.ensemble.zk.denied.add(denied)
    cluster.ensemble.refusing_groups.add(group)
    cluster.write(SetContent(paths.group(group), cluster.settings(group, SETTINGS[0])))
    cluster.schedule.after(refused_us, cluster.ensemble.zk.denied.discard, denied)


def _deny_mark(cluster: Cluster, draw: Random, target: Target) -> None:
    """Hide what the offsets of one topic say of it."""
    path_of = draw.choice([paths.offsets, paths.incarnations])
    _deny(cluster, draw, target.group, "coordinator", path_of(target.group, target.topic), Right.READ)


def _deny_member(cluster: Cluster, draw: Random, target: Target) -> None:
    """Hide what one member was given, or what a static one had."""
    consumer = target.agent.consumer if target.agent is not None else None
    if consumer is not None and draw.random() < 0.6:
        _deny(cluster, draw, target.group, "coordinator", paths.given(target.group, consumer), Right.READ)
        return
    instance = draw.choice(["i1", "i2"])  # the latter has a grace of its own
    cluster.add_agent(target.group, instance)
    _deny(cluster, draw, target.group, "coordinator", paths.static(target.group, instance), Right.READ)
    cluster.schedule.after(STARTED_US, _read_again, cluster)


def _places(group: str) -> list[str]:
    return [
        paths.given(group),
        paths.incarnations(group),
        paths.history(group),
        paths.quarantine(group),
        paths.deleted_offsets(group),
        paths.lives(group),
        paths.served(group),
    ]


DENIALS: dict[str, Do] = {
    "deny_topic": _deny_topic,
    "deny_group": _deny_group,
    "deny_place": _deny_place,
    "deny_mark": _deny_mark,
    "deny_member": _deny_member,
    "deny_agents": _deny_agents,
    "hide_repair": _hide_repair,
}
