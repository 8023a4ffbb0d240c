"""A plan of `balanced` as data: its cost, its unassigned partitions, and the reason for each partition."""

from __future__ import annotations

import dataclasses

import numpy as np

from zkrebalancer.assignment.balanced.objective import Cost
from zkrebalancer.assignment.balanced.plan import Plan
from zkrebalancer.assignment.balanced.reasons import reasons
from zkrebalancer.assignment.columns import NOBODY


def objective(plan: Plan) -> dict[str, object]:
    """Return the terms of the objective, their lower bounds, and the gap between the totals.

    `gap` is relative to the bound: 0.02 means that the plan costs at most 2 % more than the best one for the same
    partitions.
    """
    bound = plan.bound.total
    return {
        "cost": _rounded(plan.cost),
        "bound": _rounded(plan.bound),
        "gap": round(max(plan.cost.total - bound, 0.0) / bound, 6) if bound else 0.0,
        "search_steps": plan.search_steps,
    }


def unassigned(plan: Plan) -> dict[str, tuple[tuple[int, str], ...]]:
    """Return the unassigned partitions: topic -> sorted (partition, reason)."""
    columns = plan.case.columns
    rows = np.flatnonzero(plan.target == NOBODY).tolist()
    missing: dict[str, list[tuple[int, str]]] = {}
    for row, reason in zip(rows, reasons(plan.case, plan.target, rows), strict=True):
        topic = int(columns.topic[row])
        missing.setdefault(columns.topics[topic], []).append((row - int(columns.first[topic]), reason.value))
    return {topic: tuple(of_topic) for topic, of_topic in missing.items()}


def reasons_by_topic(plan: Plan) -> dict[str, list[str]]:
    """Return topic -> reason of each partition; the time is proportional to partitions times members."""
    of_rows = [reason.value for reason in reasons(plan.case, plan.target, range(len(plan.target)))]
    first = plan.case.columns.first.tolist()
    return {topic: of_rows[first[n] : first[n + 1]] for n, topic in enumerate(plan.case.columns.topics)}


def _rounded(cost: Cost) -> dict[str, float]:
    return {term: round(value, 6) for term, value in dataclasses.asdict(cost).items()}
