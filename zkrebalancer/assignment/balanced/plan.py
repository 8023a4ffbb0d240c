"""From columns to a plan of `balanced`: greedy starts, a local search from each, and a lower bound to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.assignment.balanced.case import Case, to_case
from zkrebalancer.assignment.balanced.lower_bound import lower_bound
from zkrebalancer.assignment.balanced.objective import Cost, cost_of
from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.balanced.search import improve
from zkrebalancer.assignment.balanced.start import MAX_SMALL_ROWS, starts
from zkrebalancer.assignment.columns import Columns, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The decision and its quality.

    `target`: the member of each row, NOBODY for unassigned rows.
    `bound`: lower bounds of the cost, by term and in total, of any target that assigns the same rows.
    `search_steps`: number of steps of the local search; if below the limit, the search ended by itself.
    """

    case: Case
    target: Rows  # [P]
    cost: Cost
    bound: Cost
    search_steps: int


def plan_balanced(columns: Columns, options: BalancedOptions) -> Plan:
    """Return the plan for a group; deterministic."""
    case = to_case(columns, options)
    targets = list(starts(case)) if case.active.any() else [columns.owner.copy()]
    if len(columns.owner) > MAX_SMALL_ROWS:
        targets = [min(targets, key=lambda target: cost_of(case, target).total)]
    steps = [improve(case, target) for target in targets]
    costs = [cost_of(case, target) for target in targets]
    best = min(range(len(targets)), key=lambda number: costs[number].total)
    return Plan(case, targets[best], costs[best], lower_bound(case, targets[best]), steps[best])
