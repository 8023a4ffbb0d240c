"""The terms of the objective of `balanced`, one by one, for any target: in general and for each alternative."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.assignment.balanced_oracle import Judge, Small, small_group
from zkrebalancer.assignment.balanced import plan_problem
from zkrebalancer.assignment.balanced.case import Case, to_case
from zkrebalancer.assignment.balanced.objective import Cost, cost_of
from zkrebalancer.assignment.balanced.options import BalancedOptions
from zkrebalancer.assignment.balanced.reasons import changes_of
from zkrebalancer.assignment.balanced.report import objective, reasons_by_topic, unassigned
from zkrebalancer.assignment.columns import Rows, to_columns
from zkrebalancer.assignment.model import Member, Problem, Racks, to_racks

SEEDS = range(30)
OTHER_OPTIONS = BalancedOptions(
    peak_cost=3.0, uneven_cost=0.7, rack_cost=2.0, move_cost=0.9, min_gain=0.4, spread_cost=0.6, load_floor=0.3
)


def with_other_options(seed: int) -> Small:
    """Return a small group in which no two terms weigh the same."""
    return replace(small_group(seed), options=OTHER_OPTIONS)


def any_target(case: Case, seed: int) -> Rows:
    """Return a target that gives each row to a reader or to its owner, or leaves it without one."""
    chance = random.Random(seed)
    owner = case.columns.owner
    choices = [
        [*case.readers[kind].tolist(), -1, *([int(owner[row])] if owner[row] >= 0 else [])]
        for row, kind in enumerate(case.kind.tolist())
    ]
    return np.array([chance.choice(of_row) for of_row in choices], np.int32)


def case_of(small: Small) -> Case:
    return to_case(to_columns(small.problem), small.options)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cost_of_any_target_follows_the_documented_formulas(seed: int) -> None:
    small = with_other_options(seed)
    case, judge = case_of(small), Judge(small)
    for number in range(5):
        target = any_target(case, 10 * seed + number)
        found = cost_of(case, target)
        one = target[np.newaxis].astype(np.int64)
        owner = np.array(judge.owner, np.int64)
        costs, peaks = judge.costs(one, (one >= 0) & (owner >= 0) & (one != owner))
        assert (found.total, found.peak) == pytest.approx((costs[0], peaks[0]))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_term_of_an_alternative_is_the_difference_of_that_term(seed: int) -> None:
    case, options = case_of(with_other_options(seed)), OTHER_OPTIONS
    target = any_target(case, seed)
    before = cost_of(case, target)
    for row in np.flatnonzero(target >= 0).tolist():
        if not case.active[target[row]]:
            continue
        changes = changes_of(case, target, row)
        for member in np.flatnonzero(case.active).tolist():
            other = target.copy()
            other[row] = member
            after = cost_of(case, other)
            wanted = (
                options.peak_cost * (after.peak - before.peak)
                + options.uneven_cost * (after.unevenness - before.unevenness),
                options.rack_cost * (after.crossing - before.crossing),
                after.moving - before.moving,
                options.spread_cost * (after.crowding - before.crowding),
            )
            found = tuple(term[member] for term in (changes.load, changes.rack, changes.move, changes.spread))
            assert found == pytest.approx(wanted, abs=1e-9)


# ---- values by hand


def balanced(topics: dict[str, int], members: dict[str, Member], **fields: object) -> Problem:
    return Problem(topics, members, **fields)  # type: ignore[arg-type]


def reads(*topics: str, **fields: object) -> Member:
    return Member(dict.fromkeys(topics, 1), {}, **fields)  # type: ignore[arg-type]


def bound_of(problem: Problem) -> Cost:
    return plan_problem(problem).bound


def test_terms_of_a_plan_by_hand() -> None:
    """Two members, loads 1, 1/2 and 1/2 of an average member; the second member is away from all replicas."""
    members = {"a": reads("t", rack="r1"), "b": reads("t", rack="r2")}
    problem = balanced({"t": 3}, members, lag={"t": [20, 10, 10]}, racks=to_racks({"t": [["r1"]] * 3}))
    plan = plan_problem(problem)
    assert plan.cost == Cost(1.0, 0.0, 1.0, 0.0, 0.0, 10.5)
    assert plan.bound == Cost(1.0, 0.0, 0.0, 0.0, 0.0, 10.0)
    assert objective(plan)["gap"] == 0.05


def test_a_partition_above_the_mean_bounds_peak_and_unevenness() -> None:
    """It is at best alone on the strongest member; the others share the rest."""
    members = {name: reads("t") for name in "abc"}
    bound = bound_of(balanced({"t": 3}, members, lag={"t": [40, 10, 10]}))
    assert bound.peak == pytest.approx(2.0)
    assert bound.unevenness == pytest.approx(1 + 2 * 0.25)
    strong = bound_of(balanced({"t": 3}, {**members, "a": reads("t", capacity=4.0)}, lag={"t": [40, 10, 10]}))
    assert (strong.peak, strong.unevenness) == pytest.approx((1.0, 0.0))


def test_more_equal_partitions_than_members_bound_the_peak() -> None:
    """Of seven equal partitions, one of three members has at least three."""
    bound = bound_of(balanced({"t": 7}, {name: reads("t") for name in "abc"}))
    assert bound.peak == pytest.approx(9 / 7)
    assert bound.unevenness == pytest.approx(0.0)


def test_groups_that_share_no_topic_are_bounded_apart() -> None:
    """One member has three quarters of the load and half of the capacity."""
    bound = bound_of(balanced({"t": 3, "u": 1}, {"a": reads("t"), "b": reads("u")}))
    assert bound.peak == pytest.approx(1.5)
    assert bound.unevenness == pytest.approx(2 * 0.25)


def test_what_every_reader_reads_across_racks_bounds_the_crossing() -> None:
    members = {"a": reads("t", rack="r1"), "b": reads("t", rack="r2"), "c": reads("u")}
    racks = to_racks({"t": [["r3"], ["r2", "r3"], ["r3"]], "u": [["r3"]]})
    bound = bound_of(balanced({"t": 3, "u": 1}, members, racks=racks))
    assert bound.crossing == pytest.approx(2 * 3 / 4)


def test_what_leaves_a_drained_member_bounds_the_moving() -> None:
    members = {
        "a": Member({"t": 1}, {("t", 0): 0, ("t", 1): 0}, capacity=0.0),
        "b": Member({"t": 1}, {("t", 2): 0}),
        "c": reads("t"),
    }
    bound = bound_of(balanced({"t": 4}, members))
    assert bound.moving == pytest.approx(2 * (0.1 + 0.05) * 2 / 4)


def test_loads_below_the_floor_count_as_much_as_the_floor() -> None:
    """The floor is a share of the mean, before any is raised."""
    members = {"a": reads("t"), "b": reads("t")}
    problem = balanced({"t": 4}, members, lag={"t": [60, 20, 0, 0]}, options={"load_floor": 0.5})
    load = plan_problem(problem).case.load
    assert load.tolist() == pytest.approx([1.2, 0.4, 0.2, 0.2])


def test_lag_counts_as_a_rate_over_the_time_to_catch_up() -> None:
    members = {"a": reads("t"), "b": reads("t")}
    problem = balanced({"t": 2}, members, lag={"t": [100, 0]}, rate={"t": [10.0, 10.0]}, options={"catch_up_s": 10})
    assert plan_problem(problem).case.load.tolist() == pytest.approx([4 / 3, 2 / 3])


def test_the_report_has_the_terms_the_gap_and_what_is_left_over() -> None:
    members = {"a": reads("t", "u"), "b": reads("t")}
    problem = balanced({"none": 1, "t": 5, "u": 1}, members, options={"max_partitions_per_member": 2})
    plan = plan_problem(problem)
    told = objective(plan)
    assert told["search_steps"] == plan.search_steps
    assert told["cost"] == {
        term: round(getattr(plan.cost, term), 6)
        for term in ("peak", "unevenness", "crossing", "moving", "crowding", "total")
    }
    assert told["gap"] == round((plan.cost.total - plan.bound.total) / plan.bound.total, 6)
    missing = unassigned(plan)
    assert missing["none"] == ((0, "no subscriber"),)
    assert [reason for _number, reason in missing.get("t", ())] == ["no room at any subscriber"] * len(missing["t"])
    assert sum(map(len, missing.values())) == 3
    reasons = reasons_by_topic(plan)
    assert {topic: len(of_topic) for topic, of_topic in reasons.items()} == problem.topics
    for topic, entries in missing.items():
        assert [reasons[topic][number] for number, _reason in entries] == [reason for _number, reason in entries]


def test_an_empty_group_has_no_gap() -> None:
    assert objective(plan_problem(balanced({}, {})))["gap"] == 0.0


def test_where_nothing_is_read_no_move_has_a_price() -> None:
    """In `Case.average_load`, return 1."""
    problem = balanced({"t": 2}, {"a": Member({}, {("t", 0): 0}), "b": reads()})
    plan = plan_problem(problem)
    assert (plan.case.average_load, plan.case.price.tolist(), plan.cost.moving) == (0.0, [0.0, 0.0], 0.0)


@pytest.mark.parametrize(("racks", "count"), [(Racks(), 1), (to_racks({"t": [["r1"], ["r2"]] * 10}), 3)])
def test_racks_without_replicas_count_as_one(racks: Racks, count: int) -> None:
    """A rack for each member's host is a mistake. In `to_case`, keep each: plans of large groups take minutes."""
    members = {f"m{number}": Member({"t": 1}, {}, rack=f"h{number}") for number in range(9)}
    members["m9"] = Member({"t": 1}, {}, rack="r1")
    members["nowhere"] = Member({"t": 1}, {})
    case = to_case(to_columns(Problem({"t": 20}, members, racks=racks)), BalancedOptions())
    assert case.crosses.shape == (20, count + 1)
    across = [int(case.is_across(np.arange(20), np.full(20, row, np.int32)).sum()) for row in (0, 9, 10)]
    assert across == ([0, 0, 0] if count == 1 else [20, 10, 0])
