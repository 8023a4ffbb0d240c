"""Previews a rebalance of a group from the contents of ZooKeeper.

The coordinator's code reads the group, builds the problem, and decides which moves are possible. The leader publishes
which members it may not read or command. What only the leader knows is missing: rates that it has measured, and
consumers that it is about to evict.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from zkrebalancer.assignment import STRATEGIES, WEIGHING, WITH_OPTIONS, strategy
from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.assignment.explanation import Explanation, explain
from zkrebalancer.assignment.loads import lag_of
from zkrebalancer.assignment.model import Problem
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import loads
from zkrebalancer.operations.evict import first_names
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Refusal
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperRefusedError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.obstacles import REFUSED
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.planning import Planning, answer
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member
from zkrebalancer.runtime.zk import BlockingZk


class UnknownPartitionError(RebalancerError):
    """A partition that no member of the group reads or holds."""


@dataclass(slots=True)
class Foreseen:
    """The changes. `before`, `after`: partitions of each consumer. `unassigned`: partitions without one."""

    moves: list[tuple[TopicPartition, str | None, str | None]]  # partition, from, to
    before: Mapping[str, int]
    after: Mapping[str, int]
    unassigned: int
    notes: list[str] = field(default_factory=list)


def foresee(
    zk: BlockingZk,
    report: GroupReport,
    settings: GroupSettings,
    kafka: Mapping[str, str] | None,
    topics: Mapping[str, Topic] | None = None,
) -> Foreseen:
    """Return what the group's next rebalance would move under these settings.

    `kafka`: settings of librdkafka, to read lag if the strategy weighs it. `topics`: those of the cluster, if they were
    read for another group.

    Raises:
        UnknownStrategyError, OptionError: the settings' strategy or options.
        KafkaOffsetsError: no broker answers.

    """
    view, planning, problem, notes = _read_problem(zk, report, settings, kafka, topics)
    transition = answer(planning.task(0, problem), STRATEGIES)
    away = problem.members.keys() - view.members.keys()
    holder = {tp: consumer for consumer in view.members for tp in view.held_by(consumer)}
    holder |= {tp: consumer for consumer in away for tp in problem.members[consumer].owned}
    target = {tp: consumer for consumer in view.members for tp in planning.admissible(consumer, transition)}
    target |= {tp: consumer for consumer in away for tp in transition.share(consumer)}
    if settings.frozen:
        notes.append("the group is frozen: only partitions without an owner are assigned")
    else:
        notes += _unapproved(report.name, settings, transition.displaced_count, view.generation)
    notes += _pinned_to_nobody(settings, holder.keys())
    changed = sorted(tp for tp in holder.keys() | target.keys() if holder.get(tp) != target.get(tp))
    names = [*sorted(view.members), *sorted(away)]
    before, after = Counter(holder.values()), Counter(target.values())
    notes += [
        f"{name} is drained, and keeps {after[name]} partitions: "
        + ("the group is frozen" if settings.frozen else "no other member can get them")
        for name in planning.drained
        if after[name]
    ]
    return Foreseen(
        moves=[(tp, holder.get(tp), target.get(tp)) for tp in changed],
        before={name: before[name] for name in names},
        after={name: after[name] for name in names},
        unassigned=len(transition.columns.topic) - transition.assigned_count,
        notes=notes,
    )


def foresee_one(
    zk: BlockingZk, report: GroupReport, partition: TopicPartition, kafka: Mapping[str, str] | None
) -> tuple[Explanation, list[str]]:
    """Return the strategy's reason for one partition's place, and notes on it.

    Raises:
        UnknownPartitionError: no member reads or holds a topic that has it.
        UnknownStrategyError, OptionError, KafkaOffsetsError: as `foresee`.

    """
    view, planning, problem, notes = _read_problem(zk, report, report.settings, kafka)
    explanation = explain(report.settings.strategy, problem, partition)
    if explanation is None:
        topic, number = partition
        raise UnknownPartitionError(f"{topic}-{number}: group {report.name} reads and holds no topic that has it")
    transition = answer(planning.task(0, problem), STRATEGIES)
    target, wanted = transition.receiver(partition), explanation.target
    if planning.keeping and target != wanted:  # the explanation ignores that some members get nothing more
        reason = f"{wanted if wanted in planning.keeping else 'another member'} gets nothing more"
        explanation = Explanation(explanation.holder, target, reason)
    if report.settings.frozen and explanation.holder is not None:
        explanation = Explanation(explanation.holder, explanation.holder, "the group is frozen")
    elif explanation.holder in planning.keeping:
        reason = _why_it_stays(view.members[explanation.holder])
        explanation = Explanation(explanation.holder, explanation.holder, reason)
    elif explanation.holder in planning.drained:
        stays = explanation.holder == explanation.target
        reason = f"{explanation.holder} is drained" + (", but no other member can get it" if stays else "")
        explanation = replace(explanation, reason=reason)
    if not report.settings.frozen:
        notes += _unapproved(report.name, report.settings, transition.displaced_count, view.generation)
    notes += [f"{name} is drained: it gets nothing that another member reads" for name in planning.drained]
    return explanation, notes


def _unapproved(group: str, settings: GroupSettings, moves: int, generation: int) -> list[str]:
    if settings.allows(moves, generation):
        return []
    limit = settings.approve_moves_above
    note = f"{moves} partitions would leave their members, more than approve_moves_above ({limit}): until"
    return [f"{note} `groups resume {group}`, only partitions without an owner are assigned"]


def _pinned_to_nobody(settings: GroupSettings, owned: Collection[TopicPartition]) -> list[str]:
    """Return a note on pins that hold nothing, perhaps of a wrong number: no strategy refuses them."""
    if settings.strategy not in WITH_OPTIONS:
        return []
    pinned = read_options(settings.options).pinned
    nobodys = [f"{topic} {number}" for topic in pinned for number in pinned[topic] if (topic, number) not in owned]
    return [f"pinned, but no member owns it: {first_names(nobodys)}"] if nobodys else []


def _why_it_stays(member: Member) -> str:
    if member.is_refused:
        return f"the coordinator may not read or command {member.consumer}, which keeps what it holds"
    return f"{member.consumer} may not be read with this login, so what it is to hold is not known"


def _read_problem(
    zk: BlockingZk,
    report: GroupReport,
    settings: GroupSettings,
    kafka: Mapping[str, str] | None,
    topics: Mapping[str, Topic] | None = None,
) -> tuple[GroupView, Planning, Problem, list[str]]:
    """Return the group under these settings, the coordinator's problem as far as it can be read, and notes."""
    strategy(settings.strategy)
    subscriptions, notes = Subscriptions(), report.problems.lines()
    for name, topic in (inspection.read_topics(zk) if topics is None else topics).items():
        subscriptions.set_topic(name, topic)
    known = report.view.members
    out_of_reach = _out_of_reach(zk, report.view, notes)
    members = {name: replace(known[name], is_refused=name in out_of_reach) for name in known} if out_of_reach else known
    view = replace(report.view, members=members, topics=subscriptions.topics, settings=settings, touched=OrderedDict())
    planning = Planning(view, subscriptions, notes.append)
    planning.begin()
    while not planning.look():
        pass  # a bounded number of members at a time
    problem = planning.problem()
    away = problem.members.keys() - view.members.keys()
    if away:
        notes.append(f"static members that are away: {len(away)}; their partitions stay reserved for a while")
    if settings.strategy in WEIGHING and kafka is None:
        notes.append(f"{settings.strategy} weighs lag, rates and racks, which are not known here; use --bootstrap")
    elif settings.strategy in WEIGHING and kafka is not None:
        problem = _weighed(zk, report.name, problem, kafka, notes)
    return view, planning, problem, notes


