"""Strategy `balanced`: one objective over load, racks, moves and spread. Read `objective.py` first, then `plan.py`."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.assignment.balanced.plan import Plan, plan_balanced
from zkrebalancer.assignment.columns import Columns, Rows, to_columns
from zkrebalancer.assignment.model import Assignment, Problem
from zkrebalancer.assignment.placement import to_assignment, to_threads


def place_balanced(columns: Columns, options: Mapping[str, object]) -> tuple[Rows, Rows]:
    """Place at the lowest cost found, by lag, rate, racks, capacities and options.

    Returns the member and the consumer thread of each row.

    Raises:
        OptionError: an option does not exist or has a wrong value.

    """
    target = plan_balanced(columns, read_options(options)).target
    return target, to_threads(columns, target)


def plan_problem(problem: Problem) -> Plan:
    """Return the plan of a problem, with its cost; raises OptionError."""
    return plan_balanced(to_columns(problem), read_options(problem.options))


def plan_assignment(plan: Plan) -> Assignment:
    """Return a plan as an `Assignment`, with each member's partitions spread over its threads."""
    columns = plan.case.columns
    return to_assignment(columns, plan.target, to_threads(columns, plan.target))
