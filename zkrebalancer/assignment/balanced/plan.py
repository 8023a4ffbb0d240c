"""`balanced` from columns to a plan: a greedy start, a local search, and how far the result is from a lower bound."""

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
    """What was decided, and how good it is.

    `target`: the member that gets each row, NOBODY for none.
    `bound`: no target that assigns the same rows costs less, term by term and in total.
    `search_steps`: members that the search looked at to find it; if they are less than allowed, it ended by itself.
    """

    case: Case
    target: Rows  # [P]
    cost: Cost
    bound: Cost
    search_steps: int


def plan_balanced(columns: Columns, options: BalancedOptions) -> Plan:
    """Decide who gets what. The same columns and options give the same plan."""
    case = to_case(columns, options)
    targets = list(starts(case)) if case.active.any() else [columns.owner.copy()]
    if len(columns.owner) > MAX_SMALL_ROWS:
        targets = [min(targets, key=lambda target: cost_of(case, target).total)]
    steps = [improve(case, target) for target in targets]
    costs = [cost_of(case, target) for target in targets]
    best = min(range(len(targets)), key=lambda number: costs[number].total)
    return Plan(case, targets[best], costs[best], lower_bound(case, targets[best]), steps[best])