def _out_of_reach(zk: BlockingZk, view: GroupView, notes: list[str]) -> set[str]:
    """Return the members that the leader says it may not read or command: it plans around them."""
    try:
        published = inspection.read_published(zk, inspection.shard_of_group(zk, view.group))
    except (NodeContentError, ZooKeeperRefusedError) as error:
        notes.append(f"which members the coordinator may not read or command is not known: {error}")
        return set()
    if published.problem is not None:
        notes.append(f"which members the coordinator may not read or command is not known: {published.problem}")
    if published.more:
        count = f"{published.more} of its obstacles"
        notes.append(f"the leader does not publish {count}, perhaps of this group; its log has them")
    found = set[str]()
    for each in published.obstacles:
        if (each.group, each.kind) != (view.group, REFUSED) or each.path is None:
            continue
        place, name = [*each.path.removeprefix(f"{paths.group(view.group)}/").split("/"), ""][:2]
        if (place, each.reason) == ("given", Refusal.TOO_LARGE.value):
            notes.append(f"what {name} may own does not fit into {each.path}: it gets no more topics")
            continue
        concerned = {known.consumer for known in view.members.values() if _concerns(place, name, each.right, known)}
        found |= concerned
        if not concerned:
            notes.append(f"ZooKeeper refuses {each.path} to the coordinator, which may therefore do something else")
    notes += [f"the coordinator may not read or command {name}, which keeps what it holds" for name in sorted(found)]
    return found


def _concerns(place: str, name: str, right: str | None, member: Member) -> bool:
    """Whether a node, or a folder (without a name), is refused without which a member can be given nothing more."""
    if place == "static":
        known = member.registration
        has_grace = known is not None and known.static_grace_ms is not None
        return member.instance is not None and name == member.instance and (has_grace or right != "READ")
    is_its_own = place in {"ids", "owners", "channel", "given", "evicted"} and name == member.consumer
    return is_its_own or (place == "given" and not name)


def _weighed(zk: BlockingZk, group: str, problem: Problem, kafka: Mapping[str, str], notes: list[str]) -> Problem:
    """Return the problem with lag, racks and expected rates."""
    read = loads.read_loads(zk, kafka, group, problem.topics)
    known = "those of the group's weights" if read.expected else "known to the coordinator only"
    notes.append(f"rates are {known}; lag is as of now")
    if read.refused is not None:
        notes.append(f"weights are not used: {read.refused}")
    lag = {topic: lag_of(ends, read.committed[topic]) for topic, ends in read.ends.items()}
    return replace(problem, lag=lag, rate=dict(read.expected), racks=read.racks)
