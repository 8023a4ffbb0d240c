"""The end of a run: after the faults, everything has to settle within a limit, with nothing left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tests.simulation import shards
from tests.simulation.agent import AgentHost
from tests.simulation.backups import unfinished
from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.faults import resume, suspend
from tests.simulation.hostile import repair
from tests.simulation.plan import GROUPS
from tests.simulation.promises import BrokenPromiseError
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import decode
from zkrebalancer.rebalance.states import REST, GroupState

SETTLE_LIMIT_US = 150_000_000  # for the longest lease (of an unreadable member), a pause of starts, back-offs
RECONCILED_LIMIT_US = 320_000_000
MISSED_LIMIT_US = RECONCILED_LIMIT_US + SETTLE_LIMIT_US  # after a change without a watch event
LOOK_US = 250_000
UNDER_WAY_US = 50_000  # the second fault of a pair, and then its change of settings, come that much later
EVICTED_US = 8_000_000  # for the time limit of a command and a lease
STANDING_TIMERS = {"reconcile", "look"}


def calm_down(cluster: Cluster) -> None:
    """End all faults, and wait until everything has settled.

    Raises:
        BrokenPromiseError: it has not settled within SETTLE_LIMIT_US, or after the next reconciliation.

    """
    cluster.run_until(cluster.schedule.now_us + UNDER_WAY_US)
    cluster.schedule.tell("CALM", "the faults are over")
    repair(cluster)
    cluster.stop_producing()
    cluster.brokers.down_until_us = 0
    for agent in cluster.living_agents():
        resume(agent)
    for process in cluster.living_coordinators():
        resume(process)
    cluster.run_until_no_problem(lambda: next(_stuck(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    cluster.run_until_no_problem(lambda: next(_running(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    cluster.run_until_no_problem(lambda: next(unfinished(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    for group in GROUPS:  # a deletion may have been the last command to end
        cluster.write(Create(paths.group(group), cluster.settings(group, SETTINGS[0])))
    for application in cluster.applications.values():
        application.unblock()
    cluster.run_until_no_problem(lambda: next(_held_back_without_owner(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    for group in GROUPS:
        content = cluster.ensemble.zk.nodes[paths.group(group)].content
        settings = decode(content)
        if content != cluster.abandoned.get(group) and (
            settings.frozen
            or settings.approve_moves_above is not None
            or (settings.starts_paused and not settings.paused_by)  # an operation's pause ends by itself
            or settings.strategy != "sticky"
            or settings.rebalance_timeout_ms < 400
        ):
            cluster.write(SetContent(paths.group(group), cluster.settings(group, SETTINGS[0])))
        if all(cluster.applications[agent.name].wants_to_close for agent in cluster.living_agents(group)):
            cluster.add_agent(group)
    if cluster.ensemble.zk.withheld or cluster.strangers:  # only the reconciliation finds them
        cluster.run_until_no_problem(lambda: next(problems(cluster), None), MISSED_LIMIT_US, LOOK_US)
    # If an operator deleted a registration that no leader had seen, only the reconciliation notices.
    cluster.run_until_no_problem(lambda: next(_unregistered(cluster), None), RECONCILED_LIMIT_US, LOOK_US)
    cluster.run_until_no_problem(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    if next(_leftovers(cluster), None) is not None:  # of members that no leader saw: only the reconciliation notices
        cluster.run_until_no_problem(lambda: next(_leftovers(cluster), None), RECONCILED_LIMIT_US, 10 * LOOK_US)
        cluster.run_until_no_problem(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)


def _stuck(cluster: Cluster) -> Iterator[str]:
    """Yield members whose applications have not polled for too long."""
    for agent in cluster.living_agents():
        away_since_ms, limit_ms = agent.shared.presence.away_since_ms, agent.settings.max_poll_interval_ms
        away_ms = 0 if away_since_ms is None else agent.clock_us() // 1_000 - away_since_ms
        if cluster.applications[agent.name].blocked and agent.consumer is not None and away_ms >= limit_ms:
            yield f"{agent.name} has not polled for {away_ms} ms, and is still a member"


def _running(cluster: Cluster) -> Iterator[str]:
    """Yield commands of operators that have not ended."""
    if cluster.commands_to_come:
        yield f"{cluster.commands_to_come} commands have not begun"
    for host in cluster.living_operators():
        yield f"{host.name} still runs"


def _held_back_without_owner(cluster: Cluster) -> Iterator[str]:
    """Yield groups with partitions that no member owns, because the group is frozen or waits for an approval."""
    for group in GROUPS:
        known = decode(cluster.ensemble.zk.nodes[paths.group(group)].content)
        agents = cluster.living_agents(group)
        is_held_back = known.frozen or known.approve_moves_above is not None
        is_served = not known.starts_paused and known.strategy != "nonsense" and known.rebalance_timeout_ms >= 400
        if is_held_back and is_served and not all(cluster.applications[one.name].wants_to_close for one in agents):
            owned = {partition for partitions in read_shares(cluster, group).values() for partition in partitions}
            if not cluster.brokers.logs.keys() <= owned:
                yield f"group {group} is held back, and {sorted(cluster.brokers.logs.keys() - owned)} have no owner"


def _unregistered(cluster: Cluster) -> Iterator[str]:
    for group in GROUPS:
        for consumer in sorted(_of_ours(cluster, paths.owners(group))):
            if paths.ids(group, consumer) not in cluster.ensemble.zk.nodes:
                yield f"group {group}: {consumer} is not registered"


def problems(cluster: Cluster) -> Iterator[str]:
    """Yield each difference from a settled cluster whose records are all processed."""
    leaders = [machine for process in cluster.living_coordinators() for machine in process.leading()]
    present = shards.present(cluster.ensemble)
    if sorted(machine.shard.number for machine in leaders) != [shard.number for shard in present]:
        yield f"coordinators lead the shards {sorted(machine.shard.number for machine in leaders)} of {len(present)}"
        return
    for group in GROUPS:
        leader = next(machine for machine in leaders if machine.shard.has(group))
        state = leader.groups[group].state if group in leader.groups else GroupState.LOADING
        if state not in REST:
            yield f"group {group} is {state.value}"
        yield from _assignment_problems(cluster, group)
        if _of_ours(cluster, paths.evicted(group)):
            yield f"group {group}: an eviction record is left"
        for consumer in cluster.ensemble.zk.children(paths.owners(group)):
            if cluster.ensemble.zk.children(paths.channel(group, consumer)):
                yield f"group {group}: {consumer} has a command left"
        yield from _record_problems(cluster, group)


def read_shares(cluster: Cluster, group: str) -> dict[str, set[TopicPartition]]:
    """Return the stored ownership; an unreadable record is empty, and its consumer will be evicted."""
    zk = cluster.ensemble.zk
    owned: dict[str, set[TopicPartition]] = {}
    for name in sorted(_of_ours(cluster, paths.owners(group))):
        try:
            owned[name] = set(ownership.decode_owners(zk.nodes[paths.owners(group, name)].content).partitions)
        except NodeContentError:
            owned[name] = set()
    return owned


def _of_ours(cluster: Cluster, place: str) -> set[str]:
    """Return the names in a folder, without other programs' nodes that cannot be deleted."""
    zk = cluster.ensemble.zk
    depth = 2 if place.endswith("/channel") else 1  # what is in a channel is deleted with it
    below = [path.removeprefix(f"{place}/").split("/") for path in zk.nodes if path.startswith(f"{place}/")]
    stay = {name for name, *rest in below if len(rest) >= depth}
    return set(zk.children(place)) - stay


