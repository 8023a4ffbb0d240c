"""The end of a run: after the faults, everything has to settle within a limit, with nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.agent import AgentHost
from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.faults import freeze, thaw
from tests.simulation.hostile import make_whole
from tests.simulation.plan import GROUPS
from tests.simulation.promises import BrokenPromiseError
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Delete, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import decode
from zkrebalancer.rebalance.group import REST
from zkrebalancer.rebalance.states import GroupState

SETTLE_LIMIT_US = 150_000_000  # the longest lease (of an unreadable member), a pause of starts, limits, back-offs
RECONCILED_LIMIT_US = 320_000_000
MISSED_LIMIT_US = RECONCILED_LIMIT_US + SETTLE_LIMIT_US  # where a watch did not tell of a change
LOOK_US = 250_000
EVICTED_US = 8_000_000  # the time limit of a command and a lease
STANDING_TIMERS = {"reconcile"}


def calm_down(cluster: Cluster) -> None:
    """End all faults, and wait until everything has settled.

    Raises:
        BrokenPromiseError: not within SETTLE_LIMIT_US.

    """
    cluster.schedule.tell("CALM", "the faults are over")
    make_whole(cluster)
    cluster.stop_producing()
    cluster.brokers.down_until_us = 0
    for agent in cluster.living_agents():
        thaw(agent)
    for process in cluster.living_coordinators():
        thaw(process)
    cluster.run_until_true(lambda: next(_stuck(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    for application in cluster.applications.values():
        application.unblock()
    for group in GROUPS:
        content = cluster.ensemble.zk.nodes[paths.group(group)].content
        settings = decode(content)
        if content != cluster.abandoned.get(group) and (
            settings.frozen
            or settings.starts_paused
            or settings.strategy != "sticky"
            or settings.rebalance_timeout_ms < 400
        ):
            cluster.write(SetContent(paths.group(group), cluster.settings(group, SETTINGS[0])))
        if all(cluster.applications[agent.name].wants_to_close for agent in cluster.living_agents(group)):
            cluster.add_agent(group)
    if cluster.ensemble.zk.withheld:
        cluster.run_until_true(lambda: next(problems(cluster), None), MISSED_LIMIT_US, LOOK_US)
    # An operator removed a registration that no leader had seen: only the reconciliation finds that.
    cluster.run_until_true(lambda: next(_unregistered(cluster), None), RECONCILED_LIMIT_US, LOOK_US)
    cluster.run_until_true(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    if next(_leftovers(cluster), None) is not None:  # only the reconciliation finds members that came and went unseen
        cluster.run_until_true(lambda: next(_leftovers(cluster), None), RECONCILED_LIMIT_US, 10 * LOOK_US)
        cluster.run_until_true(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)


def _stuck(cluster: Cluster) -> Iterator[str]:
    """Yield members whose applications have not polled for too long."""
    for agent in cluster.living_agents():
        away_since_ms, limit_ms = agent.shared.away_since_ms, agent.settings.max_poll_interval_ms
        away_ms = 0 if away_since_ms is None else agent.clock_us() // 1_000 - away_since_ms
        if cluster.applications[agent.name].blocked and agent.consumer is not None and away_ms >= limit_ms:
            yield f"{agent.name} has not polled for {away_ms} ms, and is still a member"


def _unregistered(cluster: Cluster) -> Iterator[str]:
    for group in GROUPS:
        for consumer in cluster.ensemble.zk.children(paths.owners(group)):
            if paths.ids(group, consumer) not in cluster.ensemble.zk.nodes:
                yield f"group {group}: {consumer} is not registered"


def problems(cluster: Cluster) -> Iterator[str]:
    """Yield what is wrong."""
    leaders = [process for process in cluster.living_coordinators() if process.machine.leadership is not None]
    if len(leaders) != 1:
        yield f"{len(leaders)} coordinators lead"
        return
    for group in GROUPS:
        state = leaders[0].machine.groups[group].state if group in leaders[0].machine.groups else GroupState.LOADING
        if state not in REST:
            yield f"group {group} is {state.value}"
        yield from _assignment_problems(cluster, group)
        if cluster.ensemble.zk.children(paths.evicted(group)):
            yield f"group {group}: a tombstone is left"
        for consumer in cluster.ensemble.zk.children(paths.owners(group)):
            if cluster.ensemble.zk.children(paths.channel(group, consumer)):
                yield f"group {group}: {consumer} has a command left"
        yield from _record_problems(cluster, group)


def read_shares(cluster: Cluster, group: str) -> dict[str, set[TopicPartition]]:
    """Return the stored ownership; an unreadable record is omitted, and its consumer will be evicted."""
    zk = cluster.ensemble.zk
    owned: dict[str, set[TopicPartition]] = {}
    for name in zk.children(paths.owners(group)):
        try:
            owned[name] = set(ownership.decode_owners(zk.nodes[paths.owners(group, name)].content).partitions)
        except NodeContentError:
            owned[name] = set()
    return owned


def _assignment_problems(cluster: Cluster, group: str) -> Iterator[str]:
    agents = cluster.living_agents(group)
    names = {agent.consumer for agent in agents}
    stored = cluster.ensemble.zk.children(paths.owners(group))
    if None in names or names != set(stored):
        yield f"group {group}: registered are {stored}, alive {sorted(map(str, names))}"
        return
    instances = [agent.settings.instance_id for agent in agents if agent.settings.instance_id is not None]
    if len(instances) != len(set(instances)):
        yield f"group {group}: there are two of one instance: {sorted(instances)}"
    owned = read_shares(cluster, group)
    wanted = sorted(cluster.brokers.logs)
    if sorted(partition for partitions in owned.values() for partition in partitions) != wanted:
        yield f"group {group}: owned is {owned}, wanted {wanted}"
    counts = [len(partitions) for partitions in owned.values()]
    if counts and max(counts) - min(counts) > 1:
        yield f"group {group}: not balanced, {counts}"
    for agent in agents:
        if set(agent.shared.buffer.emitting()) != owned[agent.consumer or ""]:
            yield f"{agent.name} emits {agent.shared.buffer.emitting()}, and owns {owned[agent.consumer or '']}"
        if agent.emits_until_us() <= agent.clock_us():
            yield f"{agent.name} has no lease"


def _record_problems(cluster: Cluster, group: str) -> Iterator[str]:
    if cluster.brokers.stopped_us is None:
        return  # a slow reader may never be at the end at the moment of a check
    for partition, log in sorted(cluster.brokers.logs.items()):
        finished = cluster.emission.finished.get((group, partition, log.incarnation), 0)
        if finished != cluster.brokers.end(partition):
            yield f"group {group}: of {partition} {finished} are finished, {cluster.brokers.end(partition)} produced"


def _leftovers(cluster: Cluster) -> Iterator[str]:
    """Yield nodes that should have been removed."""
    for group in GROUPS:
        dead = set(cluster.ensemble.zk.children(paths.channel(group))) - set(read_shares(cluster, group))
        if dead:
            yield f"group {group}: channels of the dead are left: {sorted(dead)}"
    for process in cluster.living_coordinators():
        timers = {str(name) for owner, name in process.machine.scheduler.due if owner in GROUPS}
        if timers - STANDING_TIMERS:
            yield f"{process.name} still waits for {sorted(timers)}"


def one_bad_agent(cluster: Cluster) -> None:
    """Block one agent, and check that only its partitions are late.

    Raises:
        BrokenPromiseError: another one had to wait for it.

    """
    cluster.run_until_true(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    bad = cluster.living_agents("inc")[0]
    _spoil(cluster, bad)
    for group in GROUPS:
        cluster.add_agent(group)
    cluster.run_until(cluster.schedule.now_us + 1_000_000)  # less than every time limit for a command
    for problem in _assignment_problems(cluster, "eag"):
        raise BrokenPromiseError("isolation", f"{bad.name} of the other group hangs, and {problem}")
    owned = read_shares(cluster, "inc")
    for partition in cluster.brokers.logs:
        holders = [name for name, partitions in owned.items() if partition in partitions]
        if not holders and partition not in owned.get(bad.consumer or "", ()):
            raise BrokenPromiseError("isolation", f"{bad.name} hangs, and {partition} has no owner")
    counts = [len(partitions) for name, partitions in owned.items() if name != bad.consumer]
    if max(counts) - min(counts) > 1:
        raise BrokenPromiseError("isolation", f"{bad.name} hangs, and the others have not moved on: {owned}")
    for name in owned.keys() - {bad.consumer}:
        if cluster.ensemble.zk.children(paths.channel("inc", name)):
            raise BrokenPromiseError("isolation", f"{bad.name} hangs, and {name} cannot answer")
    cluster.run_until(cluster.schedule.now_us + EVICTED_US)
    channel = paths.channel("inc", bad.consumer or "")
    if channel in cluster.ensemble.zk.nodes and cluster.ensemble.zk.children(channel):
        raise BrokenPromiseError("isolation", f"{bad.name} hangs for long, and its answer is still waited for")
    held = {partition for partitions in read_shares(cluster, "inc").values() for partition in partitions}
    if held != cluster.brokers.logs.keys():
        raise BrokenPromiseError("isolation", f"{bad.name} hangs for long, and {held} are owned")


def _spoil(cluster: Cluster, bad: AgentHost) -> None:
    if cluster.random.random() < 0.5:
        cluster.schedule.tell("FAULT", f"{bad.name} has an application that hangs")
        cluster.applications[bad.name].blocked = True
    else:
        cluster.schedule.tell("FAULT", f"{bad.name} is frozen, and its channel is deleted")
        freeze(bad)
        cluster.write(Delete(paths.channel("inc", bad.consumer or "")))
