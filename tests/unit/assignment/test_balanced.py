"""The properties of `balanced`, each in one small group: floors, racks, prices, limits, drains, reasons."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import examples
from tests.unit.assignment.balanced_oracle import small_group
from tests.unit.assignment.problems import holding, problems, sizes, targets
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.balanced import plan_problem
from zkrebalancer.assignment.balanced.reasons import Decision, Reason, changes_of, explain, reasons
from zkrebalancer.assignment.model import Member, Problem, to_racks


def group(partition_count: int, members: Mapping[str, Member], **fields: Any) -> Problem:
    return Problem({"t": partition_count}, members, **fields)


def member(*owned: int, capacity: float = 1.0, rack: str | None = None, topics: tuple[str, ...] = ("t",)) -> Member:
    held = {("t", partition): 0 for partition in owned}
    return Member(dict.fromkeys(topics, 1), held, capacity=capacity, rack=rack)


def decision(problem: Problem, partition: int) -> Decision:
    plan = plan_problem(problem)
    return explain(plan.case, plan.target, partition)


def test_load_follows_capacity() -> None:
    problem = group(14, {"a": member(capacity=4.0), "b": member(capacity=2.0), "c": member(capacity=1.0)})
    assert sizes(decide("balanced", problem)) == {"a": 8, "b": 4, "c": 2}


def test_a_hot_partition_gets_a_member_of_its_own() -> None:
    problem = group(9, {"a": member(), "b": member(), "c": member()}, lag={"t": [5_000, *[10] * 8]})
    assert sorted(sizes(decide("balanced", problem)).values()) == [1, 4, 4]


def test_idle_partitions_do_not_pile_up() -> None:
    problem = group(30, {"a": member(), "b": member(), "c": member()}, lag={"t": [1_000, 1_000, 1_000]})
    assert set(sizes(decide("balanced", problem)).values()) == {10}


def test_load_depends_on_rate_and_lag() -> None:
    by_rate = group(4, {"a": member(), "b": member()}, lag={"t": [60, 60, 60, 60]}, rate={"t": [9.0, 0.0, 0.0, 0.0]})
    assert sorted(sizes(decide("balanced", by_rate)).values()) == [1, 3]
    by_lag = dataclasses.replace(by_rate, options={"catch_up_s": 0.001})
    assert sorted(sizes(decide("balanced", by_lag)).values()) == [2, 2]


def test_partitions_are_read_in_their_rack_unless_balance_costs_more() -> None:
    members = {"a": member(rack="r1"), "b": member(rack="r2")}
    at_home = group(4, members, racks=to_racks({"t": [["r2"], ["r1"], ["r2"], ["r1"]]}))
    assert targets(decide("balanced", at_home)) == {("t", 0): "b", ("t", 1): "a", ("t", 2): "b", ("t", 3): "a"}
    all_in_one = group(4, members, racks=to_racks({"t": [["r1"]] * 4}))
    assert sizes(decide("balanced", all_in_one)) == {"a": 2, "b": 2}
    matters_most = dataclasses.replace(all_in_one, options={"rack_cost": 100})
    assert sizes(decide("balanced", matters_most)) == {"a": 4, "b": 0}


def test_topics_are_spread() -> None:
    members = {name: Member({"x": 1, "y": 1}, {}) for name in ("a", "b")}
    for topics in decide("balanced", Problem({"x": 2, "y": 2}, members)).values():
        assert {topic: len(partitions) for topic, partitions in topics[0].items()} == {"x": 1, "y": 1}


def test_only_the_share_of_a_new_member_moves() -> None:
    settled = {"a": member(0, 1, 2, 3), "b": member(4, 5, 6, 7), "c": member()}
    assignment = decide("balanced", group(8, settled))
    assert sorted(sizes(assignment).values()) == [2, 3, 3]
    held = {("t", partition): name for name, of in settled.items() for _topic, partition in of.owned}
    assert all(name in {"c", held[partition]} for partition, name in targets(assignment).items())


def test_a_move_that_gains_less_than_it_costs_is_not_made() -> None:
    members = {"a": member(0, 1, 2), "b": member(3)}
    assert sizes(decide("balanced", group(4, members))) == {"a": 2, "b": 2}
    for option in ("move_cost", "min_gain"):
        problem = group(4, members, options={option: 100})
        assert sizes(decide("balanced", problem)) == {"a": 3, "b": 1}
        assert decision(problem, 0).reason == Reason.NOT_WORTH_THE_MOVE


def test_moves_stay_within_the_limit() -> None:
    members = {"a": member(*range(12)), "b": member()}
    for limit in (0, 1, 4):
        problem = group(12, members, options={"max_moves_per_rebalance": limit})
        assert sizes(decide("balanced", problem)) == {"a": 12 - limit, "b": limit}
        assert decision(problem, 0).reason in {Reason.MOVE_LIMIT, Reason.LEAST_LOADED}


def test_the_limit_of_moves_ignores_partitions_without_an_owner() -> None:
    problem = group(6, {"a": member(0, 1), "b": member()}, options={"max_moves_per_rebalance": 0})
    assert sizes(decide("balanced", problem)) == {"a": 3, "b": 3}


def test_pinned_partitions_stay() -> None:
    members = {"a": member(0, 1, 2, 3), "b": member()}
    problem = group(4, members, options={"pinned": {"t": [0, 1, 2, 9], "unknown": [0]}})
    assert targets(decide("balanced", problem)) == {("t", 0): "a", ("t", 1): "a", ("t", 2): "a", ("t", 3): "b"}
    assert decision(problem, 0).reason == Reason.PINNED


def test_a_drained_member_gives_up_all_partitions_that_others_read() -> None:
    members = {"a": member(0, 1, capacity=0.0), "b": member(2), "c": member(3)}
    assert sizes(decide("balanced", group(4, members))) == {"a": 0, "b": 2, "c": 2}
    alone = group(2, {"a": member(0, capacity=0.0)})
    assert targets(decide("balanced", alone)) == {("t", 0): "a"}
    assert decision(alone, 0).reason == Reason.ONLY_SUBSCRIBER
    assert decision(alone, 1).reason == Reason.ALL_DRAINED


def test_a_drain_limited_in_moves_continues_in_the_next_rebalance() -> None:
    problem = group(6, {"a": member(*range(6), capacity=0.0), "b": member()}, options={"max_moves_per_rebalance": 4})
    first = decide("balanced", problem)
    assert sizes(first) == {"a": 2, "b": 4}
    left = [partition for (_, partition), name in targets(first).items() if name == "a"]
    assert decision(problem, left[0]).reason == Reason.MOVE_LIMIT
    second = dataclasses.replace(holding(problem, first), options=problem.options)
    drained = {**second.members, "a": dataclasses.replace(second.members["a"], capacity=0.0)}
    assert sizes(decide("balanced", dataclasses.replace(second, members=drained))) == {"a": 0, "b": 6}


def test_the_lightest_partitions_that_do_not_fit_are_unassigned() -> None:
    problem = group(
        7,
        {"a": member(), "b": member()},
        lag={"t": [1, 70, 60, 50, 40, 30, 20]},
        options={"max_partitions_per_member": 3},
    )
    assert sizes(decide("balanced", problem)) == {"a": 3, "b": 3}
    assert ("t", 0) not in targets(decide("balanced", problem))
    assert decision(problem, 0).reason == Reason.NO_ROOM


def test_excess_partitions_leave_a_member_within_the_limit_of_moves() -> None:
    for moves in (0, 1, 2):
        limits = {"max_partitions_per_member": 2, "max_moves_per_rebalance": moves}
        for partitions in (4, 5, 6):
            problem = group(partitions, {"a": member(0, 1, 2, 3), "b": member()}, options=limits)
            expected = {"a": 4 - moves, "b": min(2, moves + partitions - 4)}
            assert sizes(decide("balanced", problem)) == expected
    nowhere = group(6, {"a": member(0, 1, 2, 3), "b": member(4, 5)}, options={**limits, "max_moves_per_rebalance": 1})
    assert sizes(decide("balanced", nowhere)) == {"a": 3, "b": 2}


def test_members_that_read_more_topics_make_room() -> None:
    members = {"a": Member({"x": 1, "y": 1}, {("x", 0): 0, ("x", 1): 0}), "b": Member({"x": 1}, {})}
    problem = Problem({"x": 2, "y": 2}, members, options={"max_partitions_per_member": 2})
    assert targets(decide("balanced", problem)) == {("x", 0): "b", ("x", 1): "b", ("y", 0): "a", ("y", 1): "a"}


def test_reasons() -> None:
    members = {
        "a": member(0, rack="r1"),
        "b": member(rack="r2"),
        "c": Member({"only": 1}, {}),
    }
    problem = Problem({"t": 2, "only": 1, "unread": 1}, members, racks=to_racks({"t": [["r1"], ["r2"]]}))
    plan = plan_problem(problem)
    assert reasons(plan.case, plan.target, range(4)) == [
        Reason.ONLY_SUBSCRIBER,
        Reason.KEPT,
        Reason.LEAST_LOADED,
        Reason.NO_SUBSCRIBER,
    ]
    kept = explain(plan.case, plan.target, 1)
    assert (kept.member, kept.owner, kept.alternative) == ("a", "a", "b")
    assert kept.move_change > 0
    assert kept.rack_change > 0


def test_a_rack_can_be_the_reason() -> None:
    members = {"a": member(0, 1, 2, rack="r1"), "b": member(3, 4, rack="r2")}
    problem = group(6, members, racks=to_racks({"t": [["r1"]] * 6}), options={"peak_cost": 0, "rack_cost": 3})
    assert decision(problem, 5) == dataclasses.replace(
        decision(problem, 5), reason=Reason.RACK, member="a", alternative="b"
    )


@given(problem=problems(), order=st.randoms(use_true_random=False))
def test_does_not_depend_on_any_order(problem: Problem, order: random.Random) -> None:
    lag = {topic: [order.randrange(100) for _ in range(count)] for topic, count in sorted(problem.topics.items())}
    problem = dataclasses.replace(problem, lag=lag)
    assert decide("balanced", _shuffled(problem, order)) == decide("balanced", problem)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples.count()))
def test_does_not_depend_on_any_order_with_racks_and_limits(seed: int) -> None:
    small = small_group(seed)
    options = {
        name: {topic: sorted(numbers) for topic, numbers in value.items()} if name == "pinned" else value
        for name, value in dataclasses.asdict(small.options).items()
    }
    problem = dataclasses.replace(small.problem, options=options)
    assert decide("balanced", _shuffled(problem, random.Random(seed))) == decide("balanced", problem)


def _shuffled(problem: Problem, order: random.Random) -> Problem:
    def shuffle(entries: Mapping[str, Any]) -> dict[str, Any]:
        return dict(order.sample(sorted(entries.items(), key=lambda entry: entry[0]), len(entries)))

    return dataclasses.replace(
        problem,
        topics=shuffle(problem.topics),
        members=shuffle(problem.members),
        lag=shuffle(problem.lag),
        racks=dataclasses.replace(problem.racks, of_topic=shuffle(problem.racks.of_topic)),
    )


@pytest.mark.drawn
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_fewer_steps_give_a_valid_but_not_a_better_assignment(steps: int) -> None:
    for seed in range(examples.count()):
        problem = dataclasses.replace(small_group(seed).problem, options={})
        hurried = plan_problem(dataclasses.replace(problem, options={"max_search_steps": steps}))
        thorough = plan_problem(problem)
        assert hurried.search_steps <= steps
        assert hurried.cost.total >= thorough.cost.total - 1e-9
        assert ((hurried.target >= 0) == (thorough.target >= 0)).all()


@pytest.mark.parametrize("steps", [0, 10, 1_000])
def test_no_move_is_useless_for_any_limit_of_steps(steps: int) -> None:
    chance = random.Random(6)
    problem = group(
        400,
        {f"c{owner}": member(*range(owner, 400, 20), capacity=1 + owner % 2) for owner in range(20)},
        lag={"t": [int(100 * chance.paretovariate(1)) for _ in range(400)]},
        options={"max_search_steps": steps},
    )
    plan = plan_problem(problem)
    moved = np.flatnonzero(plan.case.is_moved(plan.target)).tolist()
    assert moved
    for row in moved:
        assert changes_of(plan.case, plan.target, row).total[plan.case.columns.owner[row]] >= -1e-9


@pytest.mark.parametrize("lag", ["zipf", "equal", "hot"])
def test_a_balanced_group_does_not_change(lag: str) -> None:
    chance = random.Random(1)
    lags = [int(chance.paretovariate(1)) if lag == "zipf" else 5 for _ in range(300)]
    lags[7] *= 1_000 if lag == "hot" else 1
    problem = group(300, {f"c{number}": member() for number in range(20)}, lag={"t": lags})
    assignment = decide("balanced", problem)
    settled = dataclasses.replace(holding(problem, assignment), lag=problem.lag)
    assert decide("balanced", settled) == assignment


def test_huge_and_tiny_numbers_are_handled() -> None:
    members = {"a": member(capacity=1e-300), "b": member(capacity=1.7e308), "c": member(capacity=1.0)}
    problem = group(5, members, lag={"t": [2**63 - 1, 0, 1]}, rate={"t": [1e308, 1e308, 1e-308]})
    plan = plan_problem(problem)
    assert (plan.target == 1).all()
    assert np.isfinite(plan.cost.total)
    assert np.isfinite(plan.bound.total)


@pytest.mark.parametrize(("unread", "read"), [(1.0, 0.0), (1e308, 1e-308), (1e308, 5e-324), (1.0, 1e-308)])
def test_the_load_of_unread_topics_does_not_suppress_the_others(unread: float, read: float) -> None:
    problem = Problem(
        {"t": 4, "unread": 1},
        {"a": member(), "b": member()},
        rate={"t": [read] * 4, "unread": [unread]},
        options={"load_floor": 0},
    )
    plan = plan_problem(problem)
    assert sizes(decide("balanced", problem)) == {"a": 2, "b": 2}
    assert plan.cost.peak == plan.bound.peak == 1.0


@pytest.mark.parametrize(
    "problem",
    [
        Problem({}, {}),
        Problem({"t": 3}, {}),
        Problem({}, {"a": Member({}, {})}),
        Problem({"t": 0}, {"a": Member({"t": 1}, {})}),
        Problem({"t": 2}, {"a": Member({}, {})}),
        Problem({"t": 2}, {"a": Member({"gone": 1}, {("gone", 0): 0})}),
        Problem({"t": 2}, {"a": Member({"t": 1}, {}, capacity=0.0), "b": Member({"t": 1}, {}, capacity=0.0)}),
    ],
)
def test_nothing_to_assign(problem: Problem) -> None:
    plan = plan_problem(problem)
    assert (plan.target == -1).all()
    assert set(reasons(plan.case, plan.target, range(len(plan.target)))) <= {Reason.NO_SUBSCRIBER, Reason.ALL_DRAINED}