def drained_members(cluster: Cluster, group: str) -> set[str]:
    """Return the consumers that the group's settings drain."""
    known = decode(cluster.ensemble.zk.nodes[paths.group(group)].content)
    return {
        agent.consumer
        for agent in cluster.living_agents(group)
        if agent.consumer is not None and known.drains(agent.consumer, agent.settings.instance_id, agent.name)
    }


def served_counts(cluster: Cluster, group: str, owned: Mapping[str, Collection[TopicPartition]]) -> list[int]:
    """Return how many partitions each member owns that may have some: all read every topic."""
    drained = drained_members(cluster, group)
    return [len(partitions) for name, partitions in owned.items() if name not in drained or owned.keys() <= drained]


def _assignment_problems(cluster: Cluster, group: str) -> Iterator[str]:
    agents = cluster.living_agents(group)
    names = {agent.consumer for agent in agents}
    stored = _of_ours(cluster, paths.owners(group))
    if None in names or names != set(stored):
        yield f"group {group}: registered are {sorted(stored)}, alive are {sorted(map(str, names))}"
        return
    instances = [agent.settings.instance_id for agent in agents if agent.settings.instance_id is not None]
    if len(instances) != len(set(instances)):
        yield f"group {group}: two members have one instance id: {sorted(instances)}"
    owned = read_shares(cluster, group)
    wanted = sorted(cluster.brokers.logs)
    if sorted(partition for partitions in owned.values() for partition in partitions) != wanted:
        yield f"group {group}: members own {owned}, not {wanted}"
    drained, counts = drained_members(cluster, group), served_counts(cluster, group, owned)
    if any(owned[name] for name in drained) and len(drained) < len(owned):
        yield f"group {group}: {drained} are drained, and members own {owned}"
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
            yield f"group {group}: {partition} is finished up to {finished} of {cluster.brokers.end(partition)}"


