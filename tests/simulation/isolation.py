"""Runs with a single hostile fault, which hits a topic, a group or a member and must affect no other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.simulation.cluster import Cluster
from tests.simulation.hostile import perform_hostile
from tests.simulation.plan import Fault
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.quiescence import LOOK_US, SETTLE_LIMIT_US, problems, read_shares
from tests.simulation.strangers import Target
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.states import GroupState

HASTE_US = 2_500_000  # to reconnect, to read all groups, and to give a newcomer its share
LATER_US = 15_000_000  # for the time limits of commands, a lease, pauses between retries
OF_A_TOPIC = ("topic", "mark", "offset")  # words in the kind of a fault that affects only a topic
OF_A_MEMBER = ("registration", "claim", "owner", "command", "member")


def one_bad_node(cluster: Cluster, fault: Fault) -> None:
    """Cause the fault to a topic, or to a member of the group `inc`; check that all others are served as before.

    Raises:
        BrokenPromiseError: another topic, group or member was affected.

    """
    cluster.run_until_no_problem(lambda: next(problems(cluster), None), SETTLE_LIMIT_US, LOOK_US)
    target = Target("inc", "t", cluster.living_agents("inc")[0])
    cluster.faults[fault.kind] += 1
    cluster.schedule.tell("FAULT", fault.kind)
    perform_hostile(cluster, fault.kind, fault.pick, target)
    cluster.add_agent("eag")
    is_of_a_topic = any(word in fault.kind for word in OF_A_TOPIC)
    concerned = {target.topic} if is_of_a_topic else set()
    if "topics" in fault.kind:
        concerned = set(cluster.incarnations)
    for wait_us, is_late in ((HASTE_US, False), (LATER_US, True)):
        cluster.run_until(cluster.schedule.now_us + wait_us)
        groups = ["eag"]
        if is_late and (is_of_a_topic or any(word in fault.kind for word in OF_A_MEMBER)):
            groups.append("inc")
        cluster.run_until_no_problem(partial(_being_read, cluster, groups), HASTE_US, LOOK_US)
        for problem in _problems(cluster, groups, concerned):
            raise BrokenPromiseError("isolation", f"{fault.kind} for {target.topic} or inc, and {problem}")


def _being_read(cluster: Cluster, groups: list[str]) -> str | None:
    """Return which group waits for a node of one topic or member: none of their other members is served meanwhile."""
    leaders = [machine for process in cluster.living_coordinators() for machine in process.leading()]
    for group in groups:
        known = [machine.groups[group].state for machine in leaders if group in machine.groups]
        if known in ([], [GroupState.LOADING]):
            return f"{group} is still being read"
    return None


def _problems(cluster: Cluster, groups: list[str], concerned: set[str]) -> Iterator[str]:
    """Yield unaffected members and partitions that are not served."""
    wanted = {partition for partition in cluster.brokers.logs if partition[0] not in concerned}
    for group in groups:
        shares = read_shares(cluster, group)
        living = {agent.consumer for agent in cluster.living_agents(group)}
        held: set[TopicPartition] = set().union(*(shares[name] for name in shares if name in living))
        if not wanted <= held:
            yield f"in {group} no member owns {sorted(wanted - held)}"
        counts = [len(shares.get(name or "", set()) & wanted) for name in living]
        if not concerned and group == "eag" and max(counts) - min(counts) > 1:
            yield f"in {group} the shares are {sorted(counts)}"
