"""`balanced` compared with the true optimum of small groups, and its costs with those of an oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.support import examples
from tests.unit.assignment.balanced_oracle import Judge, Optimum, Small, optimum, small_group
from zkrebalancer.assignment.balanced.case import to_case
from zkrebalancer.assignment.balanced.objective import cost_of
from zkrebalancer.assignment.balanced.plan import Plan, plan_balanced
from zkrebalancer.assignment.balanced.reasons import changes_of
from zkrebalancer.assignment.balanced.search import _Search
from zkrebalancer.assignment.columns import NOBODY, to_columns

SEEDS = range(examples.count(4))
pytestmark = pytest.mark.drawn


@dataclass(frozen=True, slots=True)
class Solved:
    """A small group, its plan by `balanced`, and its optimum."""

    small: Small
    plan: Plan
    best: Optimum

    @property
    def gap(self) -> float:
        """The excess of the cost over the optimum, relative to the optimum."""
        return (self.plan.cost.total - self.best.cost) / self.best.cost if self.best.cost else 0.0


def solve(seed: int) -> Solved:
    small = small_group(seed)
    plan = plan_balanced(to_columns(small.problem), small.options)
    return Solved(small, plan, optimum(Judge(small), plan.target.astype(np.int64)))


@pytest.fixture(scope="module")
def solved() -> list[Solved]:
    return [solve(seed) for seed in SEEDS]


def test_as_few_partitions_as_possible_are_unassigned_or_left_on_drained_members(solved: list[Solved]) -> None:
    for number, case in enumerate(solved):
        given = case.plan.target >= 0
        stranded = given & ~case.plan.case.active[case.plan.target]
        left = int(np.count_nonzero(~given)), int(np.count_nonzero(stranded))
        assert left == (case.best.unassigned, case.best.stranded), number


def test_nearly_all_plans_are_optimal_and_none_is_far_off(solved: list[Solved]) -> None:
    gaps = np.array([case.gap for case in solved])
    assert gaps.min() >= -1e-9
    assert (gaps < 1e-9).mean() >= 0.96
    assert gaps.mean() < 0.001
    assert gaps.max() < 0.06


def test_the_cost_follows_the_documented_formulas(solved: list[Solved]) -> None:
    for number, case in enumerate(solved):
        judge, target = Judge(case.small), case.plan.target[np.newaxis].astype(np.int64)
        owner = np.array(judge.owner, np.int64)
        moved = (target >= 0) & (owner >= 0) & (target != owner)
        costs, peaks = judge.costs(target, moved)
        assert costs[0] == pytest.approx(case.plan.cost.total), number
        assert peaks[0] == pytest.approx(case.plan.cost.peak), number


def test_the_lower_bound_is_below_the_optimum(solved: list[Solved]) -> None:
    for number, case in enumerate(solved):
        assert case.plan.bound.total <= case.best.cost + 1e-9, number
        assert case.plan.bound.peak <= case.best.peak + 1e-9, number


def test_every_move_gains_more_than_it_costs(solved: list[Solved]) -> None:
    for case in solved:
        plan, limit = case.plan, case.small.options.max_partitions_per_member
        for row in np.flatnonzero(plan.case.is_moved(plan.target)).tolist():
            owner = plan.case.columns.owner[row]
            has_room = limit is None or plan.case.counts(plan.target)[owner] < limit
            if plan.case.active[owner] and has_room:
                assert changes_of(plan.case, plan.target, row).total[owner] >= -1e-9


def test_the_search_prices_every_exchange_at_what_it_changes() -> None:
    for seed in range(examples.count()):
        small = small_group(seed)
        case = to_case(to_columns(small.problem), small.options)
        target = plan_balanced(case.columns, replace(small.options, max_search_steps=0)).target
        search = _Search(case, target)
        active = np.flatnonzero(case.active)
        for giver in active.tolist():
            given = np.append(np.flatnonzero((target == giver) & case.free_to_move), NOBODY)
            for partner in active[active != giver].tolist():
                taken = np.append(np.flatnonzero((target == partner) & case.free_to_move), NOBODY)
                changes = search._change_of_cost(giver, given, taken, np.full(len(taken), partner))
                for (i, j), change in np.ndenumerate(changes):
                    if np.isfinite(change):
                        after = target.copy()
                        after[[row for row in (given[i],) if row != NOBODY]] = partner
                        after[[row for row in (taken[j],) if row != NOBODY]] = giver
                        difference = cost_of(case, after).total - cost_of(case, target).total
                        assert change == pytest.approx(difference, abs=1e-9), seed


def test_limits_hold(solved: list[Solved]) -> None:
    for case in solved:
        plan, options = case.plan, case.small.options
        owner = plan.case.columns.owner
        if options.max_moves_per_rebalance is not None:
            assert np.count_nonzero(plan.case.is_moved(plan.target)) <= options.max_moves_per_rebalance
        if options.max_partitions_per_member is not None:
            free = plan.target[plan.case.free_to_move]
            assert np.bincount(free[free >= 0], minlength=1).max() <= options.max_partitions_per_member
        assert (plan.target[plan.case.pinned] == owner[plan.case.pinned]).all()


def test_both_limits_hold_together_except_for_partitions_that_a_member_owns_already() -> None:
    for seed in range(examples.count(3)):
        small = small_group(seed)
        options = replace(small.options, max_moves_per_rebalance=seed % 3, max_partitions_per_member=1 + seed % 2)
        plan = plan_balanced(to_columns(small.problem), options)
        case, target, owner = plan.case, plan.target, plan.case.columns.owner
        assert np.count_nonzero((owner >= 0) & (target != owner)) <= seed % 3
        free = case.free_to_move & (target >= 0)
        count_of, owned = np.bincount(target[free], minlength=9), np.bincount(owner[owner >= 0], minlength=9)
        assert (count_of <= np.maximum(owned, 1 + seed % 2)).all(), seed
        for row in np.flatnonzero((target == NOBODY) & case.free_to_move & (owner == NOBODY)).tolist():
            readers = case.readers[case.kind[row]]
            assert (case.counts(target)[readers] > seed % 2).all(), seed


def test_the_changes_of_an_alternative_are_the_difference_of_two_costs(solved: list[Solved]) -> None:
    for case in solved[:100]:
        plan = case.plan
        for row in np.flatnonzero(plan.target >= 0).tolist():
            if not plan.case.active[plan.target[row]]:
                continue
            changes = changes_of(plan.case, plan.target, row)
            for member in np.flatnonzero(plan.case.active).tolist():
                other = plan.target.copy()
                other[row] = member
                difference = cost_of(plan.case, other).total - plan.cost.total
                assert changes.total[member] == pytest.approx(difference, abs=1e-9)