def _leftovers(cluster: Cluster) -> Iterator[str]:
    """Yield nodes that should have been removed."""
    for group in GROUPS:
        dead = _of_ours(cluster, paths.channel(group)) - set(read_shares(cluster, group))
        if dead:
            yield f"group {group}: channels of dead consumers are left: {sorted(dead)}"
    for process in cluster.living_coordinators():
        due = [timer for machine in process.machines for timer in machine.scheduler.due]
        timers = {str(name) for owner, name in due if owner in GROUPS}
        if cluster.strangers:  # below `offsets`, they count as topics that are absent: an hour is waited
            # Nor can a node that has nodes below be deleted: an eviction is tried again, with growing pauses.
            places = {name for path in cluster.strangers for name in path.split("/")}
            timers = {name for name in timers if "abandoned" not in name}
            timers -= {str(("evict", name)) for name in places}
        if timers - STANDING_TIMERS:
            yield f"{process.name} still waits for {sorted(timers)}"


def one_bad_agent(cluster: Cluster) -> None:
    """Block or suspend one agent, and check that only its partitions are late.

    Raises:
        BrokenPromiseError: another agent had to wait for it.

    """
    cluster.run_until_no_problem(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)
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
    counts = served_counts(cluster, "inc", {name: found for name, found in owned.items() if name != bad.consumer})
    if max(counts) - min(counts) > 1:
        raise BrokenPromiseError("isolation", f"{bad.name} hangs, and the others have not moved on: {owned}")
    for name in owned.keys() - {bad.consumer}:
        if cluster.ensemble.zk.children(paths.channel("inc", name)):
            raise BrokenPromiseError("isolation", f"{bad.name} hangs, and {name} cannot answer")
    cluster.run_until(cluster.schedule.now_us + EVICTED_US)
    channel = paths.channel("inc", bad.consumer or "")
    if channel in cluster.ensemble.zk.nodes and cluster.ensemble.zk.children(channel):
        raise BrokenPromiseError("isolation", f"{bad.name} hangs for long, and still has a command pending")
    held = {partition for partitions in read_shares(cluster, "inc").values() for partition in partitions}
    if held != cluster.brokers.logs.keys():
        raise BrokenPromiseError("isolation", f"{bad.name} hangs for long, and {held} are owned")


def _spoil(cluster: Cluster, bad: AgentHost) -> None:
    if cluster.random.random() < 0.5:
        cluster.schedule.tell("FAULT", f"{bad.name} has an application that hangs")
        cluster.applications[bad.name].blocked = True
    else:
        cluster.schedule.tell("FAULT", f"{bad.name} is suspended, and its channel is deleted")
        suspend(bad)
        cluster.write(Delete(paths.channel("inc", bad.consumer or "")))
