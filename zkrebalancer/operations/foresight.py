"""What a rebalance would do to a group, computed from what stands in ZooKeeper, without doing it.

The coordinator's own strategies decide, on the same problem. What only the leader knows is not in it: rates that it has
measured, and consumers that it is about to evict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from zkrebalancer.assignment import WEIGHING, strategy
from zkrebalancer.assignment.explanation import Explanation, explain
from zkrebalancer.assignment.loads import lag_of
from zkrebalancer.assignment.model import Member, Problem, Racks
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.observe.inspection import GroupReport, MemberReport
from zkrebalancer.operations import loads
from zkrebalancer.operations.nodes import names_below, read_each
from zkrebalancer.protocol import cluster_nodes, ownership, paths
from zkrebalancer.protocol.errors import PatternError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.runtime.zk import BlockingZk


class UnknownPartitionError(RebalancerError):
    """A partition that a group has nothing to do with."""


@dataclass(slots=True)
class Foreseen:
    """What would change. `before`, `after`: partitions of each consumer. `unassigned`: what nobody would have."""

    moves: list[tuple[TopicPartition, str | None, str | None]]  # partition, from, to
    before: Mapping[str, int]
    after: Mapping[str, int]
    unassigned: int
    notes: list[str] = field(default_factory=list)


def foresee(zk: BlockingZk, report: GroupReport, settings: GroupSettings, kafka: Mapping[str, str] | None) -> Foreseen:
    """Return what the group's next rebalance would move under these settings.

    `kafka`: settings of librdkafka's clients, which ask it for lag if the strategy weighs it.

    Raises:
        UnknownStrategyError, OptionError: the settings' strategy or options.
        KafkaOffsetsError: no broker answers.

    """
    problem, away, notes = _read_problem(zk, report, settings, kafka)
    transition = place(strategy(settings.strategy), problem)
    return _compare(report, away, transition, settings, notes)


def foresee_one(
    zk: BlockingZk, report: GroupReport, partition: TopicPartition, kafka: Mapping[str, str] | None
) -> tuple[Explanation, list[str]]:
    """Return what the group's strategy says about one partition, and what has to be known besides.

    Raises:
        UnknownPartitionError: nobody in the group reads or holds a topic that has it.
        UnknownStrategyError, OptionError, KafkaOffsetsError: as `foresee`.

    """
    problem, _away, notes = _read_problem(zk, report, report.settings, kafka)
    explanation = explain(report.settings.strategy, problem, partition)
    if explanation is None:
        topic, number = partition
        raise UnknownPartitionError(f"{topic}-{number}: group {report.name} reads and holds no topic that has it")
    if report.settings.frozen and explanation.holder is not None:
        explanation = Explanation(explanation.holder, explanation.holder, "the group is frozen")
    return explanation, notes


def _read_problem(
    zk: BlockingZk, report: GroupReport, settings: GroupSettings, kafka: Mapping[str, str] | None
) -> tuple[Problem, dict[str, Member], list[str]]:
    """Return the coordinator's problem as far as it can be read, who in it is away, and what is not as it has it."""
    strategy(settings.strategy)
    subscriptions = _read_topics(zk)
    away = _away(zk, report)
    present = {m.consumer: _describe(m, subscriptions) for m in report.members if m.registration and m.owners}
    members = {**present, **away}
    names = {topic for member in members.values() for topic in member.threads}
    names |= {topic for member in members.values() for topic, _number in member.owned}
    topics = {name: subscriptions.topics[name].count for name in sorted(names & subscriptions.topics.keys())}
    notes, lag, rate, racks = list(report.problems), {}, {}, Racks()
    if away:
        notes.append(f"static members that are away: {len(away)}; what they had waits for them for a while")
    if settings.strategy in WEIGHING and kafka is None:
        notes.append(
            f"{settings.strategy} weighs lag, rates and racks, which are not known here; --bootstrap tells more"
        )
    elif settings.strategy in WEIGHING and kafka is not None:
        read = loads.read_loads(zk, kafka, report.name, topics)
        rate, racks = dict(read.expected), read.racks
        known = "those of the group's weights" if rate else "known to the coordinator only"
        notes.append(f"rates are {known}; lag is as of now")
        if read.refused is not None:
            notes.append(f"weights are not used: {read.refused}")
        for topic, ends in read.ends.items():
            lag[topic] = lag_of(ends, read.committed[topic])
    return Problem(topics, members, lag=lag, rate=rate, racks=racks, options=settings.options), away, notes


def _away(zk: BlockingZk, report: GroupReport) -> dict[str, Member]:
    """Return the static members that are expected back, by their last consumer's name, with what waits for them."""
    present = {m.registration.instance_id for m in report.members if m.registration}
    held = {tp for m in report.members if m.owners for tp in m.owners.partitions}
    instances = [name for name in names_below(zk, paths.static(report.name)) if name not in present]
    nodes = {instance: paths.static(report.name, instance) for instance in instances}
    away: dict[str, Member] = {}
    for instance, record in read_each(zk, nodes, lambda node: ownership.decode_static(node.content)).items():
        owned = dict.fromkeys(sorted(record.partitions - held), 0)
        if owned:
            away[record.consumer] = Member({topic: 1 for topic, _ in owned}, owned, instance_id=instance)
    return away


def _compare(
    report: GroupReport, away: Mapping[str, Member], transition: Transition, settings: GroupSettings, notes: list[str]
) -> Foreseen:
    holder = {tp: m.consumer for m in report.members if m.owners for tp in m.owners.partitions}
    holder |= {tp: consumer for consumer, member in away.items() for tp in member.owned}
    target = {tp: consumer for consumer in transition.columns.consumers for tp in transition.share(consumer)}
    if settings.frozen:
        notes.append("the group is frozen: only what nobody has is given to somebody")
        target |= holder
    changed = sorted(tp for tp in holder.keys() | target.keys() if holder.get(tp) != target.get(tp))
    names = [*(member.consumer for member in report.members), *away]
    before, after = Counter(holder.values()), Counter(target.values())
    return Foreseen(
        moves=[(tp, holder.get(tp), target.get(tp)) for tp in changed],
        before={name: before[name] for name in names},
        after={name: after[name] for name in names},
        unassigned=len(transition.columns.topic) - transition.assigned_count,
        notes=notes,
    )


def _read_topics(zk: BlockingZk) -> Subscriptions:
    subscriptions = Subscriptions()
    nodes = {name: paths.topic(name) for name in names_below(zk, paths.BROKER_TOPICS) if paths.is_legal_topic(name)}
    topics = read_each(zk, nodes, lambda node: cluster_nodes.decode_topic(node.content, node.stat.created_zxid))
    for name, topic in topics.items():
        subscriptions.set_topic(name, topic)
    return subscriptions


def _describe(member: MemberReport, subscriptions: Subscriptions) -> Member:
    registration, owners = member.registration, member.owners
    if registration is None or owners is None:
        raise AssertionError("only members that can be read are described")
    try:
        threads = subscriptions.resolve(registration)
    except PatternError:
        threads = {}
    return Member(
        threads,
        owners.partitions,
        owners.generation,
        registration.instance_id,
        registration.rack,
        registration.capacity,
    )
