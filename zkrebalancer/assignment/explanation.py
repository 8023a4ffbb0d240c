"""Explains a strategy's decision about one partition, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from zkrebalancer.assignment import strategy
from zkrebalancer.assignment.balanced import place_balanced, plan_problem, reasons
from zkrebalancer.assignment.columns import NOBODY, Columns, to_columns
from zkrebalancer.assignment.model import Problem
from zkrebalancer.assignment.result import NO_SUBSCRIBER, WITHHELD
from zkrebalancer.protocol.fields import TopicPartition

BY_ORDER = {"range": "its range of the topic", "round_robin": "its turn in the circle"}  # these ignore current owners
EVENLY = "fewest partitions"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One partition: its current owner (`holder`) and the consumer that the strategy gives it to (None: no consumer).

    `alternative`: the best other consumer, if the strategy weighs consumers. `changes`: how each term of the cost, and
    their sum, would change if that consumer had the partition; above 0 is worse.
    """

    holder: str | None
    target: str | None
    reason: str
    alternative: str | None = None
    changes: Mapping[str, float] = field(default_factory=dict)


def explain(name: str, problem: Problem, partition: TopicPartition) -> Explanation | None:
    """Explain what a strategy does with one partition; return None if the problem does not contain it.

    Raises:
        UnknownStrategyError: there is no such strategy.
        OptionError: one of the problem's options is invalid.

    """
    place = strategy(name)
    topic, number = partition
    if not 0 <= number < problem.topics.get(topic, 0):
        return None
    if place is place_balanced:
        return _weighed(problem, partition)
    columns = to_columns(problem)
    row = _row(columns, partition)
    target, holder = place(columns, problem.options)[0][row], columns.holder[row]
    readers = columns.readers(int(columns.topic[row]))
    if target == NOBODY:
        reason = WITHHELD if len(readers) else NO_SUBSCRIBER
    elif len(readers) == 1:
        reason = reasons.Reason.ONLY_SUBSCRIBER.value
    elif name in BY_ORDER:
        reason = BY_ORDER[name]
    else:
        reason = reasons.Reason.KEPT.value if target == holder else EVENLY
    return Explanation(_name(columns, holder), _name(columns, target), reason)


def _weighed(problem: Problem, partition: TopicPartition) -> Explanation:
    plan = plan_problem(problem)
    columns = plan.case.columns
    row = _row(columns, partition)
    decision = reasons.explain(plan.case, plan.target, row)
    holder = _name(columns, columns.holder[row])
    if decision.alternative is None:
        return Explanation(holder, decision.member, decision.reason.value)
    terms = {key.removesuffix("_change"): value for key, value in asdict(decision).items() if key.endswith("_change")}
    changes = {term: round(value, 6) for term, value in [*terms.items(), ("total", sum(terms.values()))]}
    return Explanation(holder, decision.member, decision.reason.value, decision.alternative, changes)


def _row(columns: Columns, partition: TopicPartition) -> int:
    return int(columns.first[columns.topics.index(partition[0])]) + partition[1]


def _name(columns: Columns, member: np.int32) -> str | None:
    return None if member == NOBODY else columns.consumers[member]
