"""Shortens a failing plan: drops chunks of its faults while the same invariant still breaks."""

from __future__ import annotations

from tests.simulation.plan import Plan
from tests.simulation.run import Failure, run

MAX_RUNS = 300


def shrink(failure: Failure) -> Failure:
    """Return the shortest failure found, with its story."""
    plan, runs = failure.plan, 0
    size = max(1, len(plan.faults) // 2)
    while size and runs < MAX_RUNS:
        begin, has_shrunk = 0, False
        while begin < len(plan.faults) and runs < MAX_RUNS:
            runs += 1
            shorter = plan.with_faults(plan.faults[:begin] + plan.faults[begin + size :])
            if _fails(shorter, failure.name):
                plan, has_shrunk = shorter, True
            else:
                begin += size
        size = size if has_shrunk and size == 1 else size // 2
    return _told(plan) or failure


def _fails(plan: Plan, name: str) -> bool:
    _result, failure = run(plan)
    return failure is not None and failure.name == name


def _told(plan: Plan) -> Failure | None:
    _result, failure = run(plan, tells=True)
    return failure
